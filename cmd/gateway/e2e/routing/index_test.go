package routing

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/cmd/gateway/service"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/natsbus"
	"github.com/tandem-pd/tandem/kv/follow"
	"github.com/tandem-pd/tandem/kv/view"
	"github.com/tandem-pd/tandem/kv/wire"
	"github.com/tandem-pd/tandem/lab/fleet"
	"github.com/tandem-pd/tandem/lab/testkit"
	"github.com/tandem-pd/tandem/pools"
)

// sharedIndex is a `gateway index` on an address of its own, that can be stopped and started again.
type sharedIndex struct {
	addr string
	ln   net.Listener // until it is first started
	stop func()
}

// reserveIndex takes an address for an index that is started later.
func reserveIndex(t *testing.T) *sharedIndex {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return &sharedIndex{addr: ln.Addr().String(), ln: ln}
}

func (x *sharedIndex) url() string { return "http://" + x.addr }

// start runs the index on the fleet's bus until it is stopped or the test ends.
func (x *sharedIndex) start(f *fleet.Fleet, cfg service.Config) {
	f.T.Helper()
	ln := x.ln
	if x.ln = nil; ln == nil {
		f.Eventually("the index's address is free", func() bool {
			var err error
			ln, err = net.Listen("tcp", x.addr)
			return err == nil
		})
	}
	cfg.Drain = time.Millisecond
	follow := follow.Config{RetryMin: time.Millisecond, RetryMax: 10 * time.Millisecond}
	var bus wire.Bus
	if f.Bus != nil {
		bus = f.Bus
	}
	s := service.NewIndex(cfg, follow, bus, http.NotFoundHandler(), slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx, ln) }()
	stopped := false
	x.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		assert.NoError(f.T, <-ended, "index")
	}
	f.T.Cleanup(x.stop)
	f.Eventually("the index is ready", s.Ready)
}

// asking makes a gateway follow no events and use the indexes.
func asking(xs ...*sharedIndex) func(c *stack.GatewayConfig) {
	return func(c *stack.GatewayConfig) {
		fleet.WithoutEvents(c)
		c.Remote = service.ClientConfig{Timeout: time.Second, Every: 20 * time.Millisecond,
			Breaker: fault.BreakerConfig{OpenFor: 20 * time.Millisecond}}
		for _, x := range xs {
			c.Remote.URLs = append(c.Remote.URLs, x.url())
		}
	}
}

// anotherGateway is one more gateway in front of the same workers. It follows no bus.
func anotherGateway(f *fleet.Fleet, configure func(c *stack.GatewayConfig)) *fleet.Fleet {
	f.T.Helper()
	cfg := fleet.GatewayConfig()
	configure(&cfg)
	return f.Another(cfg, stack.Links{})
}

// chooseBy returns a gateway's choice of workers for a prompt without running it.
func chooseBy(f *fleet.Fleet, prompt string) *fleet.Nvext {
	f.T.Helper()
	return f.Nvext(f.Good(fleet.CompletionPath, `{"model":"tandem-sim","max_tokens":2,"prompt":"`+prompt+
		`","nvext":{"annotations":["query_instance_id:"],"extra_fields":["routing"]}}`))
}

// prefilled runs a prompt and returns its prefill worker and the tokens that worker had cached.
func prefilledBy(f *fleet.Fleet, prompt string) (worker string, cached int) {
	f.T.Helper()
	a := f.Good(fleet.CompletionPath, `{"model":"tandem-sim","max_tokens":2,"prompt":"`+prompt+`","nvext":{"extra_fields":["worker_id"]}}`)
	c := f.Parse(a.Body)
	return c.Nvext.WorkerID.Prefill, c.Usage.Details.Cached
}

func article(i int) string {
	return strings.Repeat(fmt.Sprint("Document ", i, ". ", fleet.Long), 4)
}

// Two gateways that follow no events send a prompt to the worker that has it, whichever of them saw it first, by what
// their indexes report. While no index answers, a gateway routes by what it has seen itself; one that is back answers
// again, with what the workers publish.
func TestIndexesComeAndGo(t *testing.T) {
	t.Parallel()
	x, y := reserveIndex(t), reserveIndex(t)
	f := fleet.New(t, fleet.Options{Prefill: 3, Decode: 1, Gateway: asking(x, y)})
	x.start(f, service.Config{})
	y.start(f, service.Config{})
	g := anotherGateway(f, asking(x, y))
	report := func(by *fleet.Fleet, doc int, worker string) {
		t.Helper()
		f.Eventually("both gateways are updated", func() bool {
			c := chooseBy(by, article(doc))
			return c.Routing.Remote == "answered" && c.Routing.Predicted > 0 && c.WorkerID.Prefill == worker
		})
	}
	worker, _ := prefilledBy(f, article(0))
	report(g, 0, worker)

	x.stop()
	report(g, 0, worker) // by y
	worker1, _ := prefilledBy(g, article(1))
	report(f, 1, worker1)

	y.stop()
	for i := 2; i < 8; i++ {
		served, _ := prefilledBy(f, article(i))
		if again, cached := prefilledBy(f, article(i)); again != served || cached == 0 {
			t.Errorf("alone, the gateway sent a prompt to %s and its sibling to %s, which had %d tokens", served, again, cached)
		}
	}
	if c := chooseBy(f, article(7)); !slices.Contains([]string{"unreachable", "circuit_open"}, c.Routing.Remote) {
		t.Errorf("no index is there, and the outcome is %q", c.Routing.Remote)
	}
	f.Eventually("the circuit opens", func() bool {
		chooseBy(f, article(7))
		return f.Value("tandem_kv_remote_index_lookup_seconds", string(service.CircuitOpen)) > 0 &&
			f.Value("tandem_kv_remote_index_registered", x.addr) == 0
	})

	x.start(f, service.Config{}) // empty: the gateways register, the workers publish it all
	report(f, 1, worker1)
	report(g, 0, worker)
	f.Eventually("the gateways see to it again", func() bool { return f.Value("tandem_kv_remote_index_registered", x.addr) == 1 })
	if again, cached := prefilledBy(g, article(0)+"And then?"); again != worker || cached == 0 {
		t.Errorf("the sibling was sent to %s, which had %d tokens; %s has the prompt", again, cached, worker)
	}
	for _, f := range []*fleet.Fleet{f, g} {
		assert.True(t, f.Value("tandem_kv_remote_index_lookup_seconds", string(service.Answered)) != 0,
			"no look-up is counted as answered")
		if n := f.Value("tandem_kv_remote_index_ranks", x.addr); n != 3 { // decode workers are chosen by load
			t.Errorf("the index lists %v ranks, want 3", n)
		}
		f.Eventually("the log has what came of it", func() bool { return strings.Contains(f.Logs.String(), "remote_index=answered") })
	}
	f.Gateway.Roster.Remove("prefill-2")
	g.Gateway.Roster.Remove("prefill-2")
	f.Eventually("a worker that leaves both is taken out", func() bool {
		return f.Value("tandem_kv_remote_index_ranks", x.addr) == 2 && g.Value("tandem_kv_remote_index_ranks", x.addr) == 2
	})
	f.Idle()
}

// TestIndexIsRestoredFromAGateway starts a second gateway of a group: it has the first one's view of a worker's cache,
// and the worker gets no request for a snapshot. With the first gone, a third sends one to the worker.
func TestIndexIsRestoredFromAGateway(t *testing.T) {
	t.Parallel()
	url := fleet.StartNATS(t)
	log := slog.New(slog.DiscardHandler)
	over := func() wire.Bus {
		conn, err := nats.Connect(url)
		require.NoError(t, err)
		t.Cleanup(conn.Close)
		return natsbus.OverNATS(conn, natsbus.PendingLimits{}, log)
	}
	w := pools.Worker{ID: "w", Incarnation: "1", Model: "org/model", Role: pools.Both, Engine: "sim", Address: "http://127.0.0.1:9",
		BlockSize: 16, KVEvents: "nats"}
	p, err := view.NewPublisher(view.PublisherConfig{Source: wire.Source{Pool: "org/model/both", Worker: w.ID}}, over(), log)
	require.NoError(t, err)
	start := func(name string) (f *fleet.Fleet, stop func()) {
		cfg := fleet.GatewayConfig()
		cfg.Replicas.Complete(cfg.Prefix)
		cfg.Replicas.Group, cfg.Replicas.Name = "test", name
		f = fleet.Bare(t, cfg, stack.Links{Bus: over(), Group: fleet.Join(t, url)}, slog.LevelInfo)
		f.Put(w)
		stop = f.RunGateway()
		f.Eventually(name+" knows the worker's cache", func() bool {
			s := f.Sources()["w"]
			return s.State == "live" && s.Blocks == 300
		})
		return f, stop
	}
	ctx, end := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	t.Cleanup(func() {
		end()
		assert.NoError(t, <-ended)
	})
	for base := range uint32(3) {
		require.NoError(t, p.Publish([]wire.Event{testkit.Chain(base, 100)}))
	}
	_, stopFirst := start("first")
	asked := p.Stats()
	second, stopSecond := start("second")
	if now := p.Stats(); now.Snapshots != asked.Snapshots || now.Rings != asked.Rings || second.Sources()["w"].Repaired["peer"] != 1 {
		t.Errorf("the worker was asked for %d snapshots and %d rings: %+v", now.Snapshots-asked.Snapshots, now.Rings-asked.Rings,
			second.Sources()["w"])
	}
	stopFirst()
	stopSecond()
	third, _ := start("third")
	if s := third.Sources()["w"]; s.Repaired["peer"] != 0 ||
		s.Repaired["snapshot"]+s.Repaired["ring"] != 1 { // the ring, where a heartbeat comes first
		t.Errorf("no gateway is there, and %+v", s)
	}
}
