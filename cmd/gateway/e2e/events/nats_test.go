package events

import (
	"log/slog"
	"net/url"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/natsbus"
	"github.com/tandem-pd/tandem/kv/follow"
	"github.com/tandem-pd/tandem/kv/view"
	"github.com/tandem-pd/tandem/kv/wire"
)

// startNATS is a server, and its port.
func startNATS(t *testing.T, cfg natsbus.ServerConfig) (*natsbus.Server, int) {
	t.Helper()
	s, err := natsbus.StartServer(cfg)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	u, err := url.Parse(s.URL())
	require.NoError(t, err)
	port, err := strconv.Atoi(u.Port())
	require.NoError(t, err)
	return s, port
}

// connect fails fast while the server is away instead of keeping messages for it, so that they are lost.
func connect(t *testing.T, s *natsbus.Server, more ...nats.Option) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(s.URL(), append(more, nats.MaxReconnects(-1), nats.ReconnectWait(5*time.Millisecond),
		nats.ReconnectBufSize(-1), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))...)
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	return nc
}

// overNATS is the bus of a connection.
func overNATS(nc *nats.Conn, limits natsbus.PendingLimits) wire.Bus {
	return natsbus.OverNATS(nc, limits, slog.New(slog.DiscardHandler))
}

// beating is a publisher with a quick heart.
var beating = view.PublisherConfig{Heartbeat: 20 * time.Millisecond}

func TestNATSRestarted(t *testing.T) {
	t.Parallel()
	s, port := startNATS(t, natsbus.ServerConfig{})
	pubConn, subConn := connect(t, s), connect(t, s)
	cfg := follow.Config{RetryMin: 10 * time.Millisecond, SilentAfter: 200 * time.Millisecond, PredictAfter: 600 * time.Millisecond}
	r := newRig(t, cfg, overNATS(pubConn, natsbus.PendingLimits{}), overNATS(subConn, natsbus.PendingLimits{}))
	p := r.speaks(1, view.PublisherConfig{Heartbeat: beating.Heartbeat, MaxBytes: 4096})
	p.publishSteps(200) // more than one message can carry, as a snapshot
	r.track("w")
	r.catchesUp(p, "live")
	known := r.idx.Of("w", 0).Blocks()

	s.Close()
	r.until("the publisher is cut off", func() bool { return !pubConn.IsConnected() })
	r.until("the source is silent", func() bool { return r.status("w").State != follow.Live })
	failed := 0
	for range 20 {
		if p.Publish(p.Step()) != nil {
			failed++
		}
	}
	assert.NotZero(t, failed, "no message was lost")
	assert.Equal(t, known, r.idx.Of("w", 0).Blocks(), "blocks while NATS is away, want the N that were known before")
	startNATS(t, natsbus.ServerConfig{Port: port})
	r.catchesUp(p, "healed")
	assert.NotZero(t, p.Stats().Failed, "losses are not counted")
	if s := r.status("w"); s.Repaired[follow.ByRing] == 0 || s.Repaired[follow.BySnapshot] > 1 {
		t.Errorf("healed by %v, want the ring", s.Repaired)
	}

	// The subscriber alone loses its connection, and messages with it.
	require.NoError(t, subConn.ForceReconnect())
	p.publishSteps(20)
	r.catchesUp(p, "healed after its own reconnect")

	// The publisher dies without a word: its connection is closed under it.
	pubConn.Close()
	r.until("the publisher is given up", func() bool { return r.status("w").State == follow.Predicted })
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
	s, _ := startNATS(t, natsbus.ServerConfig{})
	pubConn := connect(t, s)
	sub := &slowBus{overNATS(connect(t, s), natsbus.PendingLimits{Messages: 4}), make(chan struct{})}
	r := newRig(t, follow.Config{RetryMin: 10 * time.Millisecond}, overNATS(pubConn, natsbus.PendingLimits{}), sub)
	p := r.speaks(1, beating)
	r.track("w")
	p.publishSteps(200)
	require.NoError(t, pubConn.Flush())
	r.until("messages are dropped and counted", func() bool { return r.counted("kv_events_skipped_total", "dropped") > 0 })
	close(sub.open)
	r.catchesUp(p, "healed")
	p.publishSteps(20)
	r.catchesUp(p, "and it goes on")
}
