package events

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/kv/follow"
	"github.com/tandem-pd/tandem/kv/wire"
	"github.com/tandem-pd/tandem/kv/zmq"
	"github.com/tandem-pd/tandem/lab/engine"
	"github.com/tandem-pd/tandem/lab/testkit"
)

// zmqEngine is a simulated engine's cache with its publisher, on loopback. Its sockets are bound as *, as an engine's
// are.
type zmqEngine struct {
	*testkit.Engine
	t    *testing.T
	cfg  engine.PublisherConfig
	pub  *engine.Publisher
	stop func()

	deaf   atomic.Int64 // a port whose connections end at once
	losing atomic.Bool
	lost   atomic.Int64     // messages
	drops  func(n int) bool // whether the nth message of a replay is dropped; nil for none

	mu    sync.Mutex // guards conns
	conns map[net.Conn]struct{}
}

// loopback listens on the loopback address in place of all, again and again while the port is still taken.
func (e *zmqEngine) loopback(ctx context.Context, network, address string) (net.Listener, error) {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	ln, err := new(net.ListenConfig).Listen(ctx, network, net.JoinHostPort("127.0.0.1", port))
	if err != nil {
		return nil, err
	}
	return &noted{ln, e}, nil
}

// noted is a listener whose connections an engine can cut.
type noted struct {
	net.Listener
	e *zmqEngine
}

func (n *noted) Accept() (net.Conn, error) {
	c, err := n.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if n.e.deaf.Load() == int64(portOf(n)) {
		c.Close()
	}
	n.e.mu.Lock()
	n.e.conns[c] = struct{}{}
	n.e.mu.Unlock()
	replay := 0
	if n.e.drops != nil {
		_, replay = n.e.pub.Ports()
	}
	return &lossy{c, n.e, portOf(n) == replay, 0}, nil
}

// lossy is a connection on which an engine's messages can be lost: each is one Write.
type lossy struct {
	net.Conn
	e      *zmqEngine
	replay bool
	n      int // messages of the replay
}

func (c *lossy) Write(p []byte) (int, error) {
	if c.n++; c.e.losing.Load() || c.replay && c.e.drops(c.n) {
		c.e.lost.Add(1)
		return len(p), nil
	}
	return c.Conn.Write(p)
}

// skip makes an engine publish n messages without a listener.
func (e *zmqEngine) skip(n int) {
	e.t.Helper()
	e.losing.Store(true)
	defer e.losing.Store(false)
	want := e.lost.Load() + int64(n*e.pub.Subscribers())
	for range n {
		e.Store(2)
		e.pub.Send(nil)
	}
	within(e.t, 10*time.Second, time.Millisecond, "they are lost", func() bool { return e.lost.Load() >= want })
}

// inject writes a message to every connection as it is, unnumbered.
func (e *zmqEngine) inject(frames ...[]byte) {
	var b []byte
	for i, f := range frames {
		flags := byte(2) // a length of 8 bytes
		if i < len(frames)-1 {
			flags |= 1 // more to come
		}
		b = append(binary.BigEndian.AppendUint64(append(b, flags), uint64(len(f))), f...)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for c := range e.conns {
		_, _ = c.Write(b)
	}
}

// cut closes every connection there is.
func (e *zmqEngine) cut() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for c := range e.conns {
		_ = c.Close()
	}
	clear(e.conns)
}

func newZMQEngine(t *testing.T, seed uint64, cfg engine.PublisherConfig) *zmqEngine {
	t.Helper()
	return newLossyEngine(t, seed, cfg, nil)
}

// newLossyEngine is a zmqEngine whose replays drop the nth message if drops reports so.
func newLossyEngine(t *testing.T, seed uint64, cfg engine.PublisherConfig, drops func(n int) bool) *zmqEngine {
	t.Helper()
	e := &zmqEngine{drops: drops, Engine: testkit.NewEngine(seed, 16), t: t, cfg: cfg, conns: map[net.Conn]struct{}{}}
	if e.cfg.Endpoint == "" {
		e.cfg.Endpoint = "tcp://*:0"
	}
	e.cfg.Options.Listen = e.loopback
	e.start()
	t.Cleanup(func() { e.stop() })
	return e
}

// start runs a publisher, after the first time on the same ports.
func (e *zmqEngine) start() {
	e.t.Helper()
	var err error
	within(e.t, 10*time.Second, time.Millisecond, "the ports are free", func() bool {
		e.pub, err = engine.NewPublisher(e.cfg)
		return err == nil
	})
	events, replay := e.pub.Ports()
	e.cfg.Endpoint = fmt.Sprintf("tcp://*:%d", events-e.cfg.Rank)
	if replay > 0 {
		e.cfg.ReplayEndpoint = fmt.Sprintf("tcp://*:%d", replay-e.cfg.Rank)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	pub := e.pub
	go func() {
		defer close(done)
		_ = pub.Run(ctx)
	}()
	e.stop = func() { cancel(); <-done }
}

// restart is a new process: an empty cache, and numbers from the beginning.
func (e *zmqEngine) restart() {
	e.stop()
	e.Blocks = nil
	e.start()
}

// at is where a subscriber finds it.
func (e *zmqEngine) at() zmq.Address {
	events, replay := e.pub.Ports()
	z := zmq.Address{Endpoint: "tcp://127.0.0.1:" + strconv.Itoa(events-e.cfg.Rank), Topic: e.cfg.Topic}
	if replay > 0 {
		z.Replay = "tcp://127.0.0.1:" + strconv.Itoa(replay-e.cfg.Rank)
	}
	return z
}

func (e *zmqEngine) publish(n int) {
	e.t.Helper()
	for range n {
		e.publishEvents(e.Step()...)
	}
}

// publishEvents publishes one message.
func (e *zmqEngine) publishEvents(events ...wire.Event) {
	e.t.Helper()
	require.NoError(e.t, e.pub.Publish(events))
}

// clear empties the cache and publishes that, with a new chain.
func (e *zmqEngine) clear() {
	e.t.Helper()
	e.Blocks = nil
	e.publishEvents(wire.Event{Kind: wire.Cleared}, e.Store(3))
}

func (e *zmqEngine) subscribed() {
	e.t.Helper()
	within(e.t, 10*time.Second, time.Millisecond, "subscribed", func() bool { return e.pub.Subscribers() == 1 })
}

// zmqConfig has a subscriber wait for little.
func zmqConfig() follow.Config {
	return follow.Config{
		RetryMin: 5 * time.Millisecond, RetryMax: 50 * time.Millisecond, PageTimeout: time.Second, QuietCheck: 20 * time.Millisecond,
	}
}

func (r *rig) trackZMQ(worker string, e *zmqEngine, capacity int) {
	r.t.Helper()
	require.NoError(r.t, r.sub.TrackZMQ(testkit.Pool, worker, []int{0}, 16, capacity, e.at()))
}

// followedZMQ is an engine, and a subscriber of it as the worker w.
func followedZMQ(t *testing.T, cfg engine.PublisherConfig) (*zmqEngine, *rig) {
	t.Helper()
	e, r := newZMQEngine(t, 1, cfg), newRig(t, zmqConfig(), nil, nil)
	r.trackZMQ("w", e, 0)
	e.subscribed()
	return e, r
}

// replays is an engine with a replay socket.
var replays = engine.PublisherConfig{ReplayEndpoint: "tcp://*:0"}

// exact reports whether the worker is live and the index equals the engine's cache.
func (r *rig) exact(e *zmqEngine, worker string) bool {
	s := r.status(worker)
	return s.State == follow.Live && s.Seq == e.pub.Next() && e.Mismatch(r.idx.Of(worker, 0), 16) == ""
}

// A late subscriber gets earlier messages from a replay: also that there were none. Without a replay socket that
// is unknown.
func TestReplayStartsAtTheBeginning(t *testing.T) {
	late, silent, dumb := newZMQEngine(t, 1, replays), newZMQEngine(t, 2, replays), newZMQEngine(t, 3, engine.PublisherConfig{})
	late.publish(500)
	r := newRig(t, zmqConfig(), nil, nil)
	r.trackZMQ("late", late, 0)
	r.trackZMQ("silent", silent, 0)
	r.trackZMQ("dumb", dumb, 0)
	r.until("live and exact", func() bool { return r.exact(late, "late") && r.exact(silent, "silent") && dumb.pub.Subscribers() == 1 })
	r.is("dumb", follow.Waiting, "without a replay socket")
	// Requests to quiet engines continue, which repairs nothing.
	r.until("asked on", func() bool { return r.counted("kv_events_snapshots_total", "replayed") >= 8 })
	assert.Equal(t, [len(follow.Methods)]uint64{follow.ByReplay: 1}, r.status("late").Repaired)
}

// A ROUTER socket drops what it cannot hold for its peer, more than 1,000 messages where nothing is set (zmq_socket(3),
// ZMQ_SNDHWM in zmq_setsockopt(3)), and vLLM 0.32 and SGLang 0.5.23 set the mark of their PUB sockets alone. What a
// long replay lacks is requested again: nothing is lost for good.
func TestDroppedReplayIsRequestedAgain(t *testing.T) {
	for name, drops := range map[string]func(n int) bool{
		"a part":                        func(n int) bool { return n > 60 && n <= 80 },
		"all from one on, with the end": func(n int) bool { return n > 60 },
	} {
		t.Run(name, func(t *testing.T) {
			e, cfg := newLossyEngine(t, 1, replays, drops), zmqConfig()
			cfg.PageTimeout, cfg.QuietCheck = 50*time.Millisecond, time.Minute
			e.publish(300)
			r := newRig(t, cfg, nil, nil)
			r.trackZMQ("w", e, 0)
			r.until("exact", func() bool { return r.exact(e, "w") })
			before := e.lost.Load()
			e.losing.Store(true)
			e.publish(300)
			r.until("they are lost", func() bool { return e.lost.Load() == before+300 })
			e.losing.Store(false)
			e.publish(1)
			r.until("exact again", func() bool { return r.exact(e, "w") })
			assert.Zero(t, r.status("w").Losses)
		})
	}
}

// An engine that restarts is distinguished from its predecessor though no number fell
// back: by its message at the number that the old one had.
func TestRestartAtHigherNumbers(t *testing.T) {
	e, r := followedZMQ(t, replays)
	e.publish(20)
	r.until("exact", func() bool { return r.exact(e, "w") })
	for _, messages := range []int{20, 60, 0} {
		epoch := r.status("w").Epoch
		e.restart()
		e.publish(messages)
		r.until("exact again", func() bool { return r.status("w").Epoch > epoch && r.exact(e, "w") })
	}
}

// The end of an engine's connection is reported, and what the subscriber ends itself is not.
func TestEndedConnectionsAreReported(t *testing.T) {
	e, left := newZMQEngine(t, 1, engine.PublisherConfig{}), newZMQEngine(t, 2, engine.PublisherConfig{})
	cfg, cut := zmqConfig(), make(chan string, 16)
	cfg.OnCut = func(worker string) { cut <- worker }
	r := newRig(t, cfg, nil, nil)
	r.trackZMQ("w", e, 0)
	r.trackZMQ("left", left, 0)
	r.until("subscribed", func() bool { return e.pub.Subscribers() == 1 && left.pub.Subscribers() == 1 })
	r.sub.Untrack(testkit.Pool, "left")
	r.until("unsubscribed", func() bool { return left.pub.Subscribers() == 0 })
	e.restart()
	assert.Equal(t, "w", <-cut)
	assert.Empty(t, cut)
}

// neighbours are two ranks of one worker, on neighbouring ports.
func neighbours(t *testing.T) [2]*zmqEngine {
	for {
		zero := newZMQEngine(t, 1, engine.PublisherConfig{})
		port, _ := zero.pub.Ports()
		ln, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port+1)))
		if err != nil {
			continue
		}
		ln.Close()
		return [2]*zmqEngine{zero, newZMQEngine(t, 2, engine.PublisherConfig{Endpoint: fmt.Sprintf("tcp://*:%d", port), Rank: 1})}
	}
}

// Two ranks are two ports, and one worker's in the index; a bridge has a stream for each.
func TestRanksOverZMQ(t *testing.T) {
	both := neighbours(t)
	r, over := newRig(t, zmqConfig(), nil, nil), natsRig(t, memoryBus(t), 1)
	over.bridge(both[0].at(), 2, 0)
	require.NoError(t, r.sub.TrackZMQ(testkit.Pool, "w", []int{0, 1}, 16, 0, both[0].at()))
	r.until("subscribed", func() bool { return both[0].pub.Subscribers() == 2 && both[1].pub.Subscribers() == 2 })
	both[0].publish(100)
	both[1].publish(130)
	for i, e := range both {
		for _, r := range []*rig{r, over} {
			r.until("exact", func() bool {
				return e.Mismatch(r.idx.Of("w", i), 16) == "" && len(e.Blocks) == r.idx.Of("w", i).Blocks()
			})
		}
	}
	r.sub.Untrack(testkit.Pool, "w")
	r.until("the connections end", func() bool { return both[0].pub.Subscribers() == 1 && both[1].pub.Subscribers() == 1 })
}

// Garbage in the stream costs its own message, and never the connection.
func TestGarbageOverZMQ(t *testing.T) {
	e, r := followedZMQ(t, replays)
	e.publish(50)
	r.until("exact", func() bool { return r.exact(e, "w") })
	turn := r.status("w").Epoch

	// No publisher's messages at all: skipped, and nothing is lost.
	e.inject([]byte("x"))
	e.inject(nil, []byte{1, 2, 3}, []byte("short number"))
	e.inject(nil, bytes.Repeat([]byte{255}, 8), nil)
	e.inject(nil, binary.BigEndian.AppendUint64(nil, 50), make([]byte, 60<<20)) // above the limit: read past
	e.publish(10)
	r.until("exact after foreign messages", func() bool { return r.exact(e, "w") })

	// A message of 640,000 tokens of one prompt is taken in.
	big := testkit.Chain(1<<20, 40_000)
	e.publishEvents(big)
	r.until("the long prompt", func() bool {
		s := r.status("w")
		return s.State == follow.Live && s.Seq == e.pub.Next() && s.Blocks == len(e.Blocks)+len(big.Hashes)
	})

	// A numbered message that cannot be read is a loss that no replay makes good.
	e.pub.Send([]byte("\xc1 not a batch"))
	e.pub.Send(nil)
	r.until("predicted", func() bool { return r.status("w").State == follow.Predicted })
	e.clear()
	r.until("healed", func() bool { return r.exact(e, "w") })
	assert.Equal(t, turn, r.status("w").Epoch, "the view's epoch")
}

// A replay endpoint that does not answer: live messages count, and a gap leaves the worker predicted until there is
// one that does.
func TestReplayUnreachable(t *testing.T) {
	e, r := newZMQEngine(t, 1, replays), newRig(t, zmqConfig(), nil, nil)
	_, replay := e.pub.Ports()
	e.deaf.Store(int64(replay))
	e.publish(20)
	r.trackZMQ("w", e, 0)
	e.subscribed()
	e.publish(5)
	r.until("predicted", func() bool { s := r.status("w"); return s.State == follow.Predicted && s.Seq == e.pub.Next() })
	e.deaf.Store(0)
	r.until("exact", func() bool { return r.exact(e, "w") })
}

func TestZMQValidate(t *testing.T) {
	for _, z := range []zmq.Address{
		{}, {Endpoint: "ipc:///tmp/x"}, {Endpoint: "tcp://h"}, {Endpoint: "tcp://h:0"}, {Endpoint: "tcp://*:0"}, {Endpoint: "tcp://h:65535"},
		{Endpoint: "tcp://h:1", Replay: "tcp://*:1"}, {Endpoint: "tcp://h:1", Replay: "tcp://h:65535"},
		{Endpoint: "tcp://h:1", Replay: "udp://h:5"},
	} {
		assert.Error(t, z.Validate(2), "%+v is taken", z)
	}
	assert.NoError(t, (zmq.Address{Endpoint: "tcp://[::1]:5557", Replay: "tcp://h:5558"}).Validate(2))
}

// Several engines, one of each dialect at least, whose connections are cut and who restart end in an index that is what
// they hold, each exactly. The last message that is lost shows though nothing follows it.
func TestIndexEqualsEnginesUnderLossOverZMQ(t *testing.T) {
	const seed, engines = 11, int(wire.SGLangFirst) + 1
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	cfg := zmqConfig() // as patient as a busy machine needs: a replay that is given up is a loss
	cfg.RetryMin, cfg.RetryMax, cfg.PageTimeout = 50*time.Millisecond, 2*time.Second, 10*time.Second
	r := newRig(t, cfg, nil, nil)
	all := map[string]*zmqEngine{}
	for i := range engines {
		name := fmt.Sprintf("w%d", i)
		all[name] = newZMQEngine(t, uint64(i), engine.PublisherConfig{ReplayEndpoint: "tcp://*:0", Dialect: wire.Dialect(i)})
		r.trackZMQ(name, all[name], 0)
	}
	for range 100 {
		e := all[fmt.Sprintf("w%d", rng.IntN(engines))]
		e.publish(1 + rng.IntN(30))
		switch rng.IntN(8) {
		case 0, 1, 2:
			e.cut()
		case 3:
			e.restart()
			e.publish(rng.IntN(3))
		}
	}
	for name, e := range all {
		r.until(name+" is exact", func() bool { return r.exact(e, name) })
		assert.True(t, r.status(name).Losses == 0 && r.status(name).Transport == "zmq", "%+v", r.status(name))
	}
}

func portOf(ln net.Listener) int { return ln.Addr().(*net.TCPAddr).Port }
