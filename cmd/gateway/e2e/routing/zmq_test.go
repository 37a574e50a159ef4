package routing

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/internal/kvevents/wire"
	"github.com/tandem-pd/tandem/lab/engine"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/discovery"
)

// Two workers given by URL alone, one publishing as vLLM and one as SGLang, in one case with a word about where: without etcd and NATS the gateway follows
// their caches over ZMQ, sends a prompt again where it is cached, and heals when a worker dies and comes back empty. One that it was told not to follow is not.
func TestWorkersByURLOverZMQ(t *testing.T) {
	cfg, engines := fleet.GatewayConfig(), map[string]*fleet.Stock{}
	cfg.Events.RetryMin, cfg.Events.RetryMax = 5*time.Millisecond, 100*time.Millisecond
	for id, d := range map[string]wire.Dialect{"v1": wire.VLLM, "s1": wire.SGLangArrays, "silent": wire.VLLM} {
		s := fleet.NewStock(t, engine.Config{Role: "both", ID: id, Speedup: 50, BlockSize: 16, TotalKVBlocks: 40_000}, d, "kv@"+id)
		engines[id] = s
		cfg.Workers.Static = append(cfg.Workers.Static, s.Endpoint(t, map[string]string{"s1": s.Published(), "silent": ",kv-events=none"}[id]))
	}
	f := fleet.NewStatic(t, cfg)
	for _, s := range engines {
		f.Launch(s)
	}
	f.Followed("v1", "s1")
	if s := f.Sources(); len(s) != 2 || s["v1"].Transport != "zmq" || f.Workers["silent"].Record().KVEvents != "zmq" {
		t.Errorf("followed: %+v", s)
	}
	if err := f.Gateway.Roster.Drain("silent", true); err != nil {
		t.Fatal(err)
	}
	f.Exact(fleet.Long, 4)
	var holder string
	f.Eventually("what was computed is known", func() bool {
		for id, s := range f.Sources() {
			if s.Blocks > 0 {
				holder = id
			}
		}
		return holder != ""
	})
	for i := range 3 {
		f.Exact(fleet.Long, 4)
		for id, s := range f.Sources() {
			if id != holder && s.Blocks > 0 {
				t.Fatalf("answer %d came from %s, though %s holds the prompt", i, id, holder)
			}
		}
	}
	f.Workers[holder].Kill()
	f.Launch(engines[holder])
	f.Eventually("it is followed anew, and empty", func() bool {
		s := f.Sources()[holder]
		return s.State == "live" && s.Blocks == 0
	})
	f.Eventually("the prompt is computed and known again", func() bool {
		f.Post(fleet.CompletionPath, fleet.Ask(fleet.Long, 4))
		return f.Sources()["v1"].Blocks+f.Sources()["s1"].Blocks > 0
	})
}

// A worker whose events cannot be had is predicted, and its prompts come back to it all the same.
func TestUnheardWorkersArePredicted(t *testing.T) {
	cfg := fleet.GatewayConfig()
	dead := fleet.FreePort(t)
	p1, p2 := fleet.FreePort(t), fleet.FreePort(t)
	cfg.Workers.Static = []discovery.Endpoint{
		fleet.Endpoint(t, "", fmt.Sprintf("http://127.0.0.1:%d,id=w1,kv-events=tcp://127.0.0.1:%d", p1, dead)),
		fleet.Endpoint(t, "", fmt.Sprintf("http://127.0.0.1:%d,id=w2,kv-events=tcp://127.0.0.1:%d", p2, dead)),
	}
	f := fleet.NewStatic(t, cfg)
	f.Serve(pools.Both, "w1", p1)
	f.Serve(pools.Both, "w2", p2)
	f.Eventually("both are there", func() bool { return len(f.Sources()) == 2 && f.Status("/health") == http.StatusOK })
	for range 4 {
		f.Good(fleet.CompletionPath, fleet.Ask(fleet.Long, 4))
	}
	used := 0
	for id := range map[string]bool{"w1": true, "w2": true} {
		if f.Workers[id].Engine.Books().Blocks.Cached > 0 {
			used++
		}
	}
	if used != 1 {
		t.Errorf("one prompt is cached on %d workers", used)
	}
	for id, s := range f.Sources() {
		if s.State != "waiting" {
			t.Errorf("%s is %s", id, s.State)
		}
	}
	if _, err := discovery.ParseEndpoint("", "http://h:1,kv-replay=tcp://h:2"); err == nil || !strings.Contains(err.Error(), "kv-events") {
		t.Errorf("error %v", err)
	}
}
