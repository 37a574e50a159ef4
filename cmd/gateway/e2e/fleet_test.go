package e2e

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/cmd/gateway/edge"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/certs"
	"github.com/tandem-pd/tandem/internal/kvevents/eventstest"
	"github.com/tandem-pd/tandem/internal/kvevents/natsbus"
	"github.com/tandem-pd/tandem/internal/kvevents/wire"
	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/internal/telemetry"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/lab/engine"
	"github.com/tandem-pd/tandem/models"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
	"github.com/tandem-pd/tandem/router/replica/member"
)

// fleet is a gateway and its workers on loopback sockets, with the event bus
// in memory and no registry: the roster is told of the workers by hand.
type fleet struct {
	t        testing.TB
	url      string
	gateway  *stack.Gateway
	workers  map[string]*worker
	bus      *eventstest.Bus
	logs     *logBuffer
	reg      *prometheus.Registry
	group    sync.WaitGroup
	got      sync.Map // clients that have got something
	adminKey string   // that get sends
	nats     string   // where the gateway shares its bookings
}

// worker is one simulated worker that can be stopped by itself.
type worker struct {
	*devfleet.Worker
	kill func() // ends it at once, connections and all
	done chan struct{}
}

// options change a fleet from two prefill and two decode workers at a speed-up
// of 20.
type options struct {
	prefill, decode, both int  // none at all means two of the first two
	alone                 bool // the gateway without any
	speedup               float64
	modelInput            string
	worker                func(c *devfleet.WorkerConfig)
	gateway               func(c *stack.GatewayConfig)
	logLevel              slog.Level
	bus                   func(wire.Bus) wire.Bus
	group                 bool   // the gateway shares its bookings, over a NATS of its own
	nats                  string // or over this one
}

func gatewayConfig() stack.GatewayConfig {
	c := stack.GatewayConfig{
		Edge:          setting.Default[edge.Config](),
		Flow:          setting.Default[handoff.Config](),
		Router:        router.DefaultConfig(),
		Models:        models.Config{CacheBytes: 16 << 20},
		Replicas:      setting.Default[member.Config](),
		MetricsPrefix: "tandem_",
		Build:         telemetry.Build{Version: "test"},
		Drain:         5 * time.Second,
	}
	c.Router.Seed, c.Relay = 1, *relayed
	c.Edge.Host, c.Edge.Port, c.Edge.AllowedHosts = "127.0.0.1", 0, []string{"gateway"}
	return c
}

// connect has a gateway use the test's network.
func connect(t testing.TB, cfg *stack.GatewayConfig) {
	if n := networkOf(t); n != nil {
		cfg.Upstream.Dial, cfg.Workers.Probe.Dial = n.dial, n.dial
		cfg.Events.ZMQ.Dial, cfg.Events.ZMQ.Listen = n.dial, n.listenContext
	}
}

// place puts a worker into the test's network.
func place(t testing.TB, cfg *devfleet.WorkerConfig) {
	n := networkOf(t)
	if n == nil {
		return
	}
	cfg.Listen, cfg.Engine.Client = n.listen, n.client
	if zmq := cfg.KVEvents.ZMQ; zmq != nil {
		zmq.Options.Dial, zmq.Options.Listen = n.dial, n.listenContext
	}
}

// newWorker makes a worker of the test's network that registers nowhere.
func newWorker(t testing.TB, cfg devfleet.WorkerConfig) (*devfleet.Worker, error) {
	place(t, &cfg)
	return devfleet.NewWorker(cfg, stack.Links{}, slog.New(slog.DiscardHandler))
}

func newFleet(t testing.TB, o options) *fleet {
	t.Helper()
	if o.prefill+o.decode+o.both == 0 && !o.alone {
		o.prefill, o.decode = 2, 2
	}
	if o.speedup == 0 {
		o.speedup = 20
	}
	f := &fleet{t: t, workers: map[string]*worker{}, bus: eventstest.NewBus(), logs: &logBuffer{}, reg: prometheus.NewRegistry()}
	log := slog.New(slog.NewTextHandler(f.logs, &slog.HandlerOptions{Level: o.logLevel}))
	cfg := gatewayConfig()
	if o.gateway != nil {
		o.gateway(&cfg)
	}
	if key, err := os.ReadFile(cfg.Edge.AdminKeyFile); err == nil {
		f.adminKey = string(key)
	}
	connect(t, &cfg)
	var err error
	links := stack.Links{Bus: f.bus}
	if o.group {
		o.nats = startNATS(t)
	}
	if f.nats = o.nats; o.nats != "" {
		if links.Group, err = stack.JoinGroup(&stack.Discovery{NATSURL: o.nats}, certs.NewStore(0, log), log); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(links.Group.Close)
	}
	if f.gateway, err = stack.NewGateway(cfg, links, log, f.reg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.bus.Close)
	f.runGateway()
	for role, n := range map[pools.Role]int{pools.Prefill: o.prefill, pools.Decode: o.decode, pools.Both: o.both} {
		for i := range n {
			f.start(role, fmt.Sprintf("%s-%d", role, i+1), o, log)
		}
	}
	if o.alone {
		return f
	}
	f.eventually("the fleet is healthy", func() bool { return f.status("/health") == http.StatusOK })
	f.eventually("every worker's cache is known", func() bool {
		var report struct {
			Events map[string][]struct{ State string } `json:"kv_events"`
		}
		f.get("/workers", &report)
		live := 0
		for _, pool := range report.Events {
			for _, source := range pool {
				if source.State == "live" {
					live++
				}
			}
		}
		return live == o.prefill+o.decode+o.both
	})
	return f
}

// startNATS starts a NATS server, and returns its URL.
func startNATS(t testing.TB) string {
	server, err := natsbus.StartCore(0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	return server.URL()
}

// runGateway runs the gateway until stop or the test's end. The workers end with it.
func (f *fleet) runGateway() (stop func()) {
	f.t.Helper()
	f.url = listenAs(f.t, f.gateway)
	ctx, cancel := context.WithCancel(context.Background())
	f.group.Go(func() {
		if err := f.gateway.Run(ctx); err != nil {
			f.t.Errorf("gateway: %v", err)
		}
	})
	stop = func() {
		cancel()
		for _, w := range f.workers {
			w.kill()
		}
		f.group.Wait()
	}
	f.t.Cleanup(func() {
		stop()
		if held := f.inHand(); held != "" {
			f.t.Errorf("the gateway has ended and holds: %s", held)
		}
		f.http().CloseIdleConnections()
		if f.t.Failed() {
			f.t.Logf("gateway's log:\n%s", f.logs)
		}
	})
	return stop
}

// http is the client that requests are made with.
func (f *fleet) http() *http.Client { return client(f.t) }

// listenAs opens a gateway's address and returns its URL.
func listenAs(t testing.TB, g *stack.Gateway) string {
	t.Helper()
	if networkOf(t) != nil {
		ln := listen(t, 0)
		g.UseListener(ln)
		return "http://" + ln.Addr().String()
	}
	addr, err := g.Listen()
	if err != nil {
		t.Fatal(err)
	}
	return "http://" + addr.String()
}

// start adds a worker and tells the roster.
func (f *fleet) start(role pools.Role, id string, o options, log *slog.Logger) {
	f.t.Helper()
	cfg := devfleet.WorkerConfig{
		Engine: engine.Config{Role: string(role), ID: id, Speedup: o.speedup},
		Host:   "127.0.0.1", ModelInput: "text", Drain: time.Second,
	}
	if o.modelInput != "" {
		cfg.ModelInput = o.modelInput
	}
	place(f.t, &cfg)
	if o.worker != nil {
		o.worker(&cfg)
	}
	var bus wire.Bus = f.bus
	if o.bus != nil {
		bus = o.bus(bus)
	}
	w, err := devfleet.NewWorker(cfg, stack.Links{Bus: bus}, log)
	if err != nil {
		f.t.Fatal(err)
	}
	f.run(id, w)
	if err := f.gateway.Roster.Put(w.Record()); err != nil {
		f.t.Fatal(err)
	}
}

// run has a worker serve until the fleet ends or it is killed.
func (f *fleet) run(id string, w *devfleet.Worker) {
	ctx, cancel := context.WithCancel(context.Background())
	running := &worker{Worker: w, done: make(chan struct{})}
	running.kill = func() {
		w.Cut()
		cancel()
		<-running.done
	}
	f.workers[id] = running
	f.group.Go(func() {
		defer close(running.done)
		_ = w.Run(ctx) // a cut worker's listeners fail
	})
}

// eventually waits for a condition, for as long as a machine with other work may take that hashes etcd's passwords under -race.
func (f *fleet) eventually(what string, ok func() bool) {
	f.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !ok() {
		if time.Now().After(deadline) {
			f.t.Fatalf("never came true: %s; held: %q", what, f.books())
		}
		<-time.After(time.Millisecond)
	}
}

// get reads a JSON answer.
func (f *fleet) get(path string, into any) {
	f.t.Helper()
	res, err := f.look(path)
	if err != nil {
		f.t.Fatal(err)
	}
	defer res.Body.Close()
	if err := json.NewDecoder(res.Body).Decode(into); err != nil {
		f.t.Fatalf("%s: %v", path, err)
	}
}

func (f *fleet) status(path string) int {
	res, err := f.http().Get(f.url + path)
	if err != nil {
		return 0
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, res.Body)
	return res.StatusCode
}

// answer is what came back on one request.
type answer struct {
	status int
	header http.Header
	body   []byte
	events []string // data of a stream's events, in order
}

// post sends a body and reads the whole answer.
func (f *fleet) post(path, body string) answer {
	f.t.Helper()
	a, err := f.try(context.Background(), path, body, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	return a
}

// try sends a body, with headers as name and value in turn; each is called with
// every event as it comes.
func (f *fleet) try(ctx context.Context, path, body string, each func(data string), headers ...string) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.url+path, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := f.http().Do(req)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close()
	a := answer{status: res.StatusCode, header: res.Header}
	if !strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		a.body, err = io.ReadAll(res.Body)
		return a, err
	}
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			a.events = append(a.events, data)
			if each != nil {
				each(data)
			}
		}
	}
	// A stream that fails has no last chunk: who does not read events sees an incomplete body.
	if n := len(a.events); n > 0 && strings.HasPrefix(a.events[n-1], `{"error":`) {
		if err := lines.Err(); !errors.Is(err, io.ErrUnexpectedEOF) {
			return a, fmt.Errorf("after its error event the body ends with %w", cmp.Or(err, io.EOF))
		}
		return a, nil
	}
	return a, lines.Err()
}

// chunk is the part of a stream's event, or of a whole answer, that the tests
// look at, for both endpoints.
type chunk struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Model   string `json:"model"`
	Choices []struct {
		Index        int     `json:"index"`
		Text         string  `json:"text"`
		FinishReason *string `json:"finish_reason"`
		Delta        struct{ Role, Content string }
		Message      struct{ Role, Content string }
	} `json:"choices"`
	Usage *struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Total      int `json:"total_tokens"`
		Details    *struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
	Nvext *struct {
		WorkerID *struct {
			Prefill string `json:"prefill_worker_id"`
			Decode  string `json:"decode_worker_id"`
		} `json:"worker_id"`
		Timing map[string]float64 `json:"timing"`
	} `json:"nvext"`
	Error *failure `json:"error"`
}

// failure is the one shape of errors.
type failure struct {
	Message   string  `json:"message"`
	Type      string  `json:"type"`
	Code      *string `json:"code"`
	Param     *string `json:"param"`
	RequestID string  `json:"request_id"`
}

// parse reads one JSON object.
func (f *fleet) parse(data []byte) chunk {
	f.t.Helper()
	var c chunk
	if err := json.Unmarshal(data, &c); err != nil {
		f.t.Fatalf("%v in %q", err, data)
	}
	return c
}

// text puts a stream's or an answer's text together.
func (f *fleet) text(a answer) string {
	f.t.Helper()
	var out strings.Builder
	add := func(c chunk) {
		for _, ch := range c.Choices {
			out.WriteString(ch.Text + ch.Delta.Content + ch.Message.Content)
		}
	}
	if a.events == nil {
		add(f.parse(a.body))
	}
	for _, e := range a.events {
		if e != "[DONE]" {
			add(f.parse([]byte(e)))
		}
	}
	return out.String()
}

// idle waits until nobody holds anything: the gateway's bookings and the
// engines' own books.
func (f *fleet) idle() {
	f.t.Helper()
	f.eventually("all books are zero", func() bool { return f.books() == "" })
}

// inHand is what the gateway's own metrics report as held of requests, empty for nothing. Open connections count once it has ended.
func (f *fleet) inHand() string {
	families, err := f.reg.Gather()
	if err != nil {
		f.t.Error(err)
	}
	var held []string
	for _, family := range families {
		switch name := strings.TrimPrefix(family.GetName(), "tandem_frontend_"); name {
		case "body_bytes", "open_streams", "open_connections", "inflight_requests", "active_requests", "queued_requests", "stage_requests",
			"retrying_requests", "retries_waiting", "router_queue_pending_requests", "router_queue_pending_bytes", "router_queue_pending_isl_tokens",
			"router_queue_pending_cached_tokens", "router_queue_class_pending_requests", "router_queue_class_pending_uncached_tokens":
			for _, m := range family.GetMetric() {
				if v := m.GetGauge().GetValue(); v != 0 {
					held = append(held, fmt.Sprintf("%s %v", name, v))
				}
			}
		}
	}
	return strings.Join(held, "; ")
}

// books says what is still held, empty for nothing.
func (f *fleet) books() string {
	var held []string
	for _, p := range f.gateway.Fleet.Report() {
		for _, w := range p.Workers {
			if w.ActiveBlocks+w.PrefillTokens+w.Requests != 0 {
				held = append(held, fmt.Sprintf("%s: %d blocks, %d tokens, %d requests booked", w.ID, w.ActiveBlocks, w.PrefillTokens, w.Requests))
			}
		}
	}
	for id, w := range f.workers {
		select {
		case <-w.done:
			continue
		default:
		}
		b := w.Engine.Books()
		if b.Running+b.Waiting+b.Transferring+len(b.Pinned)+len(b.Received)+b.Blocks.Active != 0 {
			held = append(held, fmt.Sprintf("%s: %d running, %d waiting, %d transferring, %d pinned, %d received, %d blocks",
				id, b.Running, b.Waiting, b.Transferring, len(b.Pinned), len(b.Received), b.Blocks.Active))
		}
	}
	return strings.Join(held, "; ")
}

// keptLog is how many bytes of a log are kept: more than any test looks at, and not the 255 MB of half an hour under load.
const keptLog = 4 << 20

// logBuffer is the latest keptLog of a log that several goroutines write to.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.buf.Len() > keptLog {
		b.buf.Next(keptLog / 2)
	}
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
