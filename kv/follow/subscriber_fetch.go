package follow

import (
	"context"
	"slices"
	"time"

	"github.com/tandem-pd/tandem/internal/contain"
)

// schedule begins the requests that are due, as many at once as may be, and sets the timer for the next.
func (s *Subscriber) schedule(ctx context.Context, now time.Time) {
	type request struct {
		of follower
		at time.Time
	}
	var due []request
	var next time.Time
	for _, f := range s.followers {
		if _, ok := f.(*published); f.base().fetching || ok && !s.reach.up {
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

// fetch makes a request in a goroutine of its own. schedule is called again when the answer is there.
func (s *Subscriber) fetch(ctx context.Context, f follower) {
	f.base().fetching = true
	s.active++
	get := f.request(s)
	if f.base().restoring {
		get = s.restore(f)
	}
	s.fetches.Go(func() {
		got := fetched{f, func(time.Time) {}}
		if !contain.Do(s.log, "kv_snapshot", func() { got.take = get(ctx) }) {
			select {
			case <-time.After(s.cfg.RetryMax): // it is asked for again
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
	if s.followers[f.base().name.EventsSubject()] == f { // else it is not followed any more
		got.take(now)
	}
}

// follower is how one rank is followed: [published] or [engine].
type follower interface {
	base() *source
	// due is when something is to be asked for; ok is false where nothing is.
	due(now time.Time) (at time.Time, ok bool)
	// request is what is to be asked. What it returns waits for the answer, outside the loop, and returns how the
	// loop takes the answer in.
	request(s *Subscriber) func(context.Context) (take func(now time.Time))
	// reason is why the source is predicted, as far as its messages are why.
	reason() string
	// stand is what another gateway needs to go on from here, without the view; ok is false where this one does not know
	// the source well enough.
	stand() (at standing, ok bool)
	// resume goes on from where another gateway stands, and reports whether it did. Where it did not, or from is nil, the
	// worker is asked.
	resume(from *restored, now time.Time) bool
}

// fetched is the end of a request.
type fetched struct {
	follower follower
	take     func(now time.Time)
}
