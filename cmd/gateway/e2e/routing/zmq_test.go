package routing

import (
	"testing"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/internal/kvevents/wire"
	"github.com/tandem-pd/tandem/lab/engine"
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
