package events

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
)

// schedule begins to fetch the snapshots and replays that are due, as many at once as may be, and sets the timer for the
// next.
func (s *Subscriber) schedule(ctx context.Context, now time.Time) {
	var due []*follower
	var next time.Time
	for _, f := range s.followers {
		if f.trail != nil && !f.wants() {
			if at := f.trail.idle(s.cfg.QuietCheck); !at.IsZero() && at.After(now) {
				if next.IsZero() || at.Before(next) {
					next = at
				}
			} else if !at.IsZero() {
				f.trail.quiet, f.retryAt = true, now
			}
		}
		switch at := f.due(); {
		case f.fetching || !f.wants() || f.trail == nil && !s.reach.up:
		case !at.After(now):
			due = append(due, f)
		case next.IsZero() || at.Before(next):
			next = at
		}
	}
	slices.SortFunc(due, func(a, b *follower) int { return a.due().Compare(b.due()) })
	for _, f := range due[:min(len(due), s.cfg.Concurrency-s.active)] {
		s.fetch(ctx, f)
	}
	if !next.IsZero() {
		s.timer.Reset(next.Sub(now))
	}
}

// fetch gets what is missing, or a snapshot, or a replay, in a goroutine of its own. schedule is called again when it is there.
func (s *Subscriber) fetch(ctx context.Context, f *follower) {
	f.fetching = true
	s.active++
	got := fetched{follower: f, asked: f.flow.horizon()}
	missing := f.missing()
	get := func() {
		from := fetcher{s.bus, s.cfg.PageTimeout, s.cfg.MaxSnapshotBytes}
		got.answer, got.err = from.fetch(ctx, f.source, missing)
	}
	if f.trail != nil {
		got.turn, got.last = f.trail.turn, f.trail.since(&f.flow)
		get = func() { s.fetchReplay(ctx, f, &got) }
	}
	s.fetches.Go(func() {
		get()
		select {
		case s.fetched <- got:
		case <-ctx.Done():
		}
	})
}

func (s *Subscriber) finish(got fetched, now time.Time) {
	f := got.follower
	f.fetching = false
	s.active--
	if s.followers[f.source.EventsSubject()] != f {
		return // nobody follows it any more
	}
	if f.trail != nil {
		s.finishReplay(got, now)
		return
	}
	if got.err == nil && got.answer.history == nil { // a stream speaks of who may be dead
		f.hear(now)
	}
	attempts, epoch, seq := f.attempts, f.flow.Epoch(), f.flow.Seq()
	switch {
	case errors.Is(got.err, nats.ErrNoResponders):
		f.count.unanswered.Inc()
	case got.err != nil:
		f.count.failed.Inc()
		s.log.Warn("KV snapshot not received", "source", f.source, "error", got.err)
	case got.answer.run != nil && f.rerun(got.asked, got.answer.run, now, s.cfg.SnapshotEvery):
		f.count.ring.Inc()
		s.log.Debug("KV events had again", "source", f.source, "from", got.answer.run.first, "messages", len(got.answer.run.messages))
	case got.answer.history != nil && f.recall(got.answer.history, now, s.cfg.SnapshotEvery):
		f.count.recalled.Inc()
		s.log.Debug("KV events recalled", "source", f.source, "messages", len(got.answer.history.messages), "blocks", f.view.Blocks())
	case got.answer.snapshot != nil && f.restore(got.asked, got.answer.snapshot, now, s.cfg.SnapshotEvery):
		f.count.restored.Inc()
		s.log.Debug("KV snapshot applied", "source", f.source, "seq", got.answer.snapshot.seq, "blocks", f.view.Blocks())
	default:
		f.count.outdated.Inc()
	}
	if moved := f.flow.Epoch() != epoch || f.flow.Seq() != seq; got.err != nil || !moved && f.flow.Behind() {
		f.attempts = attempts // an answer that brings nothing is none, or it would be asked for again and again at once
		f.failed(now, s.cfg.RetryMin, s.cfg.RetryMax, s.rng)
	}
	f.publish()
}
