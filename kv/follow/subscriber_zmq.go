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

	"github.com/tandem-pd/tandem/internal/contain"
	"github.com/tandem-pd/tandem/kv/zmq"
)

// TrackZMQ is Track for a worker whose engine publishes its events by itself, over ZMQ. The error is that of [ZMQ.Validate], or
// a [*PortError].
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

// PortError is an engine that is awaited on the port, and for the topic, of another.
type PortError struct {
	Port   int
	Topic  string
	Worker string // that is awaited there already
}

func (e *PortError) Error() string {
	return fmt.Sprintf("port %d is listened on for worker %q already, with the topic %q: give each engine a port, or a topic of its own", e.Port, e.Worker, e.Topic)
}

// portTaken refuses to await an engine on a port, and for a topic, of another worker's.
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

// arrival is one message that came over ZMQ, or another event of a connection.
type arrival struct {
	of      *engine
	message zmq.Message
	event   func(now time.Time) // nil for a message
}

// relink connects to the engines that are followed over ZMQ, and ends the other connections.
func (s *Subscriber) relink(ctx context.Context) {
	for e, unlink := range s.links {
		if s.followers[e.name.EventsSubject()] != e {
			unlink()
			delete(s.links, e)
		}
	}
	for _, f := range s.followers {
		e, ok := f.(*engine)
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
			_ = contain.Run(linkCtx, s.log, "zmq", func(ctx context.Context) error { zmq.NewSub(cfg).Run(ctx); return nil })
		})
	}
}

// linkTo is how an engine is connected to. pass is called with what arrives, one call at a time, and may wait.
func (s *Subscriber) linkTo(e *engine, pass func(arrival)) zmq.SubConfig {
	at, _ := zmq.ParseEndpoint(e.how.zmq.Endpoint) // TrackZMQ has seen that it can be read
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

// closedByPeer reports whether the other side ended a connection, and not silence or what it sent.
func closedByPeer(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET)
}

// awaiting is a port at which engines are awaited.
type awaiting struct {
	hub   *zmq.Hub
	links int
	end   func()
}

// await follows one rank of an engine that connects to a port, which is listened on for as long as any is.
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
			_ = contain.Run(hubCtx, s.log, "zmq", func(ctx context.Context) error { a.hub.Run(ctx); return nil })
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

// arrive takes in what came over ZMQ and reports whether a replay is wanted because of it.
func (s *Subscriber) arrive(a arrival, now time.Time) bool {
	e := a.of
	switch {
	case s.followers[e.name.EventsSubject()] != e:
		return false // it is not followed any more
	case a.event != nil:
		a.event(now)
		return true
	}
	e.hear(now)
	return e.live(a.message, now)
}
