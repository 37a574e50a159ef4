package follow

import (
	"context"
	"slices"
	"time"

	"github.com/tandem-pd/tandem/internal/guard"
)

// schedule starts the due requests, up to the limit, and sets the timer for the next.
func (s *Subscriber) schedule(ctx context.Context, now time.Time) {
	type request struct {
		of follower
		at time.Time
	}
	var due []request
	var next time.Time
	for _, f := range s.followers {
		if _, ok := f.(*natsSource); f.base().fetching || ok && !s.reach.up {
			continue
		}
		if f.base().restoring && (!s.peers.any() || f.base().flow.seq > 0) {
			f.base().restoring = false
			f.resume(nil, now)
		}
		switch at, ok := f.due(now); {
		case !ok, f.base().restoring && !s.peers.known:
		case !at.After(now):
			due = append(due, request{f, at})
		case next.IsZero() || at.Before(next):
			next = at
		}
	}
	slices.SortFunc(due, func(a, b request) int { return a.at.Compare(b.at) })
	for _, r := range due[:min(len(due), s.cfg.Concurrency-s.active)] {
		s.fetch(ctx, r.of)
	}
	if !next.IsZero() {
		s.timer.Reset(next.Sub(now))
	}
}

// fetch runs a request in its own goroutine and schedules again after the answer.
func (s *Subscriber) fetch(ctx context.Context, f follower) {
	f.base().fetching = true
	s.active++
	get := f.request(s)
	if f.base().restoring {
		get = s.restore(f)
	}
	s.fetches.Go(func() {
		got := fetched{f, func(time.Time) {}}
		if !guard.Do(s.log, "kv_snapshot", func() { got.take = get(ctx) }) {
			select {
			case <-time.After(s.cfg.RetryMax): // it is requested again
			case <-ctx.Done():
			}
		}
		select {
		case s.fetched <- got:
		case <-ctx.Done():
		}
	})
}

func (s *Subscriber) finish(got fetched, now time.Time) {
	f := got.follower
	f.base().fetching = false
	s.active--
	if s.followers[f.base().name.EventsSubject()] == f { // otherwise no longer followed
		got.take(now)
	}
}

// follower follows one rank: [natsSource] or [zmqSource].
type follower interface {
	base() *source
	// due returns when a request is due; ok is false for none.
	due(now time.Time) (at time.Time, ok bool)
	// request returns a func that waits for the answer outside the loop and returns a func that applies it in the loop.
	request(s *Subscriber) func(context.Context) (take func(now time.Time))
	// reason returns why the source is predicted, by its messages.
	reason() string
	// stand returns the position for another gateway, without the view; ok is false if the source is not known well
	// enough.
	stand() (at standing, ok bool)
	// resume continues from another gateway's position and reports whether it did. If not, or from is nil, the worker
	// is queried.
	resume(from *restored, now time.Time) bool
}

// fetched is the result of a request.
type fetched struct {
	follower follower
	take     func(now time.Time)
}
