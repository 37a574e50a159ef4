package follow

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/tandem-pd/tandem/internal/guard"
	"github.com/tandem-pd/tandem/kv/zmq"
)

// TrackZMQ is Track for an engine that publishes its events over ZMQ. The error is [ZMQ.Validate]'s or a [*PortError].
func (s *Subscriber) TrackZMQ(pool, worker string, ranks []int, blockSize, kvBlocks int, from zmq.Address) error {
	if err := from.Validate(1 + slices.Max(append([]int{0}, ranks...))); err != nil {
		return err
	}
	key := workerKey{pool, worker}
	if err := s.portTaken(key, len(ranks), from); err != nil {
		return err
	}
	s.track(key, tracked{ranks: slices.Clone(ranks), blockSize: blockSize, capacity: kvBlocks, zmq: from})
	return nil
}

// PortError refuses to wait for an engine on a port and topic of another.
type PortError struct {
	Port   int
	Topic  string
	Worker string // the worker expected there
}

func (e *PortError) Error() string {
	return fmt.Sprintf("port %d is listened on for worker %q already, with the topic %q: "+
		"give each engine a port, or a topic of its own", e.Port, e.Worker, e.Topic)
}

// portTaken refuses a port and topic of another worker's engine.
func (s *Subscriber) portTaken(key workerKey, ranks int, from zmq.Address) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for other, t := range s.wanted {
		if port, taken := from.Collides(ranks, t.zmq, len(t.ranks)); taken && other != key {
			return &PortError{Port: port, Topic: from.Topic, Worker: other.worker}
		}
	}
	return nil
}

// arrival is a message over ZMQ, or another event of a connection.
type arrival struct {
	of      *zmqSource
	message zmq.Message
	event   func(now time.Time) // nil for a message
}

// relink connects to the tracked ZMQ engines and closes other connections.
func (s *Subscriber) relink(ctx context.Context) {
	for e, unlink := range s.links {
		if s.followers[e.name.EventsSubject()] != e {
			unlink()
			delete(s.links, e)
		}
	}
	for _, f := range s.followers {
		e, ok := f.(*zmqSource)
		if !ok || s.links[e] != nil {
			continue
		}
		linkCtx, unlink := context.WithCancel(ctx)
		cfg := s.linkTo(e, func(a arrival) {
			select {
			case s.arrivals <- a:
			case <-linkCtx.Done():
			}
		})
		s.links[e] = unlink
		if cfg.Endpoint.Binds() {
			leave := s.await(ctx, cfg)
			s.links[e] = func() { unlink(); leave() }
			continue
		}
		s.linked.Go(func() {
			_ = guard.Run(linkCtx, s.log, "zmq", func(ctx context.Context) error { zmq.NewSub(cfg).Run(ctx); return nil })
		})
	}
}

// linkTo connects to an engine. pass handles arrivals, one at a time, and may block.
func (s *Subscriber) linkTo(e *zmqSource, pass func(arrival)) zmq.SubConfig {
	at, _ := zmq.ParseEndpoint(e.how.zmq.Endpoint) // TrackZMQ has validated it
	log := s.log.With("source", e.name, "endpoint", e.how.zmq.Endpoint)
	event := func(do func(now time.Time)) { pass(arrival{of: e, event: do}) }
	return zmq.SubConfig{
		Options: s.cfg.ZMQ, Endpoint: at.Offset(e.name.Rank), Topic: e.how.zmq.Topic,
		ReconnectMin: s.cfg.RetryMin, ReconnectMax: s.cfg.RetryMax, Seed: s.rng.Uint64(),
		Connected: func() {
			event(func(now time.Time) {
				log.Info("KV events connected")
				e.connect(now)
			})
		},
		Lost: func(err error) {
			event(func(now time.Time) {
				log.Warn("KV events disconnected; connecting again", "error", err)
				e.disconnect(now)
				if s.cfg.OnCut != nil && closedByPeer(err) {
					s.cfg.OnCut(e.name.Worker)
				}
			})
		},
		Failed: func(err error) { event(func(time.Time) { log.Debug("KV events not connected", "error", err) }) },
		Message: func(m zmq.Frames) {
			if n, ok := zmq.ReadFrames(m.Frames); ok {
				pass(arrival{of: e, message: n})
			} else {
				event(func(time.Time) { e.count.skipped("unframed", 1) })
			}
		},
	}
}

// closedByPeer reports whether the other side closed a connection, rather than a timeout or a bad message.
func closedByPeer(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET)
}

// awaiting is a port that engines connect to.
type awaiting struct {
	hub   *zmq.Hub
	links int
	end   func()
}

// await follows one rank of an engine that connects to a port. The port is open while any rank uses it.
func (s *Subscriber) await(ctx context.Context, cfg zmq.SubConfig) (leave func()) {
	at := cfg.Endpoint.Port
	a := s.awaited[at]
	if a == nil {
		var once sync.Once
		a = &awaiting{hub: zmq.NewHub(cfg.Endpoint, s.cfg.ZMQ, func(err error) {
			if failed, ok := errors.AsType[*net.OpError](err); ok && failed.Op == "listen" {
				once.Do(func() { s.log.Warn("cannot listen for KV events; retrying", "port", at, "error", err) })
				return
			}
			s.log.Debug("engine connection failed", "port", at, "error", err)
		})}
		s.awaited[at] = a
		var hubCtx context.Context
		hubCtx, a.end = context.WithCancel(ctx)
		s.linked.Go(func() {
			_ = guard.Run(hubCtx, s.log, "zmq", func(ctx context.Context) error { a.hub.Run(ctx); return nil })
		})
	}
	a.links++
	drop := a.hub.Add(cfg)
	return func() {
		drop()
		if a.links--; a.links == 0 {
			a.end()
			delete(s.awaited, at)
		}
	}
}

// arrive handles an arrival over ZMQ and reports whether it makes a replay wanted.
func (s *Subscriber) arrive(a arrival, now time.Time) bool {
	e := a.of
	switch {
	case s.followers[e.name.EventsSubject()] != e:
		return false // no longer followed
	case a.event != nil:
		a.event(now)
		return true
	}
	e.touch(now)
	return e.live(a.message, now)
}
