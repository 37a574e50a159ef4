package events

import (
	"context"
	"slices"
	"time"

	"github.com/tandem-pd/tandem/router/events/zmtp"
)

// TrackZMQ is Track for a worker whose engine publishes its events by itself, over ZMQ. The error is that of [ZMQ.Validate].
func (s *Subscriber) TrackZMQ(pool, worker string, ranks []int, blockSize, kvBlocks int, from ZMQ) error {
	if err := from.Validate(1 + slices.Max(append([]int{0}, ranks...))); err != nil {
		return err
	}
	s.track(workerKey{pool, worker}, tracked{slices.Clone(ranks), blockSize, kvBlocks, from})
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
		s.links[f] = unlink
		at, _ := zmtp.ParseEndpoint(f.zmq.Endpoint) // TrackZMQ has seen that it can be read
		cfg := zmtp.SubConfig{
			Options: s.cfg.ZMQ, Endpoint: at.Offset(f.source.Rank), Topic: f.zmq.Topic,
			ReconnectMin: s.cfg.RetryMin, ReconnectMax: s.cfg.RetryMax, Seed: s.rng.Uint64(),
		}
		s.linked.Go(func() {
			link(linkCtx, f, cfg, func(a arrival) {
				select {
				case s.arrivals <- a:
				case <-linkCtx.Done():
				}
			})
		})
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
