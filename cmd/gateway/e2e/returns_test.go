package e2e

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

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/lab/engine"
	"github.com/tandem-pd/tandem/pools"
)

// A worker that comes back under its id with an empty cache is believed to hold nothing of what it held before, by its
// events, by prediction, or by what was sent to it a moment ago.
func TestWorkersReturnEmpty(t *testing.T) {
	prompt := strings.Repeat(long, 4)
	check := func(t *testing.T, f *fleet, back func(holder string)) {
		t.Helper()
		round := func() (prefill string, cached int, overlap string) {
			t.Helper()
			a := f.post(completionPath, ask(prompt, 6))
			if got := f.text(a); got != generated(textPrompt(prompt), 6, false) {
				t.Fatalf("status %d, %q, %s", a.status, got, a.body)
			}
			prefill, _ = f.served(a)
			for _, e := range a.events[:len(a.events)-1] {
				if u := f.parse([]byte(e)).Usage; u != nil && u.Details != nil {
					cached = u.Details.Cached
				}
			}
			id := a.header.Get("X-Request-Id")
			f.eventually("its log line is there", func() bool { return f.overlapOf(id) != "" })
			return prefill, cached, f.overlapOf(id)
		}
		holder, _, _ := round()
		f.eventually("its prefix is known", func() bool { by, _, n := round(); return by == holder && n != "0" })
		f.idle()
		back(holder)
		if by, cached, overlap := round(); overlap != "0" {
			t.Errorf("%s blocks were counted on %s, which had %d tokens; %s is another process", overlap, by, cached, holder)
		}
		f.idle()
	}
	for name, gateway := range map[string]func(c *stack.GatewayConfig){"by its events": nil, "by prediction": withoutEvents} {
		virtualRun(t, name, func(t *testing.T) {
			o := options{prefill: 2, decode: 1, gateway: gateway}
			f := newFleet(t, o)
			check(t, f, func(holder string) {
				f.workers[holder].kill()
				f.start(pools.Prefill, holder, o, slog.New(slog.DiscardHandler))
				f.eventually("the roster's change has reached its view", func() bool { return f.sources()[holder].Blocks == 0 })
			})
		})
	}
	virtualRun(t, "by its URL", func(t *testing.T) {
		f, ports := staticFleet(t)
		check(t, f, func(holder string) {
			before, _ := f.gateway.Roster.Lookup(holder)
			f.workers[holder].kill()
			f.serve(pools.Prefill, holder, ports[holder])
			f.eventually("it is another process", func() bool {
				now, in := f.gateway.Roster.Lookup(holder)
				return in && now.Worker.Incarnation != before.Worker.Incarnation
			})
		})
	})
}

// staticFleet is a gateway with two prefill and two decode workers by URL, at the ports that it returns.
func staticFleet(t *testing.T) (*fleet, map[string]int) {
	t.Helper()
	cfg, ports := gatewayConfig(), map[string]int{}
	for _, role := range []pools.Role{pools.Prefill, pools.Decode} {
		for i := range 2 {
			id := fmt.Sprintf("%s-%d", role, i+1)
			ports[id] = freePort(t)
			cfg.Workers.Static = append(cfg.Workers.Static, endpoint(t, role, fmt.Sprintf("http://127.0.0.1:%d,id=%s", ports[id], id)))
		}
	}
	cfg.Workers.MinInitial = len(cfg.Workers.Static)
	f := newStatic(t, cfg)
	for id, port := range ports {
		f.serve(pools.Role(id[:len(id)-2]), id, port)
	}
	f.eventually("the fleet is healthy", func() bool { return f.status("/health") == http.StatusOK })
	return f, ports
}

// A pair that comes back under its ids with another model computes nothing of the old one: its requests, which go on
// all the while, are the other pair's, and get a typed error once that has gone. Requests of the new model are served.
func TestWorkersReturnWithAnotherModel(t *testing.T) {
	const other = "other-sim"
	check := func(t *testing.T, f *fleet, back func(role pools.Role, id string)) {
		t.Helper()
		ctx, stop := context.WithCancel(context.Background())
		defer stop()
		var group sync.WaitGroup
		var changed atomic.Bool // the pair has another model
		var answered atomic.Int64
		for i := range 4 {
			group.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					prompt := fmt.Sprint(i, n, long)
					late := changed.Load()
					a, err := f.try(context.Background(), completionPath, ask(prompt, 40), nil)
					if err != nil || a.status != http.StatusOK || f.text(a) != generated(textPrompt(prompt), 40, false) {
						t.Errorf("%v, status %d, %s %q", err, a.status, a.body, a.events)
						return
					}
					answered.Add(1)
					if p, d := f.served(a); late && (p == "prefill-1" || d == "decode-1") {
						t.Errorf("the old model was served by %q and %q", p, d)
					}
				}
			})
		}
		f.eventually("both pairs are at work", func() bool {
			return f.value("tandem_frontend_worker_requests", "prefill-1")+f.value("tandem_frontend_worker_requests", "decode-1") > 0
		})
		for _, role := range []pools.Role{pools.Prefill, pools.Decode} { // one after the other: both at once are two faults
			id := string(role) + "-1"
			f.workers[id].kill()
			back(role, id)
			f.eventually(id+" has another model", func() bool {
				m, in := f.gateway.Roster.Lookup(id)
				return in && m.Worker.Model == other
			})
			n := answered.Load()
			f.eventually("what began before has ended", func() bool { return answered.Load() >= n+8 || t.Failed() })
		}
		changed.Store(true)
		a := f.post(completionPath, strings.Replace(ask(long, 6), stack.SimModel, other, 1))
		if p, d := f.served(a); p != "prefill-1" || d != "decode-1" || f.text(a) != generated(textPrompt(long), 6, false) {
			t.Errorf("the new model was served by %q and %q: %q", p, d, f.text(a))
		}
		stop()
		group.Wait()
		f.workers["prefill-2"].kill()
		f.workers["decode-2"].kill()
		for _, code := range []string{"refused", "no_worker"} { // the first finds the other pair dead
			a = f.post(completionPath, ask(long, 6))
			if e := f.parse(a.body).Error; a.status != http.StatusServiceUnavailable || e == nil || e.Code == nil || *e.Code != code {
				t.Errorf("without a worker of the old model: status %d, %s, want %s", a.status, a.body, code)
			}
		}
		f.eventually("what lives holds nothing", func() bool { return f.books() == "" })
	}
	virtualRun(t, "by the registry", func(t *testing.T) {
		f := newFleet(t, options{})
		check(t, f, func(role pools.Role, id string) {
			f.start(role, id, options{speedup: 20, worker: func(c *devfleet.WorkerConfig) { c.Engine.Model = other }}, slog.New(slog.DiscardHandler))
		})
	})
	virtualRun(t, "by their URLs", func(t *testing.T) {
		f, ports := staticFleet(t)
		check(t, f, func(role pools.Role, id string) {
			f.eventually("the port is free", func() bool {
				w, err := newWorker(t, devfleet.WorkerConfig{
					Engine: engine.Config{Role: string(role), ID: id, Model: other, Speedup: 20, BlockSize: 32, TotalKVBlocks: 10_000},
					Host:   "127.0.0.1", Port: ports[id], ModelInput: "text", Drain: time.Second,
				})
				if err == nil {
					f.run(id, w)
				}
				return err == nil
			})
		})
	})
}
