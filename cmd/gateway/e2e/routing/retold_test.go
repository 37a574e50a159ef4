package routing

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/internal/kvevents/wire"
	"github.com/tandem-pd/tandem/lab/engine"
	"github.com/tandem-pd/tandem/pools"
)

// pass carries connections on one port of the loopback address to another one,
// until the test ends.
func pass(t *testing.T, from, to int) {
	t.Helper()
	ln := fleet.Listen(t, from)
	var mu sync.Mutex
	var conns []net.Conn
	var group sync.WaitGroup
	keep := func(c net.Conn) {
		mu.Lock()
		defer mu.Unlock()
		conns = append(conns, c)
	}
	group.Go(func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			keep(in)
			out, err := fleet.Dial(t, fmt.Sprintf("127.0.0.1:%d", to))
			if err != nil {
				_ = in.Close()
				continue
			}
			keep(out)
			for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
				group.Go(func() { _, _ = io.Copy(way[0], way[1]); _, _ = in.Close(), out.Close() })
			}
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		mu.Lock()
		for _, c := range conns {
			_ = c.Close()
		}
		mu.Unlock()
		group.Wait()
	})
}

// A vLLM whose buffer is too short for what the gateway missed: the rank is
// predicted, requests ask it to tell again what it uses, and once it has done so
// for as long as a prediction lasts its view is relied on. Without asking it stays
// predicted, as does an engine of a release that does not know how.
func TestLostEventsAreToldAgain(t *testing.T) {
	for _, c := range []struct {
		name    string
		role    pools.Role
		ask     bool
		dialect wire.Dialect
		heals   bool
	}{
		{"asked", pools.Both, true, wire.VLLM, true},
		{"asked, before a decode worker", pools.Prefill, true, wire.VLLM, true},
		{"not asked", pools.Both, false, wire.VLLM, false},
		{"an older release", pools.Both, true, wire.VLLMArrays, false},
	} {
		fleet.VirtualRun(t, c.name, func(t *testing.T) {
			engine := fleet.NewStock(t, engine.Config{Role: string(c.role), ID: "v1", Speedup: 50, TotalKVBlocks: 40_000}, c.dialect, "")
			engine.KVEvents.ZMQ.BufferSteps = 2
			published, heard := engine.Events, fleet.FreePort(t)
			engine.Events = heard // as the gateway is told
			cfg := fleet.GatewayConfig()
			cfg.Reannounce = c.ask
			cfg.Events.RetryMin, cfg.Events.RetryMax, cfg.Events.Relearn = 5*time.Millisecond, 50*time.Millisecond, 100*time.Millisecond
			cfg.Workers.Static = append(cfg.Workers.Static, engine.Endpoint(t, engine.Published()))
			f := fleet.NewStatic(t, cfg)
			f.Launch(engine)
			if c.role == pools.Prefill {
				f.Start(pools.Decode, "d1", fleet.Options{Speedup: 50}, slog.New(slog.DiscardHandler))
			}
			f.Healthy()
			turn := func(conversation int, further string) fleet.Answer {
				t.Helper()
				prompt := strings.Repeat(fmt.Sprintf("Conversation %d. %s", conversation, fleet.Long), 8) + further
				a := f.Good(fleet.CompletionPath, `{"model":"tandem-sim","max_tokens":2,"nvext":{"extra_fields":["routing"]},"prompt":"`+prompt+`"}`)
				return a
			}
			for i := range 6 {
				turn(i, "")
			}
			if s := f.Sources()["v1"]; s.State != "waiting" || s.Blocks != 0 {
				t.Fatalf("before anything is heard it is %+v", s)
			}
			pass(t, heard, published)
			f.Eventually("what it said before is known to be lost", func() bool { return f.Sources()["v1"].State == "predicted" })
			began, turns := time.Now(), 0
			for ; turns < 60 || time.Since(began) < 300*time.Millisecond; turns++ {
				turn(turns%6, strings.Repeat(fmt.Sprint("Turn ", turns/6, ". "), 1+turns/6*8))
				if f.Sources()["v1"].State == "live" {
					break
				}
			}
			s := f.Sources()["v1"]
			t.Logf("after %d turns in %v: %+v", turns, time.Since(began).Round(time.Millisecond), s)
			if !c.heals {
				if s.State != "predicted" || s.Reason != "loss" || s.Repaired["chains"] != 0 {
					t.Errorf("it is %+v", s)
				}
				return
			}
			if s.State != "live" || s.Reason != "" || s.Repaired["chains"] != 1 || s.Losses != 1 {
				t.Fatalf("it is %+v", s)
			}
			// What was computed before the gateway heard anything is known by now, to the block.
			for i := range 6 {
				if r := f.Nvext(turn(i, "")).Routing; *r.Actual < 300 || r.Predicted < *r.Actual || r.Predicted > *r.Actual+16 {
					t.Errorf("conversation %d: %d tokens cached, %d believed", i, *r.Actual, r.Predicted)
				}
			}
			if logs := f.Logs.String(); !strings.Contains(logs, "KV events repaired") {
				t.Error("the log does not say that it is whole again")
			}
			f.Idle()
		})
	}
}
