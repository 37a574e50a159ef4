package events

import (
	"errors"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/natsbus"
	"github.com/tandem-pd/tandem/kv/follow"
	"github.com/tandem-pd/tandem/kv/view"
	"github.com/tandem-pd/tandem/kv/wire"
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

// durable is the durable bus of a connection of its own.
func durable(t *testing.T, server *natsbus.Server, cfg natsbus.StreamConfig, more ...nats.Option) *natsbus.Stream {
	t.Helper()
	s, err := natsbus.OverStream(connect(t, server, append(more, nats.RetryOnFailedConnect(true))...), cfg, natsbus.PendingLimits{},
		slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

// found waits until it has its stream.
func found(t *testing.T, s *natsbus.Stream) *natsbus.Stream {
	t.Helper()
	within(t, 10*time.Second, time.Millisecond, "the stream is found", func() bool { return s.Stats().Found })
	return s
}

var quickly = follow.Config{RetryMin: 10 * time.Millisecond, SilentAfter: 300 * time.Millisecond}

// shortRing beats, and has less in its ring than is missed here.
var shortRing = view.PublisherConfig{Heartbeat: beating.Heartbeat, RingMessages: 10}

// streamed is a live worker whose events come over a stream, to a subscriber that can be cut off.
type streamed struct {
	*rig
	*line
	p      *speaker
	pub    *natsbus.Stream
	cfg    natsbus.StreamConfig
	server *natsbus.Server
	port   int
	dir    string
}

func newStreamed(t *testing.T, cfg natsbus.StreamConfig, of view.PublisherConfig, steps int) *streamed {
	t.Helper()
	s := &streamed{line: &line{}, cfg: cfg, dir: t.TempDir()}
	s.server, s.port = startNATS(t, natsbus.ServerConfig{JetStream: true, Dir: s.dir})
	s.pub = found(t, durable(t, s.server, cfg))
	s.rig = newRig(t, quickly, s.pub, found(t, durable(t, s.server, cfg, nats.SetCustomDialer(s.line))))
	s.p = s.speaks(1, of)
	s.track("w")
	s.p.publishSteps(steps)
	s.until("live, and the stream has all of it", func() bool { return s.follows(s.p) && s.pub.Stats().Pending == 0 })
	return s
}

// missing has the subscriber cut off for as long as f takes and the stream needs.
func (s *streamed) missing(f func()) {
	s.t.Helper()
	s.set(true)
	s.until("silent", func() bool { return s.status("w").State != follow.Live })
	f()
	s.until("the stream has it", func() bool { return s.pub.Stats().Pending == 0 })
	s.set(false)
}

// another is another gateway that starts, with a complete view.
func (s *streamed) another() *rig {
	s.t.Helper()
	bus := durable(s.t, s.server, s.cfg)
	r := newRig(s.t, quickly, s.pub, bus)
	found(s.t, bus)
	r.track("w")
	r.catchesUp(s.p, "another gateway")
	return r
}

// unasked fails the test if the publisher has received a request since.
func (s *streamed) unasked(since view.PublisherStats) {
	s.t.Helper()
	if now := s.p.Stats(); now.Snapshots != since.Snapshots || now.Rings != since.Rings {
		s.t.Errorf("%d snapshots and %d runs were asked for", now.Snapshots-since.Snapshots, now.Rings-since.Rings)
	}
}

var _ follow.Historian = (*natsbus.Stream)(nil)

// The server restarts with its files; then the gateway does, and sends no request.
func TestStreamOutlivesServerAndGateway(t *testing.T) {
	t.Parallel()
	s := newStreamed(t, natsbus.StreamConfig{}, shortRing, 150)
	s.server.Close()
	s.until("silent", func() bool { return s.status("w").State != follow.Live && !s.pub.Connected() })
	s.server, _ = startNATS(t, natsbus.ServerConfig{Port: s.port, JetStream: true, Dir: s.dir})
	s.until("live again", func() bool { return s.pub.Connected() && s.follows(s.p) })
	s.p.publishSteps(50)
	s.until("and it goes on", func() bool { return s.follows(s.p) && s.pub.Stats().Pending == 0 })

	asked := s.p.Stats()
	assert.EqualValues(t, 1, s.another().status("w").Repaired[follow.ByStream])
	s.unasked(asked)
}

func TestTrimmedStreamTakesASnapshot(t *testing.T) {
	t.Parallel()
	s := newStreamed(t, natsbus.StreamConfig{MaxBytes: 64 << 10}, shortRing, 500)
	before := s.status("w")
	s.missing(func() { s.p.publishSteps(1500) })
	s.catchesUp(s.p, "healed")
	if now := s.status("w"); now.Repaired[follow.BySnapshot] == before.Repaired[follow.BySnapshot] {
		t.Errorf("healed without a snapshot: %v", now.Repaired)
	}
	n := s.another().status("w").Repaired
	assert.True(t, n[follow.BySnapshot] == 1 && n[follow.ByStream] == 0, "%v", n)
}

// While a subscriber is away, more is published than the ring holds, and then a worker is restarted twice. What the
// stream has of each process is passed through in order.
func TestStreamOfManyProcesses(t *testing.T) {
	t.Parallel()
	s := newStreamed(t, natsbus.StreamConfig{}, shortRing, 100)
	before, asked, began := s.status("w"), view.PublisherStats{}, 0.0
	s.missing(func() {
		asked = s.p.Stats() // with what was asked for as it began
		s.p.publishSteps(200)
	})
	s.catchesUp(s.p, "it goes on where it was")
	s.unasked(asked)
	now := s.status("w")
	assert.True(t, now.Gaps == before.Gaps && now.Repaired == before.Repaired, "it cost %d gaps", now.Gaps-before.Gaps)
	stats := s.pub.Stats()
	assert.Equal(t, [2]uint64{s.p.Stats().Seq, 0}, [2]uint64{stats.Acked, stats.Failed}, "messages taken, and failed")
	s.missing(func() {
		for seed := range uint64(3) {
			s.p.stop()
			s.p = s.speaks(2+seed, beating)
			s.p.publishSteps(100)
		}
		began = s.counted("kv_events_messages_total", "new epoch")
	})
	s.catchesUp(s.p, "the last process")
	assert.EqualValues(t, 3, s.counted("kv_events_messages_total", "new epoch")-began, "processes began")
	now = s.status("w")
	assert.True(t, now.Repaired == before.Repaired && s.p.Stats().Snapshots == 0, "%+v", now)
	s.until("the stream has all of it", func() bool { return s.pub.Stats().Pending == 0 })
	assert.EqualValues(t, 1, s.another().status("w").Repaired[follow.ByStream], "of the last process alone")

	// One without messages yet: its heartbeat alone shows that it is there, and its position after the others.
	s.p.stop()
	s.p = s.speaks(9, beating)
	s.until("a silent process", func() bool { return s.status("w").Epoch == s.p.Epoch() && s.idx.Of("w", 0).Blocks() == 0 })
}

// Without a stream the durable bus is as good as the other: numbers, heartbeats and the ring.
func TestDurableBusWithoutAStream(t *testing.T) {
	t.Parallel()
	server, _ := startNATS(t, natsbus.ServerConfig{}) // no JetStream
	pub := durable(t, server, natsbus.StreamConfig{MaxPending: 8, AckTimeout: 50 * time.Millisecond})
	r := newRig(t, quickly, pub, durable(t, server, natsbus.StreamConfig{}))
	p := r.speaks(1, beating)
	r.track("w")
	refused := 0
	for range 200 {
		if err := p.Publish(p.Step()); err != nil {
			refused++
		}
	}
	r.catchesUp(p, "whole all the same")
	s := pub.Stats()
	assert.True(t, s.Failed != 0 && s.Acked == 0 && uint64(refused) <= s.Failed, "%+v, %d refused at once", s, refused)
}

// A durable publisher is understood by a subscriber that is not, and the other way about.
func TestDurableAndPlainMix(t *testing.T) {
	server, _ := startNATS(t, natsbus.ServerConfig{JetStream: true, Dir: t.TempDir()})
	pub, sub := found(t, durable(t, server, natsbus.StreamConfig{})), found(t, durable(t, server, natsbus.StreamConfig{}))
	plain, drop := overNATS(connect(t, server), natsbus.PendingLimits{}), &dropBus{Bus: pub}
	for name, bus := range map[string][2]wire.Bus{"durable publisher": {drop, plain}, "durable subscriber": {plain, sub}} {
		r := newRig(t, quickly, bus[0], bus[1])
		p := r.speaks(1, view.PublisherConfig{Source: source(name), Heartbeat: beating.Heartbeat})
		r.track(name)
		p.publishSteps(200)
		r.catchesUp(p, name)
		if bus[0] == drop { // the last message is lost: the heartbeat shows it
			drop.lost(p, 1)
			r.catchesUp(p, "its heartbeat")
		}
	}
}

// A deleted stream is created again, and the publisher provides what was lost with it.
func TestDeletedStreamIsRecreated(t *testing.T) {
	t.Parallel()
	s := newStreamed(t, natsbus.StreamConfig{}, beating, 100)
	js, err := jetstream.New(connect(t, s.server))
	require.NoError(t, err)
	require.NoError(t, js.DeleteStream(t.Context(), "TANDEM_KV"))
	s.p.publishSteps(100)
	s.until("healed, and nothing is under way", func() bool { return s.follows(s.p) && s.pub.Stats().Pending == 0 })
	acked := s.pub.Stats().Acked
	s.until("messages are taken again", func() bool {
		s.p.publishSteps(1)
		return s.pub.Stats().Acked > acked
	})
	s.catchesUp(s.p, "and it goes on")
}
