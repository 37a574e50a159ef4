package routing

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/internal/kvevents/wire"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/lab/engine"
	"github.com/tandem-pd/tandem/lab/zmqpub"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/discovery"
)

// zmqWorker is a simulated worker as a stock vLLM or SGLang: it registers nowhere and publishes over ZMQ, on the ports
// given. It is at the returned URL.
func zmqWorker(f *fleet.Fleet, id string, port, port2, replay int, d wire.Dialect) {
	f.T.Helper()
	var w *devfleet.Worker
	var err error
	f.T.Cleanup(func() {
		if err != nil {
			f.T.Log(err)
		}
	})
	f.Eventually("the ports are free", func() bool {
		w, err = fleet.NewWorker(f.T, devfleet.WorkerConfig{
			Engine: engine.Config{Role: "both", ID: id, Speedup: 50, BlockSize: 16, TotalKVBlocks: 40_000},
			Host:   "127.0.0.1", Port: port, ModelInput: "text", Drain: time.Second,
			KVEvents: devfleet.WorkerEvents{ZMQ: &zmqpub.Config{
				Endpoint: fmt.Sprintf("tcp://*:%d", port2), ReplayEndpoint: fmt.Sprintf("tcp://127.0.0.1:%d", replay), Topic: "kv@" + id, Dialect: d,
			}},
		})
		return err == nil
	})
	f.Run(id, w)
}

// Two workers given by URL alone, one publishing as vLLM and one as SGLang: without etcd and NATS the gateway follows
// their caches over ZMQ, sends a prompt again where it is cached, and heals when a worker dies and comes back empty.
func TestWorkersByURLOverZMQ(t *testing.T) {
	cfg := fleet.GatewayConfig()
	cfg.Events.RetryMin, cfg.Events.RetryMax = 5*time.Millisecond, 100*time.Millisecond
	ports := map[string][3]int{}
	for id := range map[string]bool{"v1": true, "s1": true} {
		p := [3]int{fleet.FreePort(t), fleet.FreePort(t), fleet.FreePort(t)}
		ports[id] = p
		cfg.Workers.Static = append(cfg.Workers.Static, fleet.Endpoint(t, "", fmt.Sprintf(
			"http://127.0.0.1:%d,id=%s,kv-events=tcp://127.0.0.1:%d,kv-replay=tcp://127.0.0.1:%d,kv-topic=kv@%s", p[0], id, p[1], p[2], id)))
	}
	f := fleet.NewStatic(t, cfg)
	zmqWorker(f, "v1", ports["v1"][0], ports["v1"][1], ports["v1"][2], wire.VLLM)
	zmqWorker(f, "s1", ports["s1"][0], ports["s1"][1], ports["s1"][2], wire.SGLangArrays)
	f.Eventually("both are followed", func() bool {
		s := f.Sources()
		return s["v1"].State == "live" && s["s1"].State == "live" && s["v1"].Transport == "zmq" && f.Status("/health") == http.StatusOK
	})
	body := fleet.Ask(fleet.Long, 4)
	if a := f.Post(fleet.CompletionPath, body); a.Status != http.StatusOK {
		t.Fatalf("status %d, %s", a.Status, a.Body)
	}
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
		if a := f.Post(fleet.CompletionPath, body); a.Status != http.StatusOK {
			t.Fatalf("status %d, %s", a.Status, a.Body)
		}
		for id, s := range f.Sources() {
			if id != holder && s.Blocks > 0 {
				t.Fatalf("answer %d came from %s, though %s holds the prompt", i, id, holder)
			}
		}
	}
	f.Workers[holder].Kill()
	p := ports[holder]
	zmqWorker(f, holder, p[0], p[1], p[2], wire.VLLM)
	f.Eventually("it is followed anew, and empty", func() bool {
		s := f.Sources()[holder]
		return s.State == "live" && s.Blocks == 0
	})
	f.Eventually("the prompt is computed and known again", func() bool {
		if a := f.Post(fleet.CompletionPath, body); a.Status != http.StatusOK {
			return false
		}
		total := 0
		for _, s := range f.Sources() {
			total += s.Blocks
		}
		return total > 0
	})
}

// A worker that tells where it publishes needs no word about it: the gateway follows it by its URL alone, and not when it
// was told not to.
func TestWorkersTellTheirEvents(t *testing.T) {
	cfg := fleet.GatewayConfig()
	p1, p2 := fleet.FreePort(t), fleet.FreePort(t)
	cfg.Workers.Static = []discovery.Endpoint{
		fleet.Endpoint(t, "", fmt.Sprintf("http://127.0.0.1:%d,id=w1", p1)),
		fleet.Endpoint(t, "", fmt.Sprintf("http://127.0.0.1:%d,id=w2,kv-events=none", p2)),
	}
	f := fleet.NewStatic(t, cfg)
	zmqWorker(f, "w1", p1, fleet.FreePort(t), fleet.FreePort(t), wire.VLLM)
	zmqWorker(f, "w2", p2, fleet.FreePort(t), fleet.FreePort(t), wire.VLLM)
	f.Eventually("one is followed", func() bool { return f.Sources()["w1"].State == "live" && f.Status("/health") == http.StatusOK })
	f.Eventually("what was computed is known", func() bool {
		if a := f.Post(fleet.CompletionPath, fleet.Ask(fleet.Long, 4)); a.Status != http.StatusOK {
			t.Fatalf("status %d, %s", a.Status, a.Body)
		}
		return f.Sources()["w1"].Blocks > 0 || f.Workers["w2"].Engine.Books().Blocks.Cached > 0
	})
	if _, followed := f.Sources()["w2"]; followed || f.Workers["w2"].Record().KVEvents != "zmq" {
		t.Errorf("w2 was to be left alone: %+v", f.Sources())
	}
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
		if a := f.Post(fleet.CompletionPath, fleet.Ask(fleet.Long, 4)); a.Status != http.StatusOK {
			t.Fatalf("status %d, %s", a.Status, a.Body)
		}
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
