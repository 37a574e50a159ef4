package engines

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/kv/follow"
	"github.com/tandem-pd/tandem/kv/wire"
	"github.com/tandem-pd/tandem/lab/engine"
	"github.com/tandem-pd/tandem/lab/fleet"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/discovery"
)

// stock is an engine of 64 blocks that serves alone, as its maker ships it.
func stock(t *testing.T, id, name, release string, d wire.Dialect) *fleet.Stock {
	return fleet.NewStock(t, engine.Config{
		Engine: name, EngineVersion: release, Role: "both", ID: id, Speedup: 1000, BlockSize: 16, TotalKVBlocks: 64, ContextLength: 1000,
	}, d, "kv-events")
}

func addressOf(s *fleet.Stock) string { return fmt.Sprintf("127.0.0.1:%d", s.Port) }

// compute sends the engine a prompt of n tokens from id on, past every gateway: it computes and caches it.
func compute(t *testing.T, s *fleet.Stock, id, n int) {
	t.Helper()
	alone := &fleet.Fleet{T: t, URL: "http://" + addressOf(s)}
	alone.Good(fleet.CompletionPath, idsPrompt(id, n))
}

// idsPrompt is a request of n token ids from id on.
func idsPrompt(id, n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, ",%d", id+i)
	}
	return `{"model":"tandem-sim","max_tokens":1,"prompt":[` + b.String()[1:] + `]}`
}

// unchanging stands before an engine whose every process reports what the first one did, and is always there.
func unchanging(t *testing.T, s *fleet.Stock) string {
	t.Helper()
	var reports sync.Map // by path
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if report, known := reports.Load(r.URL.Path); known {
			fmt.Fprint(w, report)
			return
		}
		res, err := http.Get("http://" + addressOf(s) + r.URL.Path)
		if err != nil || res.StatusCode != http.StatusOK {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		defer res.Body.Close()
		report, _ := io.ReadAll(res.Body)
		reports.Store(r.URL.Path, string(report))
		_, _ = w.Write(report)
	}))
	t.Cleanup(front.Close)
	return front.URL
}

// attached is what stands beside a stock engine.
type attached struct {
	*stack.Attach
	logs *fleet.LogBuffer
	reg  *prometheus.Registry
	stop func()
	done chan struct{}
}

// attach stands beside s.
func attach(t *testing.T, s *fleet.Stock, links stack.Links, change func(c *stack.AttachConfig, w *pools.Worker)) *attached {
	t.Helper()
	given := pools.Worker{ID: s.Engine.ID, Role: pools.Both, Address: "http://" + addressOf(s)}
	cfg := stack.AttachConfig{
		Probe: discovery.ProberConfig{Every: 50 * time.Millisecond, Timeout: 5 * time.Second}, LeaseTTL: 2 * time.Second,
		Follow: follow.Config{RetryMin: 5 * time.Millisecond, RetryMax: 50 * time.Millisecond, QuietCheck: 50 * time.Millisecond},
	}
	if change != nil {
		change(&cfg, &given)
	}
	var err error
	cfg.Engine, err = discovery.NewEndpoint(given)
	require.NoError(t, err)
	a := &attached{logs: &fleet.LogBuffer{}, reg: prometheus.NewRegistry(), done: make(chan struct{})}
	a.Attach, err = stack.NewAttach(cfg, links, slog.New(slog.NewTextHandler(a.logs, nil)), a.reg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	a.stop = cancel
	go func() {
		defer close(a.done)
		assert.NoError(t, a.Run(ctx), "attach")
	}()
	t.Cleanup(func() {
		cancel()
		<-a.done
		if t.Failed() {
			t.Logf("log of attach %s:\n%s", s.Engine.ID, a.logs)
		}
	})
	return a
}

// known waits until the gateway has the worker as registered, and returns its record.
func isKnown(f *fleet.Fleet, id, what string, as func(w *pools.Worker) bool) pools.Worker {
	f.T.Helper()
	var got pools.Worker
	f.Eventually(id+" "+what, func() bool {
		m, ok := f.Gateway.Roster.Lookup(id)
		if ok {
			got = *m.Worker
		}
		return ok && as(m.Worker)
	})
	return got
}

func anyone(*pools.Worker) bool { return true }

// A stock engine of each kind is probed, registered, and its KV events are forwarded: prompts go where they are cached.
func TestAttachEveryEngine(t *testing.T) {
	f, links := fleet.NewRegistry(t)
	v, old := stock(t, "v", "vllm", "0.31.0", wire.VLLM), stock(t, "old", "vllm", "0.22.0", wire.VLLMArrays)
	s, r := stock(t, "s", "sglang", "0.5.23", wire.SGLang), stock(t, "r", "trtllm", "1.3.0", wire.TensorRT)
	all := []*fleet.Stock{v, old, s, r}
	for _, e := range all {
		f.Launch(e)
	}
	compute(t, v, 500, 320) // before anybody was there
	a := attach(t, v, links, nil)
	attach(t, s, links, nil)
	for _, e := range []*fleet.Stock{old, r} { // which do not report where they publish
		attach(t, e, links, func(_ *stack.AttachConfig, w *pools.Worker) {
			at := e.Endpoint(t, e.Published()).Worker
			w.KVEvents, w.KVEndpoint, w.KVReplay, w.KVTopic = at.KVEvents, at.KVEndpoint, at.KVReplay, at.KVTopic
			w.BlockSize, w.TotalKVBlocks = 16, 64
		})
	}
	for e, want := range map[*fleet.Stock]pools.Worker{
		v:   {Engine: "vllm", ContextLength: 1000},
		old: {Engine: "vllm", ContextLength: 1000},
		s:   {Engine: "sglang", ContextLength: 1000, MaxNumSeqs: 256, MaxNumBatchedTokens: 8192, VocabSize: 4096, IgnoresSuffix: true},
		r:   {Engine: "trtllm", TransferIDs: f.Workers["r"].Record().TransferIDs},
	} {
		got := isKnown(f, e.Engine.ID, "is registered", anyone)
		want.ID, want.Incarnation, want.Address = e.Engine.ID, got.Incarnation, "http://"+addressOf(e)
		want.Model, want.Role = "tandem-sim", pools.Both
		want.EngineVersion, want.BlockSize, want.TotalKVBlocks, want.ModelInput, want.KVEvents = e.Engine.EngineVersion, 16, 64, "text", "nats"
		assert.True(t, got.Equal(&want) && got.Incarnation != "", "%s: registered %+v, want %+v", e.Engine.ID, got, want)
	}
	for i, e := range all[1:] {
		compute(t, e, 1000+500*i, 320)
	}
	f.Eventually("all is known", func() bool {
		at := f.Sources()
		for _, e := range all {
			if src := at[e.Engine.ID]; src.State != "live" || src.Transport != "nats" || src.Blocks != 20 {
				return false
			}
		}
		return true
	})
	for i, e := range all {
		asked := strings.Replace(idsPrompt(500*(i+1), 330), `{`, `{"nvext":{"extra_fields":["worker_id"]},`, 1)
		_, by := f.Served(f.Good(fleet.CompletionPath, asked))
		assert.Equal(t, e.Engine.ID, by, "who was asked what %s holds", e.Engine.ID)
	}
	if ok, awaits := a.Registered(); !ok {
		t.Errorf("awaits %s", awaits)
	}
}

// A process that was replaced between two looks, and reports the same facts, is detected by its KV events: it is
// another, whose cache begins empty. When attach stops, the worker leaves the gateways first, and the engine's events
// are passed on for a while.
func TestAttachedEngineRestarts(t *testing.T) {
	f, links := fleet.NewRegistry(t)
	s := stock(t, "w", "vllm", "0.31.0", wire.VLLM)
	f.Launch(s)
	a := attach(t, s, links, func(c *stack.AttachConfig, w *pools.Worker) { c.Drain, w.Address = 2*time.Second, unchanging(t, s) })
	compute(t, s, 1000, 320)
	f.Eventually("its cache is known", func() bool { return f.Sources()["w"].Blocks == 20 })
	first := isKnown(f, "w", "is registered", anyone).Incarnation
	f.Workers["w"].Kill()
	f.Launch(s)
	now := isKnown(f, "w", "is another", func(w *pools.Worker) bool { return w.Incarnation != first }).Incarnation
	f.Eventually("its cache is empty", func() bool { src := f.Sources()["w"]; return src.State == "live" && src.Blocks == 0 })
	compute(t, s, 500, 32)
	f.Eventually("the index has the blocks again", func() bool { return f.Sources()["w"].Blocks == 2 })
	assert.Equal(t, now, isKnown(f, "w", "is still there", anyone).Incarnation, "one restart was reported as two")

	a.stop()
	f.Eventually("it is withdrawn", func() bool { _, ok := f.Gateway.Roster.Lookup("w"); return !ok })
	select {
	case <-a.done:
		t.Fatal("it did not drain")
	default:
	}
	compute(t, s, 2000, 32)
	counted := &fleet.Fleet{T: t, Reg: a.reg}
	f.Eventually("events are still passed on", func() bool { return counted.Value("kv_bridge_blocks") == 4 })
	<-a.done
	if log := a.logs.String(); !strings.Contains(log, "detached") ||
		strings.LastIndex(log, "deregistered") > strings.Index(log, "draining") {
		t.Errorf("the log:\n%s", log)
	}
}

// What an engine cannot report, and what it does not, is reported with the flag to set; what is lost is replayed.
func TestAttachReportsMissingFlags(t *testing.T) {
	f, links := fleet.NewRegistry(t)
	s := stock(t, "w", "vllm", "0.31.0", wire.VLLM)
	s.KVEvents.Off = true
	f.Launch(s)
	a := attach(t, s, links, nil)
	assert.Equal(t, "none", isKnown(f, "w", "is registered", anyone).KVEvents)
	if log := a.logs.String(); strings.Count(log, "--kv-events-config") != 1 {
		t.Errorf("the log does not name the engine's flag, or too often:\n%s", log)
	}
	// Without NATS the record has the engine's endpoint, with the host at which gateways reach it.
	d := stock(t, "direct", "vllm", "0.31.0", wire.VLLM)
	f.Launch(d)
	attach(t, d, stack.Links{Etcd: links.Etcd}, func(c *stack.AttachConfig, _ *pools.Worker) {
		c.Advertise = fmt.Sprintf("http://localhost:%d", d.Port)
	})
	w := isKnown(f, "direct", "is registered", anyone)
	assert.Equal(t, [3]string{"zmq", fmt.Sprintf("tcp://localhost:%d", d.Events), fmt.Sprintf("tcp://localhost:%d", d.ReplayPort)},
		[3]string{w.KVEvents, w.KVEndpoint, w.KVReplay})
	compute(t, d, 1000, 32)
	f.Eventually("it is followed", func() bool { src := f.Sources()["direct"]; return src.Transport == "zmq" && src.Blocks == 2 })
	f.Workers["direct"].Kill()
	f.Eventually("it is withdrawn", func() bool { _, ok := f.Gateway.Roster.Lookup("direct"); return !ok })
	// Events that the engine no longer keeps are reported as missing: gateways predict the worker until it is whole
	// again.
	lost := stock(t, "lost", "vllm", "0.31.0", wire.VLLM)
	lost.KVEvents.ZMQ.BufferSteps = 2
	f.Launch(lost)
	for i := range 5 {
		compute(t, lost, 500*(i+1), 32)
	}
	attach(t, lost, links, nil)
	f.Eventually("it is predicted", func() bool { return f.Sources()["lost"].State == "predicted" })
	(&fleet.Fleet{T: t, URL: "http://" + addressOf(lost)}).Good("/reset_prefix_cache", "")
	compute(t, lost, 100, 48)
	f.Eventually("it is relied on again", func() bool { src := f.Sources()["lost"]; return src.State == "live" && src.Blocks == 3 })
	// An engine that serves another model than the given one is waited for.
	o := attach(t, s, links, func(_ *stack.AttachConfig, w *pools.Worker) { w.ID, w.Model = "other", "qwen" })
	f.Eventually("it reports the model", func() bool { _, awaits := o.Registered(); return strings.Contains(awaits, "not model=qwen") })
}
