package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/tandem-pd/tandem/cmd/gateway/service"
	"github.com/tandem-pd/tandem/cmd/gateway/service/remote"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/kvevents/follow"
	"github.com/tandem-pd/tandem/internal/kvevents/wire"
	"github.com/tandem-pd/tandem/lab/porttest"
)

// sharedIndex is a `gateway index` on an address of its own, that can be stopped and
// started again.
type sharedIndex struct {
	addr string
	ln   net.Listener // until it is first started
	stop func()
}

// reserveIndex takes an address for an index that is started later.
func reserveIndex(t *testing.T) *sharedIndex {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return &sharedIndex{addr: ln.Addr().String(), ln: ln}
}

func (x *sharedIndex) url() string { return "http://" + x.addr }

// start runs the index on the fleet's bus until it is stopped or the test ends.
func (x *sharedIndex) start(f *fleet, cfg service.Config) {
	f.t.Helper()
	ln := x.ln
	if x.ln = nil; ln == nil {
		f.eventually("the index's address is free", func() bool {
			var err error
			ln, err = net.Listen("tcp", x.addr)
			return err == nil
		})
	}
	cfg.Drain = time.Millisecond
	follow := follow.Config{RetryMin: time.Millisecond, RetryMax: 10 * time.Millisecond}
	var bus wire.Bus
	if f.bus != nil {
		bus = f.bus
	}
	s, err := service.NewIndex(cfg, follow, bus, http.NotFoundHandler(), slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		f.t.Fatal(err)
	}
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
		if err := <-ended; err != nil {
			f.t.Errorf("index: %v", err)
		}
	}
	f.t.Cleanup(x.stop)
	f.eventually("the index is ready", s.Ready)
}

// asking makes a gateway follow no events and ask the indexes.
func asking(xs ...*sharedIndex) func(c *stack.GatewayConfig) {
	return func(c *stack.GatewayConfig) {
		withoutEvents(c)
		c.Remote = remote.Config{Timeout: time.Second, Every: 20 * time.Millisecond, Breaker: fault.BreakerConfig{OpenFor: 20 * time.Millisecond}}
		for _, x := range xs {
			c.Remote.URLs = append(c.Remote.URLs, x.url())
		}
	}
}

// another is one more gateway in front of the same workers. It follows no bus.
func (f *fleet) another(configure func(c *stack.GatewayConfig)) *fleet {
	f.t.Helper()
	b := &fleet{t: f.t, logs: &logBuffer{}, reg: prometheus.NewRegistry()}
	cfg := gatewayConfig()
	configure(&cfg)
	var err error
	if b.gateway, err = stack.NewGateway(cfg, stack.Links{}, slog.New(slog.NewTextHandler(b.logs, nil)), b.reg); err != nil {
		f.t.Fatal(err)
	}
	for _, w := range f.workers {
		if len(cfg.Workers.Static) > 0 {
			break // it finds them by itself
		}
		if err := b.gateway.Roster.Put(w.Record()); err != nil {
			f.t.Fatal(err)
		}
	}
	b.runGateway()
	return b
}

// choice is what a gateway says of a prompt's workers without running it.
type choice struct {
	Nvext struct {
		WorkerID struct {
			Prefill string `json:"prefill_worker_id"`
			Decode  string `json:"decode_worker_id"`
		} `json:"worker_id"`
		Routing struct {
			Predicted int    `json:"predicted_cached_tokens"`
			Remote    string `json:"remote_index"`
		} `json:"routing"`
	} `json:"nvext"`
}

func (f *fleet) choose(prompt string) choice {
	f.t.Helper()
	a := f.post(completionPath, `{"model":"tandem-sim","max_tokens":2,"prompt":"`+prompt+
		`","nvext":{"annotations":["query_instance_id:"],"extra_fields":["routing"]}}`)
	var c choice
	if err := json.Unmarshal(a.body, &c); err != nil || a.status != http.StatusOK {
		f.t.Fatalf("status %d, %v: %s", a.status, err, a.body)
	}
	return c
}

// prefilled runs a prompt and returns its prefill worker and the tokens that worker had
// cached.
func (f *fleet) prefilled(prompt string) (worker string, cached int) {
	f.t.Helper()
	a := f.post(completionPath, `{"model":"tandem-sim","max_tokens":2,"prompt":"`+prompt+`","nvext":{"extra_fields":["worker_id"]}}`)
	if a.status != http.StatusOK {
		f.t.Fatalf("status %d: %s", a.status, a.body)
	}
	c := f.parse(a.body)
	return c.Nvext.WorkerID.Prefill, c.Usage.Details.Cached
}

func article(i int) string { return strings.Repeat(fmt.Sprint("Document ", i, ". ", long), 4) }

// Two gateways that follow no events send siblings of a prompt to the worker that
// has it, whichever of them saw it first, by what the index they share tells. They
// register the workers there, and a worker that leaves both is taken out.
func TestGatewaysShareAnIndex(t *testing.T) {
	x := reserveIndex(t)
	f := newFleet(t, options{prefill: 3, decode: 1, gateway: asking(x)})
	x.start(f, service.Config{})
	g := f.another(asking(x))
	for i := range 6 {
		first, then := f, g
		if i%2 == 1 {
			first, then = g, f
		}
		worker, _ := first.prefilled(article(i))
		f.eventually("the other gateway is told", func() bool {
			c := then.choose(article(i))
			return c.Nvext.Routing.Remote == "answered" && c.Nvext.Routing.Predicted > 0 && c.Nvext.WorkerID.Prefill == worker
		})
		if again, cached := then.prefilled(article(i) + "And then?"); again != worker || cached == 0 {
			t.Errorf("the sibling was sent to %s, which had %d tokens; %s has the prompt", again, cached, worker)
		}
	}
	for _, f := range []*fleet{f, g} {
		if n := f.value("tandem_kv_remote_index_lookups_total", string(remote.Answered)); n < 6 {
			t.Errorf("%v look-ups are counted as answered", n)
		}
		if n := f.value("tandem_kv_remote_index_ranks"); n != 3 { // decode workers are chosen by load
			t.Errorf("the index lists %v ranks, want 3", n)
		}
		f.eventually("the log says what came of it", func() bool { return strings.Contains(f.logs.String(), "remote_index=answered") })
	}
	for _, gateway := range []*fleet{f, g} {
		gateway.gateway.Roster.Remove("prefill-2")
	}
	f.eventually("the worker is taken out", func() bool {
		return f.value("tandem_kv_remote_index_ranks") == 2 && g.value("tandem_kv_remote_index_ranks") == 2
	})
	f.idle()
}

// While no index answers, a gateway routes by what it has seen itself; one that is
// back answers again, with what it took over from its sibling.
func TestIndexesComeAndGo(t *testing.T) {
	x, y := reserveIndex(t), reserveIndex(t)
	f := newFleet(t, options{prefill: 3, decode: 1, gateway: asking(x, y)})
	x.start(f, service.Config{})
	y.start(f, service.Config{})
	g := f.another(asking(x, y))
	report := func(by *fleet, doc int, worker string) {
		t.Helper()
		f.eventually("both gateways are told", func() bool {
			c := by.choose(article(doc))
			return c.Nvext.Routing.Remote == "answered" && c.Nvext.Routing.Predicted > 0 && c.Nvext.WorkerID.Prefill == worker
		})
	}
	worker, _ := f.prefilled(article(0))
	report(g, 0, worker)

	x.stop()
	report(g, 0, worker) // by y
	worker1, _ := g.prefilled(article(1))
	report(f, 1, worker1)

	x.start(f, service.Config{RestoreFrom: []string{y.url()}})
	y.stop()
	report(f, 0, worker) // by x, which was not there for the second prompt
	report(f, 1, worker1)

	x.stop() // nobody answers
	for i := 2; i < 8; i++ {
		served, _ := f.prefilled(article(i))
		if again, cached := f.prefilled(article(i)); again != served || cached == 0 {
			t.Errorf("alone, the gateway sent a prompt to %s and its sibling to %s, which had %d tokens", served, again, cached)
		}
	}
	if c := f.choose(article(7)); !slices.Contains([]string{"unreachable", "circuit_open"}, c.Nvext.Routing.Remote) {
		t.Errorf("nobody is there, and the outcome is %q", c.Nvext.Routing.Remote)
	}
	f.eventually("the circuit opens", func() bool {
		f.choose(article(7))
		return f.value("tandem_kv_remote_index_circuit", x.addr, "open") == 1 && f.value("tandem_kv_remote_index_registered", x.addr) == 0
	})

	x.start(f, service.Config{}) // empty: the gateways register, the workers tell it all
	report(f, 1, worker1)
	report(g, 0, worker)
	f.eventually("the gateways see to it again", func() bool { return f.value("tandem_kv_remote_index_registered", x.addr) == 1 })
	f.idle()
}

// TestRemoteIndexIsQuick prints what a look-up adds to a request, over loopback and
// with everything in one process.
func TestRemoteIndexIsQuick(t *testing.T) {
	x := reserveIndex(t)
	f := newFleet(t, options{prefill: 2, decode: 1, gateway: asking(x)})
	x.start(f, service.Config{})
	f.eventually("it answers", func() bool { return f.choose(article(0)).Nvext.Routing.Remote == "answered" })
	var took []float64
	for i := range 100 {
		f.choose(article(i))
	}
	families, err := f.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == "tandem_kv_remote_index_lookup_seconds" {
			h := family.GetMetric()[0].GetHistogram()
			took = append(took, h.GetSampleSum()/float64(h.GetSampleCount()))
		}
	}
	if len(took) != 1 || took[0] <= 0 || took[0] > 0.1 {
		t.Fatalf("a look-up takes %v s", took)
	}
	t.Logf("a look-up adds %.3f ms on average", took[0]*1e3)
}

// Engines that publish over ZMQ are registered by the gateway that has their URLs,
// and the index connects to them: neither NATS nor etcd, and no event comes to the
// gateway. One that starts later is told at once.
func TestIndexFollowsEnginesOverZMQ(t *testing.T) {
	x := reserveIndex(t)
	cfg := gatewayConfig()
	asking(x)(&cfg)
	ports := map[string][3]int{"z1": {porttest.Free(t), porttest.Free(t), porttest.Free(t)}, "z2": {porttest.Free(t), porttest.Free(t), porttest.Free(t)}}
	for _, id := range []string{"z1", "z2"} {
		p := ports[id]
		cfg.Workers.Static = append(cfg.Workers.Static, endpoint(t, "", fmt.Sprintf(
			"http://127.0.0.1:%d,id=%s,kv-events=tcp://127.0.0.1:%d,kv-replay=tcp://127.0.0.1:%d,kv-topic=kv@%s", p[0], id, p[1], p[2], id)))
	}
	f := newStatic(t, cfg)
	for id, p := range ports {
		f.zmqWorker(id, p[0], p[1], p[2], wire.VLLM)
	}
	f.bus = nil
	x.start(f, service.Config{})
	f.eventually("the index follows both", func() bool { return f.value("tandem_kv_remote_index_ranks") == 2 })
	if len(f.sources()) != 0 {
		t.Errorf("the gateway follows events itself: %v", f.sources())
	}
	a := f.post(completionPath, `{"model":"tandem-sim","max_tokens":2,"prompt":"`+article(1)+`","nvext":{"extra_fields":["worker_id"]}}`)
	worker := f.parse(a.body).Nvext.WorkerID.Decode
	b := f.another(func(c *stack.GatewayConfig) {
		asking(x)(c)
		c.Workers.Static, c.Workers.Probe.Every = cfg.Workers.Static, 50*time.Millisecond
	})
	b.eventually("a gateway that has just started is told", func() bool {
		if b.status("/health") != http.StatusOK {
			return false
		}
		c := b.choose(article(1))
		return c.Nvext.Routing.Remote == "answered" && c.Nvext.Routing.Predicted > 0 && c.Nvext.WorkerID.Decode == worker
	})
}
