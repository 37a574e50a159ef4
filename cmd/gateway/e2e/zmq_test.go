package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/internal/kvevents/wire"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/lab/engine"
	"github.com/tandem-pd/tandem/lab/zmqpub"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/discovery"
	"github.com/tandem-pd/tandem/router/overlap"
)

// zmqWorker is a simulated worker as a stock vLLM or SGLang: it registers nowhere and publishes over ZMQ, on the ports
// given. It is at the returned URL.
func (f *fleet) zmqWorker(id string, port, port2, replay int, d wire.Dialect) {
	f.t.Helper()
	var w *devfleet.Worker
	var err error
	f.t.Cleanup(func() {
		if err != nil {
			f.t.Log(err)
		}
	})
	f.eventually("the ports are free", func() bool {
		w, err = newWorker(f.t, devfleet.WorkerConfig{
			Engine: engine.Config{Role: "both", ID: id, Speedup: 50, BlockSize: 16, TotalKVBlocks: 40_000},
			Host:   "127.0.0.1", Port: port, ModelInput: "text", Drain: time.Second,
			KVEvents: devfleet.WorkerEvents{ZMQ: &zmqpub.Config{
				Endpoint: fmt.Sprintf("tcp://*:%d", port2), ReplayEndpoint: fmt.Sprintf("tcp://127.0.0.1:%d", replay), Topic: "kv@" + id, Dialect: d,
			}},
		})
		return err == nil
	})
	f.run(id, w)
}

// eventSource is a row of kv_events in GET /workers.
type eventSource struct {
	Worker, Transport, State, Reason string
	Seq, Losses                      uint64
	Repaired                         map[string]uint64 `json:"healed"`
	Blocks                           int
	Parity                           *overlap.RankParity
}

func (f *fleet) sources() map[string]eventSource {
	var report struct {
		Events map[string][]eventSource `json:"kv_events"`
	}
	f.get("/workers", &report)
	out := map[string]eventSource{}
	for _, pool := range report.Events {
		for _, s := range pool {
			out[s.Worker] = s
		}
	}
	return out
}

// Two workers given by URL alone, one publishing as vLLM and one as SGLang: without etcd and NATS the gateway follows
// their caches over ZMQ, sends a prompt again where it is cached, and heals when a worker dies and comes back empty.
func TestWorkersByURLOverZMQ(t *testing.T) {
	cfg := gatewayConfig()
	cfg.Events.RetryMin, cfg.Events.RetryMax = 5*time.Millisecond, 100*time.Millisecond
	ports := map[string][3]int{}
	for id := range map[string]bool{"v1": true, "s1": true} {
		p := [3]int{freePort(t), freePort(t), freePort(t)}
		ports[id] = p
		cfg.Workers.Static = append(cfg.Workers.Static, endpoint(t, "", fmt.Sprintf(
			"http://127.0.0.1:%d,id=%s,kv-events=tcp://127.0.0.1:%d,kv-replay=tcp://127.0.0.1:%d,kv-topic=kv@%s", p[0], id, p[1], p[2], id)))
	}
	f := newStatic(t, cfg)
	f.zmqWorker("v1", ports["v1"][0], ports["v1"][1], ports["v1"][2], wire.VLLM)
	f.zmqWorker("s1", ports["s1"][0], ports["s1"][1], ports["s1"][2], wire.SGLangArrays)
	f.eventually("both are followed", func() bool {
		s := f.sources()
		return s["v1"].State == "live" && s["s1"].State == "live" && s["v1"].Transport == "zmq" && f.status("/health") == http.StatusOK
	})
	body := ask(long, 4)
	if a := f.post(completionPath, body); a.status != http.StatusOK {
		t.Fatalf("status %d, %s", a.status, a.body)
	}
	var holder string
	f.eventually("what was computed is known", func() bool {
		for id, s := range f.sources() {
			if s.Blocks > 0 {
				holder = id
			}
		}
		return holder != ""
	})
	for i := range 3 {
		if a := f.post(completionPath, body); a.status != http.StatusOK {
			t.Fatalf("status %d, %s", a.status, a.body)
		}
		for id, s := range f.sources() {
			if id != holder && s.Blocks > 0 {
				t.Fatalf("answer %d came from %s, though %s holds the prompt", i, id, holder)
			}
		}
	}
	f.workers[holder].kill()
	p := ports[holder]
	f.zmqWorker(holder, p[0], p[1], p[2], wire.VLLM)
	f.eventually("it is followed anew, and empty", func() bool {
		s := f.sources()[holder]
		return s.State == "live" && s.Blocks == 0
	})
	f.eventually("the prompt is computed and known again", func() bool {
		if a := f.post(completionPath, body); a.status != http.StatusOK {
			return false
		}
		total := 0
		for _, s := range f.sources() {
			total += s.Blocks
		}
		return total > 0
	})
}

// A worker that tells where it publishes needs no word about it: the gateway follows it by its URL alone, and not when it
// was told not to.
func TestWorkersTellTheirEvents(t *testing.T) {
	cfg := gatewayConfig()
	p1, p2 := freePort(t), freePort(t)
	cfg.Workers.Static = []discovery.Endpoint{
		endpoint(t, "", fmt.Sprintf("http://127.0.0.1:%d,id=w1", p1)),
		endpoint(t, "", fmt.Sprintf("http://127.0.0.1:%d,id=w2,kv-events=none", p2)),
	}
	f := newStatic(t, cfg)
	f.zmqWorker("w1", p1, freePort(t), freePort(t), wire.VLLM)
	f.zmqWorker("w2", p2, freePort(t), freePort(t), wire.VLLM)
	f.eventually("one is followed", func() bool { return f.sources()["w1"].State == "live" && f.status("/health") == http.StatusOK })
	f.eventually("what was computed is known", func() bool {
		if a := f.post(completionPath, ask(long, 4)); a.status != http.StatusOK {
			t.Fatalf("status %d, %s", a.status, a.body)
		}
		return f.sources()["w1"].Blocks > 0 || f.workers["w2"].Engine.Books().Blocks.Cached > 0
	})
	if _, followed := f.sources()["w2"]; followed || f.workers["w2"].Record().KVEvents != "zmq" {
		t.Errorf("w2 was to be left alone: %+v", f.sources())
	}
}

// A worker whose events cannot be had is predicted, and its prompts come back to it all the same.
func TestUnheardWorkersArePredicted(t *testing.T) {
	cfg := gatewayConfig()
	dead := freePort(t)
	p1, p2 := freePort(t), freePort(t)
	cfg.Workers.Static = []discovery.Endpoint{
		endpoint(t, "", fmt.Sprintf("http://127.0.0.1:%d,id=w1,kv-events=tcp://127.0.0.1:%d", p1, dead)),
		endpoint(t, "", fmt.Sprintf("http://127.0.0.1:%d,id=w2,kv-events=tcp://127.0.0.1:%d", p2, dead)),
	}
	f := newStatic(t, cfg)
	f.serve(pools.Both, "w1", p1)
	f.serve(pools.Both, "w2", p2)
	f.eventually("both are there", func() bool { return len(f.sources()) == 2 && f.status("/health") == http.StatusOK })
	for range 4 {
		if a := f.post(completionPath, ask(long, 4)); a.status != http.StatusOK {
			t.Fatalf("status %d, %s", a.status, a.body)
		}
	}
	used := 0
	for id := range map[string]bool{"w1": true, "w2": true} {
		if f.workers[id].Engine.Books().Blocks.Cached > 0 {
			used++
		}
	}
	if used != 1 {
		t.Errorf("one prompt is cached on %d workers", used)
	}
	for id, s := range f.sources() {
		if s.State != "waiting" {
			t.Errorf("%s is %s", id, s.State)
		}
	}
	if _, err := discovery.ParseEndpoint("", "http://h:1,kv-replay=tcp://h:2"); err == nil || !strings.Contains(err.Error(), "kv-events") {
		t.Errorf("error %v", err)
	}
}
