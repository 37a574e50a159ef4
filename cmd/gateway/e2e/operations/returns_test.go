package operations

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/lab/engine"
	"github.com/tandem-pd/tandem/pools"
)

// A worker that comes back under its id with an empty cache is believed to hold nothing of what it held before, by its
// events, by prediction, or by what was sent to it a moment ago.
func TestWorkersReturnEmpty(t *testing.T) {
	prompt := strings.Repeat(fleet.Long, 4)
	check := func(t *testing.T, f *fleet.Fleet, back func(holder string)) {
		t.Helper()
		round := func() (prefill string, cached int, overlap string) {
			t.Helper()
			a := f.Exact(prompt, 6)
			prefill, _ = f.Served(a)
			for _, e := range a.Events[:len(a.Events)-1] {
				if u := f.Parse([]byte(e)).Usage; u != nil && u.Details != nil {
					cached = u.Details.Cached
				}
			}
			id := a.Header.Get("X-Request-Id")
			f.Eventually("its log line is there", func() bool { return f.OverlapOf(id) != "" })
			return prefill, cached, f.OverlapOf(id)
		}
		holder, _, _ := round()
		f.Eventually("its prefix is known", func() bool { by, _, n := round(); return by == holder && n != "0" })
		f.Idle()
		back(holder)
		if by, cached, overlap := round(); overlap != "0" {
			t.Errorf("%s blocks were counted on %s, which had %d tokens; %s is another process", overlap, by, cached, holder)
		}
		f.Idle()
	}
	for name, gateway := range map[string]func(c *stack.GatewayConfig){"by its events": nil, "by prediction": fleet.WithoutEvents} {
		fleet.VirtualRun(t, name, func(t *testing.T) {
			o := fleet.Options{Prefill: 2, Decode: 1, Gateway: gateway}
			f := fleet.New(t, o)
			check(t, f, func(holder string) {
				f.Workers[holder].Kill()
				f.Start(pools.Prefill, holder, o, slog.New(slog.DiscardHandler))
				f.Eventually("the roster's change has reached its view", func() bool { return f.Sources()[holder].Blocks == 0 })
			})
		})
	}
	fleet.VirtualRun(t, "by its URL", func(t *testing.T) {
		f, ports := fleet.NewByURL(t, fleet.GatewayConfig(), nil)
		check(t, f, func(holder string) {
			before, _ := f.Gateway.Roster.Lookup(holder)
			f.Workers[holder].Kill()
			f.Serve(pools.Prefill, holder, ports[holder])
			f.Eventually("it is another process", func() bool {
				now, in := f.Gateway.Roster.Lookup(holder)
				return in && now.Worker.Incarnation != before.Worker.Incarnation
			})
		})
	})
}

// A pair that comes back under its ids with another model computes nothing of the old one: its requests, which go on
// all the while, are the other pair's, and get a typed error once that has gone. Requests of the new model are served.
func TestWorkersReturnWithAnotherModel(t *testing.T) {
	const other = "other-sim"
	check := func(t *testing.T, f *fleet.Fleet, back func(role pools.Role, id string)) {
		t.Helper()
		ctx, stop := context.WithCancel(context.Background())
		defer stop()
		var group sync.WaitGroup
		var changed atomic.Bool // the pair has another model
		var answered atomic.Int64
		for i := range 4 {
			group.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					prompt := fmt.Sprint(i, n, fleet.Long)
					late := changed.Load()
					a, err := f.Try(context.Background(), fleet.CompletionPath, fleet.Ask(prompt, 40), nil)
					if err != nil || a.Status != http.StatusOK || f.Text(a) != fleet.Answered(prompt, 40) {
						t.Errorf("%v, status %d, %s %q", err, a.Status, a.Body, a.Events)
						return
					}
					answered.Add(1)
					if p, d := f.Served(a); late && (p == "prefill-1" || d == "decode-1") {
						t.Errorf("the old model was served by %q and %q", p, d)
					}
				}
			})
		}
		f.Eventually("both pairs are at work", func() bool {
			return f.Value("tandem_frontend_worker_requests", "prefill-1")+f.Value("tandem_frontend_worker_requests", "decode-1") > 0
		})
		for _, role := range []pools.Role{pools.Prefill, pools.Decode} { // one after the other: both at once are two faults
			id := string(role) + "-1"
			f.Workers[id].Kill()
			back(role, id)
			f.Eventually(id+" has another model", func() bool {
				m, in := f.Gateway.Roster.Lookup(id)
				return in && m.Worker.Model == other
			})
			n := answered.Load()
			f.Eventually("what began before has ended", func() bool { return answered.Load() >= n+8 || t.Failed() })
		}
		changed.Store(true)
		a := f.Post(fleet.CompletionPath, strings.Replace(fleet.Ask(fleet.Long, 6), stack.SimModel, other, 1))
		if p, d := f.Served(a); p != "prefill-1" || d != "decode-1" || f.Text(a) != fleet.Answered(fleet.Long, 6) {
			t.Errorf("the new model was served by %q and %q: %q", p, d, f.Text(a))
		}
		stop()
		group.Wait()
		f.Workers["prefill-2"].Kill()
		f.Workers["decode-2"].Kill()
		for _, code := range []string{"refused", "no_worker"} { // the first finds the other pair dead
			a = f.Post(fleet.CompletionPath, fleet.Ask(fleet.Long, 6))
			f.Refused(a, http.StatusServiceUnavailable, code, "")
		}
		f.Eventually("what lives holds nothing", func() bool { return f.Books() == "" })
	}
	fleet.VirtualRun(t, "by the registry", func(t *testing.T) {
		f := fleet.New(t, fleet.Options{})
		check(t, f, func(role pools.Role, id string) {
			f.Start(role, id, fleet.Options{Speedup: 20, Worker: func(c *devfleet.WorkerConfig) { c.Engine.Model = other }}, slog.New(slog.DiscardHandler))
		})
	})
	fleet.VirtualRun(t, "by their URLs", func(t *testing.T) {
		f, ports := fleet.NewByURL(t, fleet.GatewayConfig(), nil)
		check(t, f, func(role pools.Role, id string) {
			f.Eventually("the port is free", func() bool {
				w, err := fleet.NewWorker(t, devfleet.WorkerConfig{
					Engine: engine.Config{Role: string(role), ID: id, Model: other, Speedup: 20, BlockSize: 32, TotalKVBlocks: 10_000},
					Host:   "127.0.0.1", Port: ports[id], ModelInput: "text", Drain: time.Second,
				})
				if err == nil {
					f.Run(id, w)
				}
				return err == nil
			})
		})
	})
}
