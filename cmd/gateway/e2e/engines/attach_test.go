package engines

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/internal/kvevents/follow"
	"github.com/tandem-pd/tandem/internal/kvevents/wire"
	"github.com/tandem-pd/tandem/lab/zmqpub"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/discovery"
)

// stock is a stock engine: it answers about itself as one does, serves by a simulated one, and its KV events are a
// publisher's that the test has in hand.
type stock struct {
	f     *fleet.Fleet
	id    string
	addr  string
	serve http.Handler
	cfg   zmqpub.Config
	pub   *zmqpub.Publisher
	end   []func()

	mu    sync.Mutex // guards all below
	faces map[string]string
	asked map[string]int
}

// faces of engines, with EVENTS and REPLAY for their ports and BORN for what tells two runs apart.
const (
	vllmModels  = `{"object":"list","data":[{"id":"tandem-sim","object":"model","owned_by":"vllm","max_model_len":4096,"parent":null}]}`
	vllmMetrics = "# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{block_size=\"16\",cache_dtype=\"auto\",engine=\"0\",num_gpu_blocks=\"64\"} 1.0\n" +
		"vllm:num_requests_running{engine=\"0\"} 0.0\nprocess_start_time_seconds BORN\n"
	vllmSources = `{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:EVENTS",` +
		`"replay_endpoint":"tcp://*:REPLAY","buffer_steps":10000,"hwm":100000,"max_queue_size":100000,"topic":"kv-events"}}`
	sglangModels = `{"object":"list","data":[{"id":"tandem-sim","object":"model","owned_by":"sglang","max_model_len":8192}]}`
	sglangInfo   = `{"page_size":16,"max_total_num_tokens":1024,"max_running_requests":48,"chunked_prefill_size":8192,"dp_size":1,` +
		`"tp_size":1,"disaggregation_mode":"null","random_seed":BORN,"kv_events":{"publisher":"zmq","endpoint_host":"*",` +
		`"endpoint_port_base":EVENTS,"topic":"kv-events","block_size":16,"dp_size":1,"replay_endpoint_port_base":REPLAY}}`
	trtllmModels = `{"object":"list","data":[{"id":"tandem-sim","object":"model","owned_by":"tensorrt_llm"}]}`
)

var (
	vllmFaces = map[string]string{"/health": "", "/version": `{"version":"0.31.0"}`, "/v1/models": vllmModels,
		"/metrics": vllmMetrics, "/kv_event_sources": vllmSources}
	sglangFaces = map[string]string{"/health": "", "/v1/models": sglangModels, "/server_info": sglangInfo}
	trtllmFaces = map[string]string{"/health": "", "/v1/models": trtllmModels, "/metrics": "[]", "/kv_cache_events": "[]"}
)

// newStock starts one.
func newStock(f *fleet.Fleet, id string, faces map[string]string, d wire.Dialect, buffer int) *stock {
	f.T.Helper()
	at, err := url.Parse(f.Serve(pools.Both, id, 0))
	require.NoError(f.T, err)
	s := &stock{f: f, id: id, serve: httputil.NewSingleHostReverseProxy(at), asked: map[string]int{}, faces: map[string]string{}}
	for path, body := range faces {
		s.faces[path] = strings.ReplaceAll(body, "BORN", "1")
	}
	s.cfg = zmqpub.Config{Endpoint: "tcp://*:0", ReplayEndpoint: "tcp://*:0", Topic: "kv-events", Dialect: d, BufferSteps: buffer}
	s.publish()
	s.listen()
	f.T.Cleanup(s.die)
	return s
}

// publish has it publish KV events, from the beginning; after the first time on the same ports.
func (s *stock) publish() {
	s.f.T.Helper()
	s.f.Eventually("the ports are free", func() bool {
		var err error
		s.pub, err = zmqpub.New(s.cfg)
		return err == nil
	})
	at, replay := s.pub.Ports()
	s.cfg.Endpoint, s.cfg.ReplayEndpoint = fmt.Sprintf("tcp://*:%d", at), fmt.Sprintf("tcp://*:%d", replay)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	pub := s.pub
	go func() { defer close(done); _ = pub.Run(ctx) }()
	s.end = append(s.end, func() { cancel(); <-done })
	s.mu.Lock()
	defer s.mu.Unlock()
	for path, body := range s.faces {
		s.faces[path] = strings.NewReplacer("EVENTS", fmt.Sprint(at), "REPLAY", fmt.Sprint(replay)).Replace(body)
	}
}

// listen has it answer, after the first time at the same address.
func (s *stock) listen() {
	s.f.T.Helper()
	var ln net.Listener
	s.f.Eventually("the port is free", func() bool {
		var err error
		at := s.addr
		if at == "" {
			at = "127.0.0.1:0"
		}
		ln, err = net.Listen("tcp", at)
		return err == nil
	})
	s.addr = ln.Addr().String()
	server := &http.Server{Handler: s}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(ln) }()
	s.end = append(s.end, func() { _ = server.Close(); <-done })
}

// die ends it as a death of the process would.
func (s *stock) die() {
	for _, end := range s.end {
		end()
	}
	s.end = nil
}

// comeBack is another process at the same addresses.
func (s *stock) comeBack(born string) {
	s.mu.Lock()
	for path, body := range s.faces {
		s.faces[path] = strings.NewReplacer("process_start_time_seconds 1\n", "process_start_time_seconds "+born+"\n",
			`"random_seed":1,`, `"random_seed":`+born+`,`).Replace(body)
	}
	s.mu.Unlock()
	s.publish()
	s.listen()
}

func (s *stock) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.asked[r.URL.Path]++
	body, face := s.faces[r.URL.Path]
	s.mu.Unlock()
	switch {
	case face:
		fmt.Fprint(w, body)
	case strings.HasPrefix(r.URL.Path, "/v1/"):
		fleet.ReadWhole(r)
		s.serve.ServeHTTP(w, r)
	default:
		http.NotFound(w, r)
	}
}

func (s *stock) count(path string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked[path]
}

// store publishes that the blocks of a prompt of n tokens from id on are cached.
func (s *stock) store(id uint32, n int) {
	s.f.T.Helper()
	e := wire.Event{Kind: wire.Stored, BlockSize: 16, Medium: "GPU"}
	for i := range n {
		e.Tokens = append(e.Tokens, id+uint32(i))
		if i%16 == 15 {
			e.Hashes = append(e.Hashes, wire.Hash(uint64(id)<<20+uint64(i)))
		}
	}
	require.NoError(s.f.T, s.pub.Publish([]wire.Event{e}))
}

// prompt is a request of n token ids from id on.
func idsPrompt(id uint32, n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, ",%d", id+uint32(i))
	}
	return `{"model":"tandem-sim","max_tokens":2,"prompt":[` + b.String()[1:] + `]}`
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
func (s *stock) attach(links stack.Links, change func(c *stack.AttachConfig, w *pools.Worker)) *attached {
	s.f.T.Helper()
	given := pools.Worker{ID: s.id, Role: pools.Both, Address: "http://" + s.addr}
	cfg := stack.AttachConfig{
		Probe: discovery.ProberConfig{Every: 50 * time.Millisecond, Timeout: 5 * time.Second}, LeaseTTL: 2 * time.Second,
		Follow: follow.Config{RetryMin: 5 * time.Millisecond, RetryMax: 50 * time.Millisecond, QuietCheck: 50 * time.Millisecond},
	}
	if change != nil {
		change(&cfg, &given)
	}
	var err error
	if cfg.Engine, err = discovery.NewEndpoint(given); err != nil {
		s.f.T.Fatal(err)
	}
	a := &attached{logs: &fleet.LogBuffer{}, reg: prometheus.NewRegistry(), done: make(chan struct{})}
	if a.Attach, err = stack.NewAttach(cfg, links, slog.New(slog.NewTextHandler(a.logs, nil)), a.reg); err != nil {
		s.f.T.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	a.stop = cancel
	go func() {
		defer close(a.done)
		assert.NoError(s.f.T, a.Run(ctx), "attach")
	}()
	s.f.T.Cleanup(func() {
		cancel()
		<-a.done
		if s.f.T.Failed() {
			s.f.T.Logf("log of attach %s:\n%s", s.id, a.logs)
		}
	})
	return a
}

// known waits until the gateway has the worker as told, and returns its record.
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

func isGone(f *fleet.Fleet, id string) {
	f.T.Helper()
	f.Eventually(id+" is withdrawn", func() bool { _, ok := f.Gateway.Roster.Lookup(id); return !ok })
}

func anyone(*pools.Worker) bool { return true }

// A stock engine of each kind is asked what it is, registered, and its KV events are told on: prompts go where they are
// cached.
func TestAttachEveryEngine(t *testing.T) {
	f, links := fleet.NewRegistry(t)
	v := newStock(f, "v", vllmFaces, wire.VLLM, 0)
	old := newStock(f, "old", vllmFaces, wire.VLLMArrays, 0)
	s := newStock(f, "s", sglangFaces, wire.SGLang, 0)
	r := newStock(f, "r", trtllmFaces, wire.TensorRT, 0)
	delete(old.faces, "/kv_event_sources") // before 0.31.0
	old.faces["/version"] = `{"version":"0.22.0"}`
	byHand := func(e *stock) func(*stack.AttachConfig, *pools.Worker) {
		return func(_ *stack.AttachConfig, w *pools.Worker) {
			w.KVEvents, w.KVTopic = "zmq", "kv"
			w.KVEndpoint = strings.Replace(e.cfg.Endpoint, "*", "127.0.0.1", 1)
			w.KVReplay = strings.Replace(e.cfg.ReplayEndpoint, "*", "127.0.0.1", 1)
			w.BlockSize, w.TotalKVBlocks = 16, 64
		}
	}
	v.store(500, 320) // before anybody was there
	attaches := map[*stock]*attached{
		v: v.attach(links, nil), s: s.attach(links, nil), old: old.attach(links, byHand(old)), r: r.attach(links, byHand(r)),
	}
	for e, want := range map[*stock]pools.Worker{
		v:   {Engine: "vllm", EngineVersion: "0.31.0", ContextLength: 4096, TotalKVBlocks: 64},
		old: {Engine: "vllm", EngineVersion: "0.22.0", ContextLength: 4096, TotalKVBlocks: 64},
		s:   {Engine: "sglang", ContextLength: 8192, TotalKVBlocks: 64, MaxNumSeqs: 48, MaxNumBatchedTokens: 8192},
		r:   {Engine: "trtllm", TotalKVBlocks: 64},
	} {
		got := isKnown(f, e.id, "is registered", anyone)
		want.ID, want.Incarnation, want.Model, want.Role, want.Address = e.id, got.Incarnation, "tandem-sim", pools.Both, "http://"+e.addr
		want.BlockSize, want.ModelInput, want.KVEvents = 16, "text", "nats"
		assert.True(t, got.Equal(&want) && got.Incarnation != "", "%s: registered %+v, want %+v", e.id, got, want)
	}
	old.store(1000, 320)
	s.store(1500, 320)
	r.store(2000, 320)
	f.Eventually("all is known", func() bool {
		at := f.Sources()
		for _, e := range []*stock{v, old, s, r} {
			if src := at[e.id]; src.State != "live" || src.Transport != "nats" || src.Blocks != 20 {
				return false
			}
		}
		return true
	})
	for i, e := range []*stock{v, old, s, r} {
		before := e.count("/v1/completions")
		f.Good(fleet.CompletionPath, idsPrompt(uint32(500*(i+1)), 330))
		assert.Equal(t, before+1, e.count("/v1/completions"), "%s holds the prompt and was not asked", e.id)
	}
	assert.LessOrEqual(t, r.count("/metrics")+r.count("/kv_cache_events"), 0,
		"KV events were read from TensorRT-LLM, which removes what one reader has read")
	if ok, awaits := attaches[v].Registered(); !ok {
		t.Errorf("awaits %s", awaits)
	}
}

// An engine that dies is withdrawn, and back it is another, whose cache begins empty; a process that was replaced between two
// looks, and reports the same of itself, is known by its KV events. When attach stops, the worker leaves the gateways first,
// and the engine's events are passed on for a while.
func TestAttachedEngineRestarts(t *testing.T) {
	f, links := fleet.NewRegistry(t)
	s := newStock(f, "w", vllmFaces, wire.VLLM, 0)
	a := s.attach(links, func(c *stack.AttachConfig, _ *pools.Worker) { c.Drain = 2 * time.Second })
	s.store(1000, 320)
	f.Eventually("its cache is known", func() bool { return f.Sources()["w"].Blocks == 20 })
	first := isKnown(f, "w", "is registered", anyone).Incarnation
	s.die()
	isGone(f, "w")
	f.Eventually("it reports what it waits for", func() bool {
		ok, awaits := a.Registered()
		return !ok && strings.Contains(awaits, s.addr)
	})
	s.comeBack("2")
	another := func(than string) string {
		now := isKnown(f, "w", "is another", func(w *pools.Worker) bool { return w.Incarnation != than }).Incarnation
		f.Eventually("its cache is empty", func() bool { src := f.Sources()["w"]; return src.State == "live" && src.Blocks == 0 })
		s.store(5000, 32)
		f.Eventually("the index has the blocks again", func() bool { return f.Sources()["w"].Blocks == 2 })
		assert.Equal(t, now, isKnown(f, "w", "is still there", anyone).Incarnation, "one restart was reported as two")
		return now
	}
	second := another(first)
	if log := a.logs.String(); strings.Count(log, "worker registered") != 2 {
		t.Errorf("registered other than twice:\n%s", log)
	}
	s.end[0]() // the publisher alone: the HTTP server keeps its connections and its report
	s.end = s.end[1:]
	s.publish()
	another(second)

	a.stop()
	isGone(f, "w")
	select {
	case <-a.done:
		t.Fatal("it did not drain")
	default:
	}
	s.store(9000, 32)
	f.Eventually("events are still passed on", func() bool { return gaugeOf(t, a.reg, "kv_bridge_blocks") == 4 })
	<-a.done
	if log := a.logs.String(); !strings.Contains(log, "detached") ||
		strings.LastIndex(log, "deregistered") > strings.Index(log, "draining") {
		t.Errorf("the log:\n%s", log)
	}
}

// What an engine cannot report, and what it does not, is reported with the flag to set; what is lost is replayed.
func TestAttachSaysWhatIsMissing(t *testing.T) {
	f, links := fleet.NewRegistry(t)
	s := newStock(f, "w", vllmFaces, wire.VLLM, 0)
	s.faces["/kv_event_sources"] = `{"0":{"enable_kv_cache_events":false,"publisher":"null","endpoint":"tcp://*:5557",` +
		`"replay_endpoint":null,"topic":""}}`
	a := s.attach(links, nil)
	if w := isKnown(f, "w", "is registered", anyone); w.KVEvents != "none" {
		t.Errorf("%+v", w)
	}
	if log := a.logs.String(); strings.Count(log, "--kv-events-config") != 1 {
		t.Errorf("the log says nothing of the engine's flag, or too often:\n%s", log)
	}
	// Without NATS gateways are told where the engine publishes, by the host that they reach it by.
	d := newStock(f, "direct", vllmFaces, wire.VLLM, 0)
	d.attach(stack.Links{Etcd: links.Etcd}, func(c *stack.AttachConfig, _ *pools.Worker) {
		c.Advertise = "http://localhost:" + d.addr[strings.LastIndexByte(d.addr, ':')+1:]
	})
	w := isKnown(f, "direct", "is registered", anyone)
	at, replay := d.pub.Ports()
	if w.KVEvents != "zmq" || w.KVEndpoint != fmt.Sprintf("tcp://localhost:%d", at) ||
		w.KVReplay != fmt.Sprintf("tcp://localhost:%d", replay) {
		t.Errorf("%+v", w)
	}
	d.store(1000, 32)
	f.Eventually("it is followed", func() bool { src := f.Sources()["direct"]; return src.Transport == "zmq" && src.Blocks == 2 })
	// Events that the engine no longer keeps are reported as missing: gateways predict the worker until it is whole again.
	lost := newStock(f, "lost", vllmFaces, wire.VLLM, 2)
	for i := range uint32(5) {
		lost.store(1000*i, 32)
	}
	lost.attach(links, nil)
	f.Eventually("it is predicted", func() bool { return f.Sources()["lost"].State == "predicted" })
	require.NoError(t, lost.pub.Publish([]wire.Event{{Kind: wire.Cleared}}))
	lost.store(9000, 48)
	f.Eventually("it is relied on again", func() bool { src := f.Sources()["lost"]; return src.State == "live" && src.Blocks == 3 })
	// An engine that serves another model than the given one is waited for.
	m := newStock(f, "other", vllmFaces, wire.VLLM, 0)
	o := m.attach(links, func(_ *stack.AttachConfig, w *pools.Worker) { w.Model = "qwen" })
	f.Eventually("it reports the model", func() bool { _, awaits := o.Registered(); return strings.Contains(awaits, "not model=qwen") })
}

// gaugeOf reads the one sample of a metric, -1 when it is not there.
func gaugeOf(t *testing.T, reg *prometheus.Registry, name string) float64 {
	t.Helper()
	all, err := reg.Gather()
	require.NoError(t, err)
	for _, m := range all {
		if m.GetName() == name {
			return m.Metric[0].GetGauge().GetValue()
		}
	}
	return -1
}
