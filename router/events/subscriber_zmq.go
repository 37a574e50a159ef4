package events

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/tandem-pd/tandem/router/events/zmtp"
)

// TrackZMQ is Track for a worker whose engine publishes its events by itself, over ZMQ. The error is that of [ZMQ.Validate], or
// a [*PortError].
func (s *Subscriber) TrackZMQ(pool, worker string, ranks []int, blockSize, kvBlocks int, from ZMQ) error {
	if err := from.Validate(1 + slices.Max(append([]int{0}, ranks...))); err != nil {
		return err
	}
	key := workerKey{pool, worker}
	if err := s.portTaken(key, len(ranks), from); err != nil {
		return err
	}
	s.track(key, tracked{slices.Clone(ranks), blockSize, kvBlocks, from})
	return nil
}

// PortError is an engine that is awaited where another is that it could not be told from.
type PortError struct {
	Port   int
	Topic  string
	Worker string // that is awaited there already
}

func (e *PortError) Error() string {
	return fmt.Sprintf("port %d is listened on for worker %q already, with the topic %q: give each engine a port, or a topic of its own", e.Port, e.Worker, e.Topic)
}

// portTaken refuses to await an engine on a port, and for a topic, of another worker's.
func (s *Subscriber) portTaken(key workerKey, ranks int, from ZMQ) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for other, t := range s.wanted {
		if port, taken := from.Collides(ranks, t.zmq, len(t.ranks)); taken && other != key {
			return &PortError{Port: port, Topic: from.Topic, Worker: other.worker}
		}
	}
	return nil
}

// relink connects to the engines of the followers over ZMQ, and ends the other connections.
func (s *Subscriber) relink(ctx context.Context) {
	for f, unlink := range s.links {
		if s.followers[f.source.EventsSubject()] != f {
			unlink()
			delete(s.links, f)
		}
	}
	for _, f := range s.followers {
		if f.trail == nil || s.links[f] != nil {
			continue
		}
		linkCtx, unlink := context.WithCancel(ctx)
		at, _ := zmtp.ParseEndpoint(f.zmq.Endpoint) // TrackZMQ has seen that it can be read
		cfg := linkOf(f, zmtp.SubConfig{
			Options: s.cfg.ZMQ, Endpoint: at.Offset(f.source.Rank), Topic: f.zmq.Topic,
			ReconnectMin: s.cfg.RetryMin, ReconnectMax: s.cfg.RetryMax, Seed: s.rng.Uint64(),
		}, func(a arrival) {
			select {
			case s.arrivals <- a:
			case <-linkCtx.Done():
			}
		})
		s.links[f] = unlink
		if cfg.Endpoint.Binds() {
			leave := s.await(ctx, cfg)
			s.links[f] = func() { unlink(); leave() }
			continue
		}
		s.linked.Go(func() { zmtp.NewSub(cfg).Run(linkCtx) })
	}
}

// awaiting is a port at which engines are awaited.
type awaiting struct {
	hub   *zmtp.Hub
	links int
	end   func()
}

// await follows one rank of an engine that connects to a port, which is listened on for as long as any is.
func (s *Subscriber) await(ctx context.Context, cfg zmtp.SubConfig) (leave func()) {
	at := cfg.Endpoint.Port
	a := s.awaited[at]
	if a == nil {
		var once sync.Once
		a = &awaiting{hub: zmtp.NewHub(cfg.Endpoint, s.cfg.ZMQ, func(err error) {
			if failed, ok := errors.AsType[*net.OpError](err); ok && failed.Op == "listen" {
				once.Do(func() { s.log.Warn("KV events are not listened for; trying until they are", "port", at, "error", err) })
				return
			}
			s.log.Debug("an engine did not connect", "port", at, "error", err)
		})}
		s.awaited[at] = a
		var hubCtx context.Context
		hubCtx, a.end = context.WithCancel(ctx)
		s.linked.Go(func() { a.hub.Run(hubCtx) })
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

// arrive takes what came over ZMQ in and reports whether a replay is wanted because of it.
func (s *Subscriber) arrive(a arrival, now time.Time) bool {
	f := a.follower
	if s.followers[f.source.EventsSubject()] != f {
		return false // nobody follows it any more
	}
	switch a.what {
	case linkUp:
		s.log.Info("KV events connected", "source", f.source, "endpoint", f.zmq.Endpoint)
		f.connected(now)
		return true
	case linkDown:
		s.log.Warn("KV events disconnected; they are asked for again", "source", f.source, "endpoint", f.zmq.Endpoint, "error", a.err)
		f.disconnected(now)
	case linkFailed:
		s.log.Debug("KV events not connected", "source", f.source, "endpoint", f.zmq.Endpoint, "error", a.err)
	case linkUnframed:
		f.count.unframed.Inc()
	case linkMessage:
		f.hear(now)
		return f.live(a.message, now)
	}
	return false
}

// fetchReplay asks f's engine for what comes after what is known.
func (s *Subscriber) fetchReplay(ctx context.Context, f *follower, got *fetched) {
	at, _ := zmtp.ParseEndpoint(f.zmq.Replay) // TrackZMQ has seen that it can be read
	got.replay, got.err = fetchReplay(ctx, at.Offset(f.source.Rank), max(got.last, 1)-1, s.cfg.ZMQ,
		replayLimits{s.cfg.PageTimeout, s.cfg.ReplayTimeout, s.cfg.MaxSnapshotBytes})
}

func (s *Subscriber) finishReplay(got fetched, now time.Time) {
	f := got.follower
	if got.err != nil {
		f.count.failed.Inc()
		f.failed(now, s.cfg.RetryMin, s.cfg.RetryMax, s.rng)
		s.log.Warn("KV events not replayed", "source", f.source, "replay", f.zmq.Replay, "error", got.err)
		f.replayFailed(got.turn)
	} else {
		if len(got.replay) > 0 {
			f.hear(now)
		}
		f.replayed(got.turn, got.last, got.replay, now, s.cfg.RetryMin)
		s.log.Debug("KV events replayed", "source", f.source, "known", got.last, "messages", len(got.replay), "blocks", f.view.Blocks())
	}
}
