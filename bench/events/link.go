package main

import (
	"context"
	"encoding/binary"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tandem-pd/tandem/internal/kvevents/follow"
	"github.com/tandem-pd/tandem/internal/kvevents/publish"
	"github.com/tandem-pd/tandem/internal/kvevents/wire"
	"github.com/tandem-pd/tandem/internal/kvevents/zmq"
	"github.com/tandem-pd/tandem/internal/kvevents/zmq/zmtp"
	"github.com/tandem-pd/tandem/lab/zmqpub"
)

// link is how one engine's events reach the subscriber.
type link interface {
	// publish tells events. What is lost on the way is for the numbers to show.
	publish(es []wire.Event)
	// last is the number of the last message as a subscriber's status has it, and epoch that of the process, 0 where
	// the subscriber counts them by itself.
	last() (epoch, seq uint64)
	// restart is a new process in the place of the old one.
	restart() error
	// track has the subscriber follow it.
	track(sub *follow.Subscriber, blocks, blockSize int) error
	close()
}

// process is what ends with a process of an engine.
type process struct {
	cancel context.CancelFunc
	done   chan struct{}
}

func start(run func(ctx context.Context) error) process {
	ctx, cancel := context.WithCancel(context.Background())
	p := process{cancel, make(chan struct{})}
	go func() {
		defer close(p.done)
		_ = run(ctx) // neither publisher fails once it has begun but for want of a bus, which shows as silence
	}()
	return p
}

func (p process) end() {
	p.cancel()
	<-p.done
}

// overNATS is an engine that publishes as our own workers do.
type overNATS struct {
	source    wire.Source
	seed      uint64
	heartbeat time.Duration
	conn      *nats.Conn
	bus       *unreliable
	log       *slog.Logger

	runs   uint64
	pub    *publish.Publisher
	now    process
	before publish.Stats // of the processes that have ended
}

func (l *overNATS) restart() error {
	if l.pub != nil {
		l.end()
		l.bus.succeed()
	}
	l.runs++
	var err error
	l.pub, err = publish.New(publish.Config{
		Source: l.source, Epoch: chance(l.seed, l.runs, 9) | 1, Heartbeat: l.heartbeat,
	}, l.bus, l.log)
	if err != nil {
		return err
	}
	l.now = start(l.pub.Run)
	return nil
}

func (l *overNATS) end() {
	l.now.end()
	s := l.pub.Stats()
	l.before.Messages += s.Messages
	l.before.Failed += s.Failed
	l.before.Snapshots += s.Snapshots
}

// stats are those of all processes.
func (l *overNATS) stats() publish.Stats {
	s := l.pub.Stats()
	s.Messages += l.before.Messages
	s.Failed += l.before.Failed
	s.Snapshots += l.before.Snapshots
	return s
}

func (l *overNATS) publish(es []wire.Event) { _ = l.pub.Publish(es) } // it counts what the bus did not take

func (l *overNATS) last() (epoch, seq uint64) { return l.pub.Epoch(), l.pub.Stats().Seq }

func (l *overNATS) track(sub *follow.Subscriber, _, blockSize int) error {
	sub.Track(l.source.Pool, l.source.Worker, []int{0}, blockSize, 0)
	return nil
}

func (l *overNATS) close() {
	l.now.end()
	l.conn.Close()
}

// overZMQ is an engine that publishes by itself, behind two proxies.
type overZMQ struct {
	source    wire.Source
	seed      uint64
	ring      int  // batches that can be asked for
	replays   bool // it has a replay socket
	highWater int  // above 0 where a receiver will be slow
	dialect   wire.Dialect
	odds      chances
	on        *atomic.Bool
	count     *injected

	live, replay *proxy
	stall        gate          // of what goes to subscribers
	asked        atomic.Uint64 // messages of replays
	runs         atomic.Uint64
	pub          *zmqpub.Publisher
	now          process
	sent         uint64 // messages, by processes that have ended
	dropped      uint64 // by them at the high-water mark
}

// open makes the proxies and the first process.
func (l *overZMQ) open() (err error) {
	if l.live, err = newProxy(l.judge); err != nil {
		return err
	}
	if l.replay, err = newProxy(l.judgeReplay); err != nil {
		l.live.close()
		return err
	}
	if err = l.restart(); err != nil {
		l.live.close()
		l.replay.close()
	}
	return err
}

// judge loses live messages.
func (l *overZMQ) judge(frames [][]byte) verdict {
	if len(frames) != 3 || len(frames[1]) != 8 || !l.on.Load() {
		return pass
	}
	seq := binary.BigEndian.Uint64(frames[1])
	if hits(chance(l.seed, l.runs.Load(), seq), l.odds.Drop) {
		l.count.dropped.Add(1)
		return drop
	}
	return pass
}

// judgeReplay ends a replay in its middle now and then.
func (l *overZMQ) judgeReplay([][]byte) verdict {
	if l.on.Load() && hits(chance(l.seed, l.asked.Add(1), 10), l.odds.Drop) {
		l.count.requests.Add(1)
		return sever
	}
	return pass
}

func (l *overZMQ) restart() error {
	if l.pub != nil {
		l.end()
	}
	l.runs.Add(1)
	stalled := false
	listen := func(ctx context.Context, network, address string) (net.Listener, error) {
		ln, err := loopback(ctx, network, address)
		if err == nil && !stalled { // the events' socket is opened first; replays go on
			stalled, ln = true, &slowListener{ln, &l.stall}
		}
		return ln, err
	}
	cfg := zmqpub.Config{
		Endpoint: "tcp://*:0", Topic: "kv@" + l.source.Worker, Dialect: l.dialect, BufferSteps: l.ring, HighWater: l.highWater,
		Options: zmtp.Options{Listen: listen},
	}
	if l.replays {
		cfg.ReplayEndpoint = "tcp://*:0"
	}
	pub, err := zmqpub.New(cfg)
	if err != nil {
		return err
	}
	live, replay := pub.Ports()
	l.live.lead(live)
	l.replay.lead(replay)
	l.pub, l.now = pub, start(pub.Run)
	return nil
}

func (l *overZMQ) end() {
	l.now.end()
	l.sent += l.pub.Next()
	l.dropped += l.pub.Dropped()
}

func (l *overZMQ) publish(es []wire.Event) { _ = l.pub.Publish(es) } // its error is always nil

func (l *overZMQ) last() (epoch, seq uint64) { return 0, l.pub.Next() }

func (l *overZMQ) track(sub *follow.Subscriber, blocks, blockSize int) error {
	at := zmq.Address{Endpoint: l.live.address(), Topic: "kv@" + l.source.Worker}
	if l.replays {
		at.Replay = l.replay.address()
	}
	return sub.TrackZMQ(l.source.Pool, l.source.Worker, []int{0}, blockSize, blocks, at)
}

func (l *overZMQ) close() {
	l.stall.open()
	l.live.close()
	l.replay.close()
	l.now.end()
}

// loopback listens on the loopback address in place of all.
func loopback(ctx context.Context, network, address string) (net.Listener, error) {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	return new(net.ListenConfig).Listen(ctx, network, net.JoinHostPort("127.0.0.1", port))
}

// slowListener makes connections that take nothing while a gate is closed, as though the peer did not read and all
// buffers were full.
type slowListener struct {
	net.Listener
	gate *gate
}

func (l *slowListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &slowConn{Conn: c, gate: l.gate, closed: make(chan struct{})}, nil
}

type slowConn struct {
	net.Conn
	gate   *gate
	once   sync.Once
	closed chan struct{}
}

func (c *slowConn) Write(b []byte) (int, error) {
	c.gate.pass(c.closed)
	return c.Conn.Write(b)
}

func (c *slowConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// stateWatch follows the states that a subscriber reports.
type stateWatch struct {
	mu    sync.Mutex // guards all below
	since map[wire.Source]time.Time
	gaps  map[wire.Source]uint64 // seen when it was live
	lived map[wire.Source]bool
	took  map[string][]time.Duration // by transport
	marks map[string]int             // times that one became predicted, by transport
	stale map[wire.Source]bool       // it is predicted
}

func newStateWatch() *stateWatch {
	return &stateWatch{
		since: map[wire.Source]time.Time{}, gaps: map[wire.Source]uint64{}, lived: map[wire.Source]bool{}, took: map[string][]time.Duration{},
		marks: map[string]int{}, stale: map[wire.Source]bool{},
	}
}

// changed takes the states in as they are now.
func (w *stateWatch) changed(all []follow.SourceStatus, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range all {
		if s.State == follow.Predicted && !w.stale[s.Source] {
			w.marks[s.Transport]++
			delete(w.since, s.Source) // when it is known again depends on what the engine does
		}
		w.stale[s.Source] = s.State == follow.Predicted
		from, away := w.since[s.Source]
		// Over NATS a message of an ended process is a reason to ask as well, and no hurry: the view is what it was.
		missing := s.Transport != "nats" || s.Gaps != w.gaps[s.Source]
		switch {
		case s.State == follow.Live && away:
			w.took[s.Transport] = append(w.took[s.Transport], now.Sub(from))
			delete(w.since, s.Source)
		case s.State == follow.Recovering && !away && w.lived[s.Source] && missing:
			w.since[s.Source] = now
		}
		if s.State == follow.Live {
			w.lived[s.Source], w.gaps[s.Source] = true, s.Gaps
		}
	}
}
