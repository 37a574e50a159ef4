package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/internal/kvevents/follow"
	"github.com/tandem-pd/tandem/internal/kvevents/natsbus"
	"github.com/tandem-pd/tandem/internal/kvevents/wire"
	"github.com/tandem-pd/tandem/lab/engine"
	"github.com/tandem-pd/tandem/lab/replay"
	"github.com/tandem-pd/tandem/router/feed"
	"github.com/tandem-pd/tandem/router/index"
)

// config is one replay.
type config struct {
	stream streamConfig
	trace  *replay.Workload
	// Speedup is how much faster than the trace's clock events are sent.
	speedup float64
	nats    chances
	zmq     chances
	// lostRequests is how often a request for a snapshot gets no answer.
	lostRequests float64
	restarts     int     // of engines, over each transport
	cuts         int     // of connections over ZMQ
	outages      int     // of the NATS server
	clears       int     // of caches, over each transport
	stalls       int     // slow receivers, over each transport
	stallFor     float64 // share of the trace for which the subscriber takes nothing over NATS, each time
	shortRings   int     // of the engines over ZMQ, those whose buffer is of four batches
	noReplay     int     // of the engines over ZMQ, those without a replay socket
	pending      int     // messages that wait for the subscriber at most over NATS
	highWater    int     // messages that wait for it at most at the engines over ZMQ whose receiver will be slow
	heartbeat    time.Duration
	subscriber   follow.Config
	sampleEvery  time.Duration
	settle       time.Duration // how long the end may take to become exact
	deaf         bool          // requests stay unanswered to the end: the index must then be found wrong
}

// The pools of the two halves. Each has an index of its own.
const (
	natsPool = "nats/both"
	zmqPool  = "zmq/both"
)

// session is a replay that runs.
type session struct {
	cfg    config
	stream *stream
	server *natsbus.Server
	port   int
	on     atomic.Bool // things go wrong
	counts map[string]*injected
	links  []link // by engine
	sub    *follow.Subscriber
	bus    *forgetful
	heard  *nats.Conn // the subscriber's
	idx    map[string]*index.Index
	reg    *prometheus.Registry
	states *stateWatch
	runs   sync.WaitGroup
	stop   context.CancelFunc

	begun   time.Time
	actions []action
	marks   []marker // by engine
	nextTo  int      // engine to sample
	extra   int      // prompts in addition to the trace
	sampled time.Time
	result  result
}

// poolOf says which half an engine is of: they take turns.
func poolOf(i int) string {
	if i%2 == 0 {
		return natsPool
	}
	return zmqPool
}

// run replays a trace, and returns the result. The error is that the index did not become what the engines hold, or
// that something could not be set up.
func run(ctx context.Context, cfg config) (*result, error) {
	s := &session{
		cfg: cfg, counts: map[string]*injected{natsPool: {}, zmqPool: {}}, states: newStateWatch(), reg: prometheus.NewRegistry(),
		idx:   map[string]*index.Index{natsPool: index.New(index.Config{}), zmqPool: index.New(index.Config{})},
		marks: make([]marker, cfg.stream.Engines),
	}
	s.result.init(cfg)
	defer s.close()
	if err := s.open(ctx); err != nil {
		return nil, err
	}
	if err := s.play(ctx); err != nil {
		return nil, err
	}
	err := s.end(ctx)
	s.sum()
	return &s.result, err
}

// open starts everything and waits until every engine is followed.
func (s *session) open(ctx context.Context) error {
	var err error
	if s.stream, err = newStream(s.cfg.stream, s.cfg.trace.Requests); err != nil {
		return err
	}
	if s.server, err = natsbus.StartCore(0); err != nil {
		return err
	}
	u, err := url.Parse(s.server.URL())
	if err != nil {
		return err
	}
	if s.port, err = strconv.Atoi(u.Port()); err != nil {
		return err
	}
	quiet := slog.New(slog.DiscardHandler)
	if s.heard, err = s.connect(); err != nil {
		return err
	}
	s.bus = &forgetful{
		Bus:  natsbus.OverNATS(s.heard, natsbus.PendingLimits{Messages: s.cfg.pending}, quiet),
		seed: s.cfg.stream.Seed, odds: s.cfg.lostRequests, count: s.counts[natsPool], on: &s.on,
	}
	cfg := s.cfg.subscriber
	cfg.OnState = func() { s.states.changed(s.sub.Sources(), time.Now()) }
	s.sub, err = follow.New(cfg, s.bus, feed.Into(func(pool string) *index.Index { return s.idx[pool] }), quiet, s.reg)
	if err != nil {
		return err
	}
	runCtx, cancel := context.WithCancel(context.Background())
	s.stop = cancel
	s.runs.Go(func() { _ = s.sub.Run(runCtx) }) // its error is a bus that is closed, and then nothing becomes live
	for i := range s.cfg.stream.Engines {
		l, err := s.link(i, quiet)
		if err != nil {
			return err
		}
		s.links = append(s.links, l)
		if err := l.track(s.sub, s.cfg.stream.Cache/s.cfg.stream.Block, s.cfg.stream.Block); err != nil {
			return err
		}
	}
	return until(ctx, s.cfg.settle, "every engine is followed", func() bool {
		for i, l := range s.links {
			z, overZ := l.(*overZMQ)
			if overZ && z.pub.Subscribers() == 0 || !overZ && s.status(i).State != follow.Live {
				return false
			}
		}
		return true
	})
}

func (s *session) connect() (*nats.Conn, error) {
	return nats.Connect(s.server.URL(), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond),
		nats.ReconnectJitter(10*time.Millisecond, 10*time.Millisecond), nats.ReconnectBufSize(-1),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
}

// slow says that an engine over ZMQ is to have receivers that are slow: the last ones.
func (s *session) slow(i int) bool { return i >= s.cfg.stream.Engines-2*slowReceivers }

// slowReceivers is how many engines have them at once.
const slowReceivers = 3

// link makes an engine's way to the subscriber.
func (s *session) link(i int, log *slog.Logger) (link, error) {
	pool := poolOf(i)
	source := wire.Source{Pool: pool, Worker: name(i)}
	seed := chance(s.cfg.stream.Seed, uint64(i), 11)
	if pool == natsPool {
		conn, err := s.connect()
		if err != nil {
			return nil, err
		}
		bus := &unreliable{
			Bus: natsbus.OverNATS(conn, natsbus.PendingLimits{}, log), seed: seed, window: 6, wait: 50 * time.Millisecond,
			count: s.counts[pool], on: &s.on, odds: s.cfg.nats, usual: s.cfg.nats,
		}
		l := &overNATS{source: source, seed: seed, heartbeat: s.cfg.heartbeat, conn: conn, bus: bus, log: log}
		return l, l.restart()
	}
	nth := i / 2
	l := &overZMQ{
		source: source, seed: seed, replays: nth >= s.cfg.noReplay, odds: s.cfg.zmq, on: &s.on,
		count: s.counts[pool], dialect: wire.Dialect(nth % 4),
	}
	if nth >= s.cfg.noReplay && nth < s.cfg.noReplay+s.cfg.shortRings {
		l.ring = 4
	}
	if s.slow(i) {
		l.highWater = s.cfg.highWater
	}
	return l, l.open()
}

// play sends the trace, with all that is to go wrong.
func (s *session) play(ctx context.Context) error {
	s.actions = s.plan()
	s.on.Store(true)
	s.begun = time.Now()
	for {
		until := time.Duration(1<<63 - 1)
		if len(s.actions) > 0 {
			until = s.actions[0].at
		}
		st, said, err := s.stream.next(until)
		switch {
		case err != nil:
			return err
		case said:
			if err := s.wait(ctx, st.at); err != nil {
				return err
			}
			s.tell(st.engine, st.events)
		case len(s.actions) > 0:
			a := s.actions[0]
			s.actions = s.actions[1:]
			if err := s.wait(ctx, a.at); err != nil {
				return err
			}
			if err := a.do(); err != nil {
				return fmt.Errorf("%s: %w", a.what, err)
			}
		default:
			s.result.Took = time.Since(s.begun)
			return nil
		}
	}
}

// wait lets the clock come to a moment of the trace, and samples meanwhile.
func (s *session) wait(ctx context.Context, at time.Duration) error {
	due := s.begun.Add(time.Duration(float64(at) / s.cfg.speedup))
	for {
		now := time.Now()
		if now.Sub(s.sampled) >= s.cfg.sampleEvery {
			s.sample(now)
		}
		left := due.Sub(now)
		if left <= 0 {
			s.result.Behind = max(s.result.Behind, -left)
			return ctx.Err()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(min(left, s.cfg.sampleEvery)):
		}
	}
}

// tell publishes an engine's events.
func (s *session) tell(m *machine, es []engine.Event) {
	out := make([]wire.Event, 0, len(es))
	for i := range es {
		out = append(out, eventOf(&es[i]))
		s.result.half(m.id).count(&es[i])
	}
	s.links[m.id].publish(out)
	_, seq := s.links[m.id].last()
	s.marks[m.id].note(seq, time.Now())
}

// eventOf gives an engine's event its published form.
func eventOf(e *engine.Event) wire.Event {
	out := wire.Event{Hashes: make([]wire.Hash, len(e.Hashes))}
	for i, h := range e.Hashes {
		out.Hashes[i] = wire.Hash(h)
	}
	switch e.Kind {
	case engine.Stored:
		out.Kind, out.Parent, out.HasParent = wire.Stored, wire.Hash(e.Parent), e.HasParent
		out.Tokens, out.BlockSize, out.Medium = e.TokenIDs, e.BlockSize, "GPU"
	case engine.Removed:
		out.Kind, out.Medium = wire.Removed, "GPU"
	case engine.Cleared:
		out.Kind, out.Hashes = wire.Cleared, nil
	}
	return out
}

// status is what the subscriber says of an engine.
func (s *session) status(i int) follow.SourceStatus {
	for _, st := range s.sub.Sources() {
		if st.Source.Worker == name(i) {
			return st
		}
	}
	return follow.SourceStatus{}
}

func (s *session) close() {
	if s.bus != nil {
		s.bus.gate.open()
	}
	if s.stop != nil {
		s.stop()
	}
	for _, l := range s.links {
		l.close()
	}
	if s.heard != nil {
		s.heard.Close()
	}
	s.runs.Wait()
	if s.server != nil {
		s.server.Close()
	}
}

// errNever is a condition that did not come true.
var errNever = errors.New("it never came true")

// until waits for a condition for so long.
func until(ctx context.Context, limit time.Duration, what string, condition func() bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("within %v: %s: %w", limit, what, errNever))
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
	return nil
}
