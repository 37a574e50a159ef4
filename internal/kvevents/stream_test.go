package kvevents

import (
	"errors"
	"log/slog"
	"net"
	"net/url"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/tandem-pd/tandem/internal/kvevents/eventstest"
	"github.com/tandem-pd/tandem/internal/kvevents/follow"
	"github.com/tandem-pd/tandem/internal/kvevents/natsbus"
	"github.com/tandem-pd/tandem/internal/kvevents/publish"
	"github.com/tandem-pd/tandem/internal/kvevents/wire"
)

// line is a network that can be cut: a dialer whose connections end, and that makes no others, while it is.
type line struct {
	mu    sync.Mutex
	cut   bool
	conns []net.Conn
}

var errCut = errors.New("the line is cut")

func (l *line) Dial(network, address string) (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut {
		return nil, errCut
	}
	c, err := net.DialTimeout(network, address, 5*time.Second)
	if err == nil {
		l.conns = append(l.conns, c)
	}
	return c, err
}

func (l *line) set(cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = cut
	if cut {
		for _, c := range l.conns {
			_ = c.Close()
		}
		l.conns = nil
	}
}

// jetServer is a JetStream server on a folder, and its port.
func jetServer(t *testing.T, dir string, port int) (*natsbus.Server, int) {
	t.Helper()
	s, err := natsbus.StartServer(natsbus.ServerConfig{Port: port, JetStream: true, Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	u, err := url.Parse(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	if port, err = strconv.Atoi(u.Port()); err != nil {
		t.Fatal(err)
	}
	return s, port
}

// durable is the durable bus of a connection of its own over l, which may be nil.
func durable(t *testing.T, url string, cfg natsbus.StreamConfig, l *line) *natsbus.Stream {
	t.Helper()
	options := []nats.Option{nats.MaxReconnects(-1), nats.ReconnectWait(5 * time.Millisecond), nats.ReconnectBufSize(-1),
		nats.RetryOnFailedConnect(true), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})}
	if l != nil {
		options = append(options, nats.SetCustomDialer(l))
	}
	nc, err := nats.Connect(url, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	s, err := natsbus.OverStream(nc, cfg, natsbus.PendingLimits{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// ready waits until a durable bus has found its stream.
func ready(t *testing.T, s *natsbus.Stream) {
	t.Helper()
	within(t, 10*time.Second, time.Millisecond, "the stream is found", func() bool {
		return s.Stats().Found
	})
}

var quickly = follow.Config{RetryMin: 10 * time.Millisecond, SilentAfter: time.Second}

func say(t *testing.T, p *publish.Publisher, g *eventstest.Engine, steps int) {
	t.Helper()
	for range steps {
		if err := p.Publish(g.Step()); err != nil {
			t.Fatal(err)
		}
	}
}

func beating(worker string) publish.Config {
	return publish.Config{Source: wire.Source{Pool: eventstest.Pool, Worker: worker, Rank: 0}, Heartbeat: 20 * time.Millisecond}
}

var _ follow.Historian = (*natsbus.Stream)(nil)

func TestAwaySubscriberLosesNothing(t *testing.T) {
	t.Parallel()
	server, _ := jetServer(t, t.TempDir(), 0)
	l := &line{}
	pub, sub := durable(t, server.URL(), natsbus.StreamConfig{}, nil), durable(t, server.URL(), natsbus.StreamConfig{}, l)
	ready(t, pub)
	ready(t, sub)
	r := newRig(t, quickly, pub, sub)
	g := eventstest.NewEngine(1, 16)
	p, _ := r.publisher(beating("w"))
	r.sub.Track(eventstest.Pool, "w", []int{0}, 16, 0)
	say(t, p, g, 20)
	within(t, 20*time.Second, 5*time.Millisecond, "live", func() bool { return r.settled(g, p, "w") })
	before, asked := r.status("w"), p.Stats()

	l.set(true)
	within(t, 10*time.Second, time.Millisecond, "silent", func() bool { return r.status("w").State == follow.Silent })
	say(t, p, g, 2000) // more than the ring holds
	within(t, 10*time.Second, time.Millisecond, "the stream has them", func() bool { return pub.Stats().Pending == 0 })
	l.set(false)
	within(t, 20*time.Second, 5*time.Millisecond, "it goes on where it was", func() bool { return r.settled(g, p, "w") })
	s, now := r.status("w"), p.Stats()
	if s.Gaps != before.Gaps || s.Repaired != before.Repaired || now.Snapshots != asked.Snapshots || now.Rings != asked.Rings {
		t.Errorf("it cost %d gaps, %d snapshots, %d runs", s.Gaps-before.Gaps, now.Snapshots-asked.Snapshots, now.Rings-asked.Rings)
	}
	if f := pub.Stats(); f.Failed != 0 || f.Acked != now.Seq {
		t.Errorf("%d of %d messages taken, %d failed", f.Acked, now.Seq, f.Failed)
	}
}

// The server ends and comes back with its files; then the gateway does, and asks nobody for anything.
func TestStreamOutlivesServerAndGateway(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	server, port := jetServer(t, dir, 0)
	pub, sub := durable(t, server.URL(), natsbus.StreamConfig{}, nil), durable(t, server.URL(), natsbus.StreamConfig{}, nil)
	ready(t, pub)
	ready(t, sub)
	r := newRig(t, quickly, pub, sub)
	g := eventstest.NewEngine(1, 16)
	p, _ := r.publisher(beating("w"))
	r.sub.Track(eventstest.Pool, "w", []int{0}, 16, 0)
	say(t, p, g, 1500)
	within(t, 20*time.Second, 5*time.Millisecond, "live", func() bool { // and the stream has all of it
		return r.settled(g, p, "w") && pub.Stats().Pending == 0
	})
	asked := p.Stats()

	server.Close()
	within(t, 10*time.Second, time.Millisecond, "silent", func() bool { return r.status("w").State == follow.Silent && !pub.Connected() })
	server, _ = jetServer(t, dir, port)
	within(t, 20*time.Second, 5*time.Millisecond, "live again", func() bool { return pub.Connected() && r.settled(g, p, "w") })
	if now := p.Stats(); now.Snapshots != asked.Snapshots || now.Rings != asked.Rings {
		t.Errorf("%d snapshots and %d runs were asked for", now.Snapshots-asked.Snapshots, now.Rings-asked.Rings)
	}
	say(t, p, g, 50)
	within(t, 20*time.Second, 5*time.Millisecond, "and it goes on", func() bool {
		return r.settled(g, p, "w") && pub.Stats().Pending == 0
	})

	asked = p.Stats()
	again := newRig(t, quickly, pub, durable(t, server.URL(), natsbus.StreamConfig{}, nil))
	ready(t, again.subBus.(*natsbus.Stream))
	again.sub.Track(eventstest.Pool, "w", []int{0}, 16, 0)
	within(t, 20*time.Second, 5*time.Millisecond, "another gateway", func() bool { return again.settled(g, p, "w") })
	if s, now := again.status("w"), p.Stats(); s.Repaired[follow.ByStream] != 1 || now.Snapshots != asked.Snapshots || now.Rings != asked.Rings {
		t.Errorf("%+v; %d snapshots and %d runs were asked for", s, now.Snapshots-asked.Snapshots, now.Rings-asked.Rings)
	}
}

func TestTrimmedStreamTakesASnapshot(t *testing.T) {
	t.Parallel()
	server, _ := jetServer(t, t.TempDir(), 0)
	small := natsbus.StreamConfig{MaxBytes: 64 << 10}
	l := &line{}
	pub, sub := durable(t, server.URL(), small, nil), durable(t, server.URL(), small, l)
	ready(t, pub)
	ready(t, sub)
	r := newRig(t, quickly, pub, sub)
	g := eventstest.NewEngine(1, 16)
	cfg := beating("w")
	cfg.RingMessages = 10
	p, _ := r.publisher(cfg)
	r.sub.Track(eventstest.Pool, "w", []int{0}, 16, 0)
	say(t, p, g, 500)
	within(t, 20*time.Second, 5*time.Millisecond, "live", func() bool { return r.settled(g, p, "w") })
	before := r.status("w")

	l.set(true)
	within(t, 10*time.Second, time.Millisecond, "silent", func() bool { return r.status("w").State == follow.Silent })
	say(t, p, g, 1500)
	within(t, 10*time.Second, time.Millisecond, "the stream has them", func() bool { return pub.Stats().Pending == 0 })
	l.set(false)
	within(t, 20*time.Second, 5*time.Millisecond, "healed", func() bool { return r.settled(g, p, "w") })
	if s := r.status("w"); s.Repaired[follow.BySnapshot] == before.Repaired[follow.BySnapshot] {
		t.Errorf("healed without a snapshot: %v", s.Repaired)
	}

	again := newRig(t, quickly, pub, durable(t, server.URL(), small, nil))
	ready(t, again.subBus.(*natsbus.Stream))
	again.sub.Track(eventstest.Pool, "w", []int{0}, 16, 0)
	within(t, 20*time.Second, 5*time.Millisecond, "another gateway", func() bool { return again.settled(g, p, "w") })
	if s := again.status("w"); s.Repaired[follow.BySnapshot] != 1 || s.Repaired[follow.ByStream] != 0 {
		t.Errorf("%v", s.Repaired)
	}
}

// While a subscriber is away a worker is restarted twice. What the stream has of each process is passed through in order.
func TestStreamOfManyProcesses(t *testing.T) {
	t.Parallel()
	server, _ := jetServer(t, t.TempDir(), 0)
	l := &line{}
	pub, sub := durable(t, server.URL(), natsbus.StreamConfig{}, nil), durable(t, server.URL(), natsbus.StreamConfig{}, l)
	ready(t, pub)
	ready(t, sub)
	r := newRig(t, quickly, pub, sub)
	r.sub.Track(eventstest.Pool, "w", []int{0}, 16, 0)
	g := eventstest.NewEngine(1, 16)
	p, stop := r.publisher(beating("w"))
	say(t, p, g, 100)
	within(t, 20*time.Second, 5*time.Millisecond, "live", func() bool { return r.settled(g, p, "w") })
	before := r.status("w")
	l.set(true)
	within(t, 10*time.Second, time.Millisecond, "silent", func() bool { return r.status("w").State == follow.Silent })
	for seed := range uint64(3) {
		stop()
		g = eventstest.NewEngine(2+seed, 16)
		p, stop = r.publisher(beating("w"))
		say(t, p, g, 100)
	}
	within(t, 10*time.Second, time.Millisecond, "the stream has them", func() bool { return pub.Stats().Pending == 0 })
	began := r.counted("kv_events_messages_total", "new epoch")
	l.set(false)
	within(t, 20*time.Second, 5*time.Millisecond, "the last process", func() bool { return r.settled(g, p, "w") })
	if n := r.counted("kv_events_messages_total", "new epoch") - began; n != 3 {
		t.Errorf("%v processes began, want each of three once", n)
	}
	if s := r.status("w"); s.Repaired != before.Repaired || p.Stats().Snapshots != 0 {
		t.Errorf("%+v", s)
	}

	// One that says nothing yet: its heartbeat alone shows that it is there, and where it stands after the others.
	stop()
	p, _ = r.publisher(beating("w"))
	within(t, 20*time.Second, 5*time.Millisecond, "a silent process", func() bool {
		return r.status("w").Epoch == p.Epoch() && r.idx.Of("w", 0).Blocks() == 0
	})
}

// Without a stream the durable bus is as good as the other: numbers, heartbeats and the ring.
func TestDurableBusWithoutAStream(t *testing.T) {
	t.Parallel()
	server := startNATS(t, 0) // no JetStream
	pub := durable(t, server.URL(), natsbus.StreamConfig{MaxPending: 8, AckTimeout: 50 * time.Millisecond}, nil)
	r := newRig(t, quickly, pub, durable(t, server.URL(), natsbus.StreamConfig{}, nil))
	g := eventstest.NewEngine(1, 16)
	p, _ := r.publisher(beating("w"))
	r.sub.Track(eventstest.Pool, "w", []int{0}, 16, 0)
	refused := 0
	for range 200 {
		if err := p.Publish(g.Step()); err != nil {
			refused++
		}
	}
	within(t, 20*time.Second, 5*time.Millisecond, "whole all the same", func() bool { return r.settled(g, p, "w") })
	if s := pub.Stats(); s.Failed == 0 || s.Acked != 0 || uint64(refused) > s.Failed {
		t.Errorf("%+v, %d refused at once", s, refused)
	}
}

// A durable publisher is understood by a subscriber that is not, and the other way about.
func TestDurableAndPlainMix(t *testing.T) {
	server, _ := jetServer(t, t.TempDir(), 0)
	log := slog.New(slog.DiscardHandler)
	drop := &dropBus{Bus: durable(t, server.URL(), natsbus.StreamConfig{}, nil)}
	ready(t, drop.Bus.(*natsbus.Stream))
	plain := natsbus.OverNATS(connect(t, server), natsbus.PendingLimits{}, log)
	for _, c := range []struct {
		name     string
		pub, sub wire.Bus
	}{{"durable publisher", drop, plain}, {"durable subscriber", plain, durable(t, server.URL(), natsbus.StreamConfig{}, nil)}} {
		r := newRig(t, quickly, c.pub, c.sub)
		if s, ok := c.sub.(*natsbus.Stream); ok {
			ready(t, s)
		}
		g := eventstest.NewEngine(1, 16)
		p, _ := r.publisher(beating(c.name))
		r.sub.Track(eventstest.Pool, c.name, []int{0}, 16, 0)
		say(t, p, g, 200)
		within(t, 20*time.Second, 5*time.Millisecond, c.name, func() bool { return r.settled(g, p, c.name) })
		if c.pub == drop { // the last message is lost: the heartbeat tells
			drop.drop.Store(true)
			say(t, p, g, 1)
			drop.drop.Store(false)
			within(t, 20*time.Second, 5*time.Millisecond, "its heartbeat", func() bool { return r.settled(g, p, c.name) })
		}
	}
}

// A stream that is deleted under everybody is made anew, and what was lost with it is had from the publisher.
func TestDeletedStreamIsMadeAnew(t *testing.T) {
	t.Parallel()
	server, _ := jetServer(t, t.TempDir(), 0)
	js, err := jetstream.New(connect(t, server))
	if err != nil {
		t.Fatal(err)
	}
	pub, sub := durable(t, server.URL(), natsbus.StreamConfig{}, nil), durable(t, server.URL(), natsbus.StreamConfig{}, nil)
	ready(t, pub)
	ready(t, sub)
	r := newRig(t, quickly, pub, sub)
	g := eventstest.NewEngine(1, 16)
	p, _ := r.publisher(beating("w"))
	r.sub.Track(eventstest.Pool, "w", []int{0}, 16, 0)
	say(t, p, g, 100)
	within(t, 20*time.Second, 5*time.Millisecond, "live", func() bool { return r.settled(g, p, "w") })
	if err := js.DeleteStream(t.Context(), "TANDEM_KV"); err != nil {
		t.Fatal(err)
	}
	say(t, p, g, 100)
	within(t, 30*time.Second, 5*time.Millisecond, "healed", func() bool { return r.settled(g, p, "w") })
	within(t, 30*time.Second, 5*time.Millisecond, "nothing is under way", func() bool { return pub.Stats().Pending == 0 })
	acked := pub.Stats().Acked
	within(t, 30*time.Second, 5*time.Millisecond, "messages are taken again", func() bool {
		say(t, p, g, 1)
		return pub.Stats().Acked > acked
	})
	within(t, 30*time.Second, 5*time.Millisecond, "and it goes on", func() bool { return r.settled(g, p, "w") })
}
