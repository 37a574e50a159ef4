package events

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
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
func jetServer(t *testing.T, dir string, port int) (*EmbeddedNATS, int) {
	t.Helper()
	s, err := StartEmbeddedNATS(EmbeddedNATSConfig{Port: port, JetStream: true, Dir: dir})
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
func durable(t *testing.T, url string, cfg StreamConfig, l *line) *Stream {
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
	s, err := OverStream(nc, cfg, PendingLimits{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// ready waits until a durable bus has found its stream.
func ready(t *testing.T, s *Stream) {
	t.Helper()
	within(t, 10*time.Second, time.Millisecond, "the stream is found", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.handle != nil
	})
}

var quickly = SubscriberConfig{RetryMin: 10 * time.Millisecond, SilentAfter: time.Second}

func say(t *testing.T, p *Publisher, g *fakeEngine, steps int) {
	t.Helper()
	for range steps {
		if err := p.Publish(g.step()); err != nil {
			t.Fatal(err)
		}
	}
}

func beating(worker string) PublisherConfig {
	return PublisherConfig{Source: Source{testPool, worker, 0}, Heartbeat: 20 * time.Millisecond}
}

func TestAwaySubscriberLosesNothing(t *testing.T) {
	server, _ := jetServer(t, t.TempDir(), 0)
	l := &line{}
	pub, sub := durable(t, server.URL(), StreamConfig{}, nil), durable(t, server.URL(), StreamConfig{}, l)
	ready(t, pub)
	ready(t, sub)
	r := newRig(t, quickly, pub, sub)
	g := newFakeEngine(1, 16)
	p, _ := r.publisher(beating("w"))
	r.sub.Track(testPool, "w", []int{0}, 16, 0)
	say(t, p, g, 20)
	within(t, 20*time.Second, 5*time.Millisecond, "live", func() bool { return r.settled(g, p, "w") })
	before, asked := r.status("w"), p.Stats()

	l.set(true)
	within(t, 10*time.Second, time.Millisecond, "silent", func() bool { return r.status("w").State == Silent })
	say(t, p, g, 2000) // more than the ring holds
	within(t, 10*time.Second, time.Millisecond, "the stream has them", func() bool { return pub.Stats().Pending == 0 })
	l.set(false)
	within(t, 20*time.Second, 5*time.Millisecond, "it goes on where it was", func() bool { return r.settled(g, p, "w") })
	s, now := r.status("w"), p.Stats()
	if s.Gaps != before.Gaps || s.Healed != before.Healed || now.Snapshots != asked.Snapshots || now.Rings != asked.Rings {
		t.Errorf("it cost %d gaps, %d snapshots, %d runs", s.Gaps-before.Gaps, now.Snapshots-asked.Snapshots, now.Rings-asked.Rings)
	}
	if f := pub.Stats(); f.Failed != 0 || f.Acked != now.Seq {
		t.Errorf("%d of %d messages taken, %d failed", f.Acked, now.Seq, f.Failed)
	}
}

// The server ends and comes back with its files; then the gateway does, and asks nobody for anything.
func TestStreamOutlivesServerAndGateway(t *testing.T) {
	dir := t.TempDir()
	server, port := jetServer(t, dir, 0)
	pub, sub := durable(t, server.URL(), StreamConfig{}, nil), durable(t, server.URL(), StreamConfig{}, nil)
	ready(t, pub)
	ready(t, sub)
	r := newRig(t, quickly, pub, sub)
	g := newFakeEngine(1, 16)
	p, _ := r.publisher(beating("w"))
	r.sub.Track(testPool, "w", []int{0}, 16, 0)
	say(t, p, g, 1500)
	within(t, 20*time.Second, 5*time.Millisecond, "live", func() bool { return r.settled(g, p, "w") })
	asked := p.Stats()

	server.Close()
	within(t, 10*time.Second, time.Millisecond, "silent", func() bool { return r.status("w").State == Silent && !pub.Connected() })
	server, _ = jetServer(t, dir, port)
	within(t, 20*time.Second, 5*time.Millisecond, "live again", func() bool { return pub.Connected() && r.settled(g, p, "w") })
	if now := p.Stats(); now.Snapshots != asked.Snapshots || now.Rings != asked.Rings {
		t.Errorf("%d snapshots and %d runs were asked for", now.Snapshots-asked.Snapshots, now.Rings-asked.Rings)
	}
	say(t, p, g, 50)
	within(t, 20*time.Second, 5*time.Millisecond, "and it goes on", func() bool { return r.settled(g, p, "w") })

	asked = p.Stats()
	again := newRig(t, quickly, pub, durable(t, server.URL(), StreamConfig{}, nil))
	ready(t, again.sub.bus.(*Stream))
	again.sub.Track(testPool, "w", []int{0}, 16, 0)
	within(t, 20*time.Second, 5*time.Millisecond, "another gateway", func() bool { return again.settled(g, p, "w") })
	if s, now := again.status("w"), p.Stats(); s.Healed[ByStream] != 1 || now.Snapshots != asked.Snapshots || now.Rings != asked.Rings {
		t.Errorf("%+v; %d snapshots and %d runs were asked for", s, now.Snapshots-asked.Snapshots, now.Rings-asked.Rings)
	}
}

func TestTrimmedStreamTakesASnapshot(t *testing.T) {
	server, _ := jetServer(t, t.TempDir(), 0)
	small := StreamConfig{MaxBytes: 64 << 10}
	l := &line{}
	pub, sub := durable(t, server.URL(), small, nil), durable(t, server.URL(), small, l)
	ready(t, pub)
	ready(t, sub)
	r := newRig(t, quickly, pub, sub)
	g := newFakeEngine(1, 16)
	cfg := beating("w")
	cfg.RingMessages = 10
	p, _ := r.publisher(cfg)
	r.sub.Track(testPool, "w", []int{0}, 16, 0)
	say(t, p, g, 500)
	within(t, 20*time.Second, 5*time.Millisecond, "live", func() bool { return r.settled(g, p, "w") })
	before := r.status("w")

	l.set(true)
	within(t, 10*time.Second, time.Millisecond, "silent", func() bool { return r.status("w").State == Silent })
	say(t, p, g, 1500)
	within(t, 10*time.Second, time.Millisecond, "the stream has them", func() bool { return pub.Stats().Pending == 0 })
	l.set(false)
	within(t, 20*time.Second, 5*time.Millisecond, "healed", func() bool { return r.settled(g, p, "w") })
	if s := r.status("w"); s.Healed[BySnapshot] == before.Healed[BySnapshot] {
		t.Errorf("healed without a snapshot: %v", s.Healed)
	}

	again := newRig(t, quickly, pub, durable(t, server.URL(), small, nil))
	ready(t, again.sub.bus.(*Stream))
	again.sub.Track(testPool, "w", []int{0}, 16, 0)
	within(t, 20*time.Second, 5*time.Millisecond, "another gateway", func() bool { return again.settled(g, p, "w") })
	if s := again.status("w"); s.Healed[BySnapshot] != 1 || s.Healed[ByStream] != 0 {
		t.Errorf("%v", s.Healed)
	}
}

// While a subscriber is away a worker is restarted twice. What the stream has of each process is passed through in order.
func TestStreamOfManyProcesses(t *testing.T) {
	server, _ := jetServer(t, t.TempDir(), 0)
	l := &line{}
	pub, sub := durable(t, server.URL(), StreamConfig{}, nil), durable(t, server.URL(), StreamConfig{}, l)
	ready(t, pub)
	ready(t, sub)
	r := newRig(t, quickly, pub, sub)
	r.sub.Track(testPool, "w", []int{0}, 16, 0)
	g := newFakeEngine(1, 16)
	p, stop := r.publisher(beating("w"))
	say(t, p, g, 100)
	within(t, 20*time.Second, 5*time.Millisecond, "live", func() bool { return r.settled(g, p, "w") })
	before := r.status("w")
	l.set(true)
	within(t, 10*time.Second, time.Millisecond, "silent", func() bool { return r.status("w").State == Silent })
	for seed := range uint64(3) {
		stop()
		g = newFakeEngine(2+seed, 16)
		p, stop = r.publisher(beating("w"))
		say(t, p, g, 100)
	}
	within(t, 10*time.Second, time.Millisecond, "the stream has them", func() bool { return pub.Stats().Pending == 0 })
	began := valueOf(r.sub.metrics.messages.WithLabelValues(testPool, "new epoch"))
	l.set(false)
	within(t, 20*time.Second, 5*time.Millisecond, "the last process", func() bool { return r.settled(g, p, "w") })
	if n := valueOf(r.sub.metrics.messages.WithLabelValues(testPool, "new epoch")) - began; n != 3 {
		t.Errorf("%v processes began, want each of three once", n)
	}
	if s := r.status("w"); s.Healed != before.Healed || p.Stats().Snapshots != 0 {
		t.Errorf("%+v", s)
	}

	// One that says nothing yet: its heartbeat alone shows that it is there, and where it stands after the others.
	stop()
	p, _ = r.publisher(beating("w"))
	within(t, 20*time.Second, 5*time.Millisecond, "a silent process", func() bool {
		return r.status("w").Epoch == p.Epoch() && r.idx.Blocks(r.idx.Owner("w", 0)) == 0
	})
}

// What a stream has of a process that came before the present one changes nothing.
func TestStreamNeverTakesTheViewBack(t *testing.T) {
	_, idx, _ := newTestView(16)
	f := newFollower(Source{testPool, "w", 0}, idx, 16, 0, new(Batch), newMetrics(nil, nil).pool(testPool))
	s := &Subscriber{followers: map[string]*follower{f.source.EventsSubject(): f}, metrics: newMetrics(nil, nil), log: slog.New(slog.DiscardHandler)}
	now, engines := time.Unix(1e9, 0), uint64(0)
	send := func(epoch, seq, at uint64, data []byte) {
		m := nats.NewMsg(f.source.EventsSubject())
		if data == nil {
			m.Subject = f.source.BeatSubject()
		}
		stamp(m, epoch, seq)
		m.Header.Set(HeaderStream, position{7, at}.String())
		m.Data = data
		s.take(m, now)
	}
	batch := func() []byte {
		engines++
		return AppendBatch(nil, &Batch{Events: []Event{newFakeEngine(engines, 16).store(1)}})
	}
	send(3, 0, 100, nil) // the present process, which has said nothing yet, after a hundred messages of others
	for at := uint64(91); at <= 100; at++ {
		send(1+at/96, 1+at%96, at, batch())
		if f.flow.Epoch() != 3 || f.view.Blocks() != 0 {
			t.Fatalf("message %d of the stream takes the view to epoch %d, %d blocks", at, f.flow.Epoch(), f.view.Blocks())
		}
	}
	send(3, 1, 101, batch())
	send(3, 2, 102, batch())
	send(3, 1, 101, batch())
	if f.flow.Seq() != 2 || f.view.Blocks() != 2 || f.wants() {
		t.Errorf("at %d with %d blocks", f.flow.Seq(), f.view.Blocks())
	}
	if f.recall(&run{epoch: 2, first: 1, messages: [][]byte{batch()}, at: position{7, 99}}, now, time.Second) || f.flow.Epoch() != 3 {
		t.Error("the history of a process before is taken in")
	}
	send(4, 0, 102, nil) // the next process, which has said nothing yet either
	if f.flow.Epoch() != 4 || f.view.Blocks() != 0 {
		t.Errorf("epoch %d, %d blocks", f.flow.Epoch(), f.view.Blocks())
	}
}

// Without a stream the durable bus is as good as the other: numbers, heartbeats and the ring.
func TestDurableBusWithoutAStream(t *testing.T) {
	server := startNATS(t, 0) // no JetStream
	pub := durable(t, server.URL(), StreamConfig{MaxPending: 8, AckTimeout: 50 * time.Millisecond}, nil)
	r := newRig(t, quickly, pub, durable(t, server.URL(), StreamConfig{}, nil))
	g := newFakeEngine(1, 16)
	p, _ := r.publisher(beating("w"))
	r.sub.Track(testPool, "w", []int{0}, 16, 0)
	refused := 0
	for range 200 {
		if err := p.Publish(g.step()); err != nil {
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
	drop := &dropBus{Bus: durable(t, server.URL(), StreamConfig{}, nil)}
	ready(t, drop.Bus.(*Stream))
	plain := OverNATS(connect(t, server), PendingLimits{}, log)
	for _, c := range []struct {
		name     string
		pub, sub Bus
	}{{"durable publisher", drop, plain}, {"durable subscriber", plain, durable(t, server.URL(), StreamConfig{}, nil)}} {
		r := newRig(t, quickly, c.pub, c.sub)
		if s, ok := c.sub.(*Stream); ok {
			ready(t, s)
		}
		g := newFakeEngine(1, 16)
		p, _ := r.publisher(beating(c.name))
		r.sub.Track(testPool, c.name, []int{0}, 16, 0)
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

func TestStreamIsMadeOrLeftAlone(t *testing.T) {
	for _, c := range []struct {
		name string
		cfg  jetstream.StreamConfig
		fits bool
	}{
		{"as made here", jetstream.StreamConfig{Subjects: []string{AllEvents}}, true},
		{"in memory, for a day", jetstream.StreamConfig{Subjects: []string{AllEvents}, Storage: jetstream.MemoryStorage, MaxAge: 24 * time.Hour}, true},
		{"token by token", jetstream.StreamConfig{Subjects: []string{"tandem.kv.*.*.*", "other.>"}}, true},
		{"other subjects", jetstream.StreamConfig{Subjects: []string{"other.>"}}, false},
		{"all of tandem", jetstream.StreamConfig{Subjects: []string{"tandem.>"}, NoAck: true}, false},
		{"a work queue", jetstream.StreamConfig{Subjects: []string{AllEvents}, Retention: jetstream.WorkQueuePolicy}, false},
		{"no acknowledgements", jetstream.StreamConfig{Subjects: []string{AllEvents}, NoAck: true}, false},
	} {
		server, _ := jetServer(t, t.TempDir(), 0) // a server may fail to make a stream right after another was deleted
		js, err := jetstream.New(connect(t, server))
		if err != nil {
			t.Fatal(err)
		}
		c.cfg.Name = "KV"
		stream, err := js.CreateStream(t.Context(), c.cfg)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		want := stream.CachedInfo().Config
		s := durable(t, server.URL(), StreamConfig{Name: c.cfg.Name, MaxAge: time.Minute}, nil)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		err = s.find(ctx, false)
		cancel()
		if (err == nil) != c.fits || err != nil && !errors.Is(err, ErrStreamUnfit) {
			t.Errorf("%s: %v", c.name, err)
		}
		info, err := stream.Info(t.Context())
		if err != nil || info.Config.MaxAge != want.MaxAge || info.Config.Storage != want.Storage || len(info.Config.Subjects) != len(want.Subjects) {
			t.Errorf("%s: it was changed: %+v, %v", c.name, info.Config, err)
		}
	}
	for _, cfg := range []StreamConfig{{Name: "a.b"}, {Name: "a b"}, {MaxAge: -1}, {MaxBytes: -1}, {MaxPending: -1}, {AckTimeout: -1}} {
		if _, err := OverStream(nil, cfg, PendingLimits{}, nil); err == nil {
			t.Errorf("%+v is accepted", cfg)
		}
	}
}

// A stream that is deleted under everybody is made anew, and what was lost with it is had from the publisher.
func TestDeletedStreamIsMadeAnew(t *testing.T) {
	server, _ := jetServer(t, t.TempDir(), 0)
	js, err := jetstream.New(connect(t, server))
	if err != nil {
		t.Fatal(err)
	}
	pub, sub := durable(t, server.URL(), StreamConfig{}, nil), durable(t, server.URL(), StreamConfig{}, nil)
	ready(t, pub)
	ready(t, sub)
	r := newRig(t, quickly, pub, sub)
	g := newFakeEngine(1, 16)
	p, _ := r.publisher(beating("w"))
	r.sub.Track(testPool, "w", []int{0}, 16, 0)
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

func TestPositions(t *testing.T) {
	for _, p := range []position{{1, 0}, {1 << 63, 1<<64 - 1}} {
		if got := positionOf(nats.Header{HeaderStream: {p.String()}}); got != p {
			t.Errorf("%v is read as %v", p, got)
		}
	}
	for _, text := range []string{"", "x", "1", "1-", "-1", "1-x", string(bytes.Repeat([]byte("9"), 40)) + "-1"} {
		if got := positionOf(nats.Header{HeaderStream: {text}}); got != (position{}) {
			t.Errorf("%q is read as %v", text, got)
		}
	}
}

// Heartbeats that are ahead of the stream wait, but not any number of them.
func TestEarlyBeatsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handed := 0
		f := &following{early: map[string]earlyBeat{}, beat: func(*nats.Msg) { handed++ }, read: position{1, 5}}
		beat := func(worker int) {
			m := nats.NewMsg(Source{testPool, fmt.Sprint("w", worker), 0}.BeatSubject())
			m.Header.Set(HeaderStream, position{1, 1 << 60}.String())
			f.take(m)
		}
		for i := range 2 * maxEarly {
			beat(i)
		}
		if len(f.early) != maxEarly || handed != maxEarly {
			t.Errorf("%d wait, %d were handed on", len(f.early), handed)
		}
		time.Sleep(beatPatience)
		beat(3 * maxEarly)
		if len(f.early) != 1 {
			t.Errorf("%d wait after their time", len(f.early))
		}
	})
}
