// Package fleet is the harness of the tests in cmd/gateway/e2e: whole gateways with simulated engines, over an
// in-memory network in virtual time, or over sockets. The tests are ordered by subject; those of package real use real
// sockets, processes, NATS and etcd.
package fleet

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/cmd/gateway/edge"
	"github.com/tandem-pd/tandem/cmd/gateway/observe"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/certs"
	"github.com/tandem-pd/tandem/internal/natsbus"
	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/kv/wire"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/lab/engine"
	"github.com/tandem-pd/tandem/lab/testkit"
	"github.com/tandem-pd/tandem/models"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
	"github.com/tandem-pd/tandem/router/replica"
)

// Fleet is a gateway and its workers over loopback sockets, or over the network of its test's bubble. It has an
// in-memory event bus and no registry: tests put workers into the roster.
type Fleet struct {
	T        testing.TB
	URL      string
	Gateway  *stack.Gateway
	Workers  map[string]*Worker
	Bus      *testkit.Bus
	Logs     *LogBuffer
	Log      *slog.Logger // that the gateway writes to Logs
	Reg      *prometheus.Registry
	Group    sync.WaitGroup
	Got      sync.Map // clients that have got something
	adminKey string   // that get sends
	NATS     string   // where the gateway shares its bookings
}

// Worker is one simulated worker that can be stopped by itself.
type Worker struct {
	*devfleet.Worker
	Kill func() // ends it at once, connections and all
	Done chan struct{}
}

// Options change a fleet from two prefill and two decode workers at a speed-up of 20.
type Options struct {
	Prefill, Decode, Both int  // none at all means two of the first two
	Alone                 bool // the gateway without any
	Speedup               float64
	ModelInput            string
	Worker                func(c *devfleet.WorkerConfig)
	Gateway               func(c *stack.GatewayConfig)
	LogLevel              slog.Level
	Bus                   func(wire.Bus) wire.Bus
	Group                 bool   // the gateway shares its bookings, over a NATS of its own
	NATS                  string // or over this one
}

func GatewayConfig() stack.GatewayConfig {
	c := stack.GatewayConfig{
		Edge:          setting.Default[edge.Config](),
		Flow:          setting.Default[handoff.Config](),
		Router:        router.DefaultConfig(),
		Models:        models.Config{CacheBytes: 16 << 20},
		Replicas:      setting.Default[replica.MemberConfig](),
		MetricsPrefix: "tandem_",
		Build:         observe.Build{Version: "test"},
		Drain:         5 * time.Second,
	}
	c.Router.Seed, c.Goroutines = 1, *Relayed == "goroutine"
	c.Edge.Host, c.Edge.Port, c.Edge.AllowedHosts = "127.0.0.1", 0, []string{"gateway"}
	return c
}

// Connect has a gateway use the test's network.
func Connect(t testing.TB, cfg *stack.GatewayConfig) {
	if n := NetworkOf(t); n != nil {
		cfg.Upstream.Dial, cfg.Workers.Probe.Dial = n.Dial, n.Dial
		cfg.Events.ZMQ.Dial, cfg.Events.ZMQ.Listen = n.Dial, n.listenContext
	}
}

// place puts a worker into the test's network.
func place(t testing.TB, cfg *devfleet.WorkerConfig) {
	n := NetworkOf(t)
	if n == nil {
		return
	}
	cfg.Listen, cfg.Engine.Client = n.Listen, n.client
	if zmq := cfg.KVEvents.ZMQ; zmq != nil {
		zmq.Options.Dial, zmq.Options.Listen = n.Dial, n.listenContext
	}
}

// NewWorker makes a worker of the test's network that registers nowhere.
func NewWorker(t testing.TB, cfg devfleet.WorkerConfig) (*devfleet.Worker, error) {
	place(t, &cfg)
	return devfleet.NewWorker(cfg, stack.Links{}, slog.New(slog.DiscardHandler))
}

// Bare returns a gateway that does not run yet, in the test's network and without workers.
func Bare(t testing.TB, cfg stack.GatewayConfig, links stack.Links, level slog.Level) *Fleet {
	t.Helper()
	f := &Fleet{T: t, Workers: map[string]*Worker{}, Logs: &LogBuffer{}, Reg: prometheus.NewRegistry()}
	f.Log = slog.New(slog.NewTextHandler(f.Logs, &slog.HandlerOptions{Level: level}))
	Connect(t, &cfg)
	var err error
	f.Gateway, err = stack.NewGateway(cfg, links, f.Log, f.Reg)
	require.NoError(t, err)
	return f
}

// Put gives the gateway's roster a worker.
func (f *Fleet) Put(w pools.Worker) {
	f.T.Helper()
	require.NoError(f.T, f.Gateway.Roster.Put(w))
}

// Another is one more gateway in front of the same workers, that runs.
func (f *Fleet) Another(cfg stack.GatewayConfig, links stack.Links) *Fleet {
	f.T.Helper()
	b := Bare(f.T, cfg, links, slog.LevelInfo)
	for _, w := range f.Workers {
		if len(cfg.Workers.Static) == 0 { // else it finds them by itself
			b.Put(w.Record())
		}
	}
	b.RunGateway()
	return b
}

func New(t testing.TB, o Options) *Fleet {
	t.Helper()
	if o.Prefill+o.Decode+o.Both == 0 && !o.Alone {
		o.Prefill, o.Decode = 2, 2
	}
	if o.Speedup == 0 {
		o.Speedup = 20
	}
	cfg, bus := GatewayConfig(), testkit.NewBus()
	if o.Gateway != nil {
		o.Gateway(&cfg)
	}
	links := stack.Links{Bus: bus}
	if o.Group {
		o.NATS = StartNATS(t)
	}
	if o.NATS != "" {
		links.Group = Join(t, o.NATS)
	}
	f := Bare(t, cfg, links, o.LogLevel)
	f.Bus, f.NATS = bus, o.NATS
	if key, err := os.ReadFile(cfg.Edge.AdminKeyFile); err == nil {
		f.adminKey = string(key)
	}
	t.Cleanup(f.Bus.Close)
	f.RunGateway()
	for role, n := range map[pools.Role]int{pools.Prefill: o.Prefill, pools.Decode: o.Decode, pools.Both: o.Both} {
		for i := range n {
			f.Start(role, fmt.Sprintf("%s-%d", role, i+1), o, f.Log)
		}
	}
	if o.Alone {
		return f
	}
	f.Healthy()
	f.Eventually("every worker's cache is known", func() bool {
		live := 0
		for _, source := range f.Sources() {
			if source.State == "live" {
				live++
			}
		}
		return live == o.Prefill+o.Decode+o.Both
	})
	return f
}

// StartNATS starts a NATS server, and returns its URL.
func StartNATS(t testing.TB) string {
	server, err := natsbus.StartServer(natsbus.ServerConfig{})
	require.NoError(t, err)
	t.Cleanup(server.Close)
	return server.URL()
}

// Join is a gateway's membership in the group of a NATS.
func Join(t testing.TB, url string) *stack.Group {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	group, err := stack.JoinGroup(&stack.Discovery{NATSURL: url}, certs.NewStore(0, log), log)
	require.NoError(t, err)
	t.Cleanup(group.Close)
	return group
}

// RunGateway runs the gateway until stop or the test's end. The workers end with it.
func (f *Fleet) RunGateway() (stop func()) {
	f.T.Helper()
	f.URL = ListenAs(f.T, f.Gateway)
	ctx, cancel := context.WithCancel(context.Background())
	f.Group.Go(func() {
		assert.NoError(f.T, f.Gateway.Run(ctx), "gateway")
	})
	stop = func() {
		cancel()
		for _, w := range f.Workers {
			w.Kill()
		}
		f.Group.Wait()
	}
	f.T.Cleanup(func() {
		stop()
		assert.Empty(f.T, f.inHand(), "the gateway has ended and holds")
		f.HTTP().CloseIdleConnections()
		if f.T.Failed() {
			f.T.Logf("gateway's log:\n%s", f.Logs)
		}
	})
	return stop
}

// HTTP is the client that requests are made with.
func (f *Fleet) HTTP() *http.Client { return Client(f.T) }

// ListenAs opens a gateway's address and returns its URL.
func ListenAs(t testing.TB, g *stack.Gateway) string {
	t.Helper()
	if NetworkOf(t) != nil {
		ln := Listen(t, 0)
		g.UseListener(ln)
		return "http://" + ln.Addr().String()
	}
	addr, err := g.Listen()
	require.NoError(t, err)
	return "http://" + addr.String()
}

// Start adds a worker to the roster.
func (f *Fleet) Start(role pools.Role, id string, o Options, log *slog.Logger) {
	f.T.Helper()
	cfg := devfleet.WorkerConfig{
		Engine: engine.Config{Role: string(role), ID: id, Speedup: o.Speedup},
		Host:   "127.0.0.1", ModelInput: "text", Drain: time.Second,
	}
	if o.ModelInput != "" {
		cfg.ModelInput = o.ModelInput
	}
	place(f.T, &cfg)
	if o.Worker != nil {
		o.Worker(&cfg)
	}
	var bus wire.Bus = f.Bus
	if o.Bus != nil {
		bus = o.Bus(bus)
	}
	w, err := devfleet.NewWorker(cfg, stack.Links{Bus: bus}, log)
	require.NoError(f.T, err)
	f.Run(id, w)
	f.Put(w.Record())
}

// Run has a worker serve until the fleet ends or it is killed.
func (f *Fleet) Run(id string, w *devfleet.Worker) {
	ctx, cancel := context.WithCancel(context.Background())
	running := &Worker{Worker: w, Done: make(chan struct{})}
	running.Kill = func() {
		w.Cut()
		cancel()
		<-running.Done
	}
	f.Workers[id] = running
	f.Group.Go(func() {
		defer close(running.Done)
		_ = w.Run(ctx) // a cut worker's listeners fail
	})
}

// Eventually waits for a condition, long enough for a busy machine that hashes etcd's passwords under -race.
func (f *Fleet) Eventually(what string, ok func() bool) {
	f.T.Helper()
	f.within(time.Minute, what, ok)
}

func (f *Fleet) within(limit time.Duration, what string, ok func() bool) {
	f.T.Helper()
	deadline := time.Now().Add(limit)
	for !ok() {
		if time.Now().After(deadline) {
			f.T.Fatalf("never came true: %s; held: %q", what, f.Books())
		}
		<-time.After(time.Millisecond)
	}
}

// Get reads a JSON answer.
func (f *Fleet) Get(path string, into any) {
	f.T.Helper()
	res, err := f.look(path)
	require.NoError(f.T, err)
	defer res.Body.Close()
	require.NoError(f.T, json.NewDecoder(res.Body).Decode(into), "%s", path)
}

func (f *Fleet) Status(path string) int {
	res, err := f.HTTP().Get(f.URL + path)
	if err != nil {
		return 0
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, res.Body)
	return res.StatusCode
}

// Relayed is who moves the chunks of answers: the tests are the same for both.
var Relayed = flag.String("relay", "auto", "loop or goroutine: who moves the chunks of answers")

// Main is TestMain of the packages whose tests use fleets. It has fasthttp start its clock, a goroutine that never
// ends, before the first bubble, which it must not belong to.
func Main(m *testing.M) (status int) {
	app := fiber.New(fiber.Config{DisableStartupMessage: true})
	if _, err := app.Test(httptest.NewRequest(http.MethodGet, "/", nil)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}
