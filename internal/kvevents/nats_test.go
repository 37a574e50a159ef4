package kvevents

import (
	"log/slog"
	"net/url"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/tandem-pd/tandem/internal/kvevents/eventstest"
	"github.com/tandem-pd/tandem/internal/kvevents/follow"
	"github.com/tandem-pd/tandem/internal/kvevents/natsbus"
	"github.com/tandem-pd/tandem/internal/kvevents/publish"
	"github.com/tandem-pd/tandem/internal/kvevents/wire"
)

func startNATS(t *testing.T, port int) *natsbus.Server {
	t.Helper()
	s, err := natsbus.StartServer(natsbus.ServerConfig{Port: port})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// connect fails fast while the server is away instead of keeping messages for it, so that they are lost.
func connect(t *testing.T, s *natsbus.Server) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(s.URL(), nats.MaxReconnects(-1), nats.ReconnectWait(5*time.Millisecond),
		nats.ReconnectBufSize(-1), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func TestEventsFlowOverNATS(t *testing.T) {
	t.Parallel()
	s := startNATS(t, 0)
	log := slog.New(slog.DiscardHandler)
	pub, sub := natsbus.OverNATS(connect(t, s), natsbus.PendingLimits{}, log), natsbus.OverNATS(connect(t, s), natsbus.PendingLimits{}, log)
	r := newRig(t, follow.Config{}, pub, sub)
	g := eventstest.NewEngine(1, 16)
	p, _ := r.publisher(publish.Config{Source: wire.Source{Pool: eventstest.Pool, Worker: "w.1", Rank: 0}, Heartbeat: 20 * time.Millisecond})
	for range 50 {
		if err := p.Publish([]wire.Event{g.Store(400)}); err != nil { // more than one message can carry, as a snapshot
			t.Fatal(err)
		}
	}
	r.sub.Track(eventstest.Pool, "w.1", []int{0}, 16, 0)
	for range 300 {
		if err := p.Publish(g.Step()); err != nil {
			t.Fatal(err)
		}
	}
	within(t, 20*time.Second, 5*time.Millisecond, "live", func() bool { return r.settled(g, p, "w.1") })
}

func TestNATSRestarted(t *testing.T) {
	t.Parallel()
	s := startNATS(t, 0)
	log := slog.New(slog.DiscardHandler)
	pubConn := connect(t, s)
	subConn := connect(t, s)
	cfg := follow.Config{RetryMin: 10 * time.Millisecond, SilentAfter: 500 * time.Millisecond, PredictAfter: 1500 * time.Millisecond}
	r := newRig(t, cfg, natsbus.OverNATS(pubConn, natsbus.PendingLimits{}, log), natsbus.OverNATS(subConn, natsbus.PendingLimits{}, log))
	g := eventstest.NewEngine(1, 16)
	p, _ := r.publisher(publish.Config{Source: wire.Source{Pool: eventstest.Pool, Worker: "w", Rank: 0}, Heartbeat: 20 * time.Millisecond})
	r.sub.Track(eventstest.Pool, "w", []int{0}, 16, 0)
	if err := p.Publish([]wire.Event{g.Store(5)}); err != nil {
		t.Fatal(err)
	}
	within(t, 10*time.Second, 2*time.Millisecond, "live", func() bool { return r.settled(g, p, "w") })

	u, err := url.Parse(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	within(t, 10*time.Second, 2*time.Millisecond, "the publisher is cut off", func() bool { return !pubConn.IsConnected() })
	within(t, 10*time.Second, 2*time.Millisecond, "the source is silent", func() bool { return r.status("w").State == follow.Silent })
	failed := 0
	for range 20 {
		if p.Publish(g.Step()) != nil {
			failed++
		}
	}
	if failed == 0 {
		t.Error("no message was lost")
	}
	if n := r.idx.Of("w", 0).Blocks(); n != 5 {
		t.Errorf("%d blocks while NATS is away, want what was known before", n)
	}
	startNATS(t, port)
	within(t, 20*time.Second, 5*time.Millisecond, "healed", func() bool { return r.settled(g, p, "w") })
	if p.Stats().Failed == 0 {
		t.Error("losses are not counted")
	}
	if s := r.status("w"); s.Repaired[follow.ByRing] == 0 || s.Repaired[follow.BySnapshot] > 1 {
		t.Errorf("healed by %v, want the ring", s.Repaired)
	}

	// The subscriber alone loses its connection, and messages with it.
	if err := subConn.ForceReconnect(); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if err := p.Publish(g.Step()); err != nil {
			t.Fatal(err)
		}
	}
	within(t, 20*time.Second, 5*time.Millisecond, "healed after its own reconnect", func() bool { return r.settled(g, p, "w") })

	// The publisher dies without a word: its connection is closed under it.
	pubConn.Close()
	within(t, 10*time.Second, 2*time.Millisecond, "the publisher is missed", func() bool { return r.status("w").State == follow.Silent })
	within(t, 10*time.Second, 2*time.Millisecond, "the publisher is given up", func() bool { return r.status("w").State == follow.Predicted })
}

// slowBus lets no message through to the subscriber until it is opened.
type slowBus struct {
	wire.Bus
	open chan struct{}
}

func (b *slowBus) Subscribe(subject string, handle func(*nats.Msg), slow func(int)) (func(), error) {
	return b.Bus.Subscribe(subject, func(m *nats.Msg) { <-b.open; handle(m) }, slow)
}

func TestSlowConsumerHeals(t *testing.T) {
	s := startNATS(t, 0)
	log := slog.New(slog.DiscardHandler)
	pubConn := connect(t, s)
	sub := &slowBus{natsbus.OverNATS(connect(t, s), natsbus.PendingLimits{Messages: 4}, log), make(chan struct{})}
	r := newRig(t, follow.Config{RetryMin: 10 * time.Millisecond}, natsbus.OverNATS(pubConn, natsbus.PendingLimits{}, log), sub)
	g := eventstest.NewEngine(1, 16)
	p, _ := r.publisher(publish.Config{Source: wire.Source{Pool: eventstest.Pool, Worker: "w", Rank: 0}, Heartbeat: 20 * time.Millisecond})
	r.sub.Track(eventstest.Pool, "w", []int{0}, 16, 0)
	for range 200 {
		if err := p.Publish(g.Step()); err != nil {
			t.Fatal(err)
		}
	}
	if err := pubConn.Flush(); err != nil {
		t.Fatal(err)
	}
	within(t, 10*time.Second, 2*time.Millisecond, "messages are dropped and counted", func() bool {
		return r.counted("kv_events_dropped_total", "") > 0
	})
	close(sub.open)
	within(t, 20*time.Second, 5*time.Millisecond, "healed", func() bool { return r.settled(g, p, "w") })
	for range 20 {
		if err := p.Publish(g.Step()); err != nil {
			t.Fatal(err)
		}
	}
	within(t, 20*time.Second, 5*time.Millisecond, "and it goes on", func() bool { return r.settled(g, p, "w") })
}
