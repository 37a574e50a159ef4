package router

import (
	"time"

	"github.com/tandem-pd/tandem/kv/overlap"
	"github.com/tandem-pd/tandem/router/load"
)

// Lease is a worker booked for one part of one attempt. It lasts until Release, which its holder owes whatever
// happens. Its methods may be called from any goroutine, in any order and any number of times; after Release they do
// nothing, but for Invalidate and Compare. One that no router granted books nothing.
type Lease struct {
	Choice

	PrefillTokens int // the prompt tokens this lease was booked with; 0 in a pool that does not track them
	// BacklogTokens are all prefill tokens booked on the worker's rank when the lease was granted, its own included:
	// over the worker's observed rate, they predict when prefill answers.
	BacklogTokens int
	// Slice is how many of the prompt's tokens, from its beginning, the leg is to compute; 0: all of them.
	Slice int

	sent     overlap.Noted  // what is assumed of the worker because of this booking
	believed overlap.Belief // for Compare
	router   *Router
	request  string
	attempt  int
	released bool // guarded by router.mu
	promise  promise
	rest     *load.Rest // guarded by router.mu; of a slice
	session  sessionOf  // guarded by router.mu
}

// PrefillDone ends the booking of the prompt's tokens: prefill has answered, or the first token is here.
func (l *Lease) PrefillDone(now time.Time) {
	if l.router != nil {
		l.router.enter(l, l.event(load.PrefillDone), now)
	}
}

// Grow books blocks more, for tokens that were generated. A count below 1 books
// none, nor does a pool that does not track active blocks.
func (l *Lease) Grow(blocks int, now time.Time) {
	if l.router == nil || !l.router.core.cfg.TrackActiveBlocks {
		return
	}
	e := l.event(load.Grow)
	e.Blocks = blocks
	l.router.enter(l, e, now)
}

// Invalidate takes back what is assumed to be cached on the worker because of this booking, as far as no later one
// was sent there for the same blocks: the prompt was not computed after all. It may be called after Release as well.
func (l *Lease) Invalidate() {
	if l.router != nil {
		l.router.sources.Invalidate(&l.sent)
	}
}

// Compare compares the prompt tokens that the lease's worker found in its cache with what its events had shown; below
// 0 it did not say. The router keeps count: see [overlap.Sources.Compare]. It may be called once, after Release as
// well, and allocates nothing.
//
// An answer does not bear on a belief where the prompt came from another worker, where the tokens were not known, and
// where the engine did not use its cache: leave such answers out.
func (l *Lease) Compare(cachedTokens int) overlap.Verdict {
	if l.router == nil || !l.router.has(l.Worker) {
		return overlap.Unsampled
	}
	return l.router.sources.Compare(&l.believed, l.Worker, l.Rank, cachedTokens)
}

// Release ends all that was booked.
func (l *Lease) Release(now time.Time) {
	if l.router != nil {
		l.router.enter(l, l.event(load.Free), now)
	}
}

// Computed ends the booking of a slice that was computed, behind what was done of the prompt before. Its worker stays wanted
// for the rest, until the next part is booked or [Done.End].
func (l *Lease) Computed(before Done, now time.Time) Done {
	done := Done{Worker: l.Worker.ID, Rank: l.Rank, Tokens: l.Slice, Slices: before.Slices + 1, router: l.router}
	if l.router != nil {
		l.router.mu.Lock()
		done.rest, l.rest = l.rest, nil
		l.router.mu.Unlock()
	}
	l.Release(now)
	return done
}

// sentTo ties the lease to the router that granted it, and notes what its worker is about to compute.
func (l *Lease) sentTo(r *Router, c *scratch, now time.Time) {
	l.router = r
	l.sent = r.sources.Sent(l.Worker, l.Rank, c.req.Hashes, c.req.Text, now)
	if l.sent.Any() && r.core.cfg.OnBooking != nil {
		r.noteSent(Sent{l.Worker.ID, l.Rank, c.req.Text, c.req.Hashes})
	}
}

// enter books an event in k, unless the lease has ended: another lease may bear the same name by then.
func (l *Lease) enter(k *core, e load.Event, now time.Time) {
	if l.released {
		return
	}
	if l.released = e.Kind == load.Free; l.released {
		l.promise.end()
		l.rest.End()
	}
	k.book.Apply(e, now)
}

// event returns one of the lease's booking.
func (l *Lease) event(k load.Kind) load.Event {
	return load.Event{Request: l.request, Attempt: l.attempt, Kind: k}
}
