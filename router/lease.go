package router

import (
	"time"

	"github.com/tandem-pd/tandem/kv/overlap"
	"github.com/tandem-pd/tandem/router/load"
)

// Lease is a worker booked for one leg of one attempt. The holder must call Release. Methods are safe for concurrent
// use, in any order and number; after Release only Invalidate and Compare have an effect.
type Lease struct {
	Choice

	PrefillTokens int // booked prompt tokens; 0 in a pool that does not track them
	// BacklogTokens is all prefill tokens booked on the rank at the grant, its own included. Over the worker's rate
	// they predict when prefill answers.
	BacklogTokens int
	// Slice is how many leading tokens of the prompt to compute; 0: all.
	Slice int

	sent     overlap.Noted       // the prediction made by this booking
	expected overlap.ExpectedHit // for Compare
	router   *Router
	request  string
	attempt  int
	released bool // guarded by router.mu
	promise  promise
	rest     *load.Rest // guarded by router.mu; of a slice
	session  sessionOf  // guarded by router.mu
}

// PrefillDone ends the booking of the prompt's tokens: prefill answered, or the first token arrived.
func (l *Lease) PrefillDone(now time.Time) {
	if l.router != nil {
		l.router.enter(l, l.event(load.PrefillDone), now)
	}
}

// Grow books more blocks for generated tokens. It does nothing for n < 1 or in a pool that does not track active
// blocks.
func (l *Lease) Grow(blocks int, now time.Time) {
	if l.router == nil || !l.router.core.cfg.TrackActiveBlocks {
		return
	}
	e := l.event(load.Grow)
	e.Blocks = blocks
	l.router.enter(l, e, now)
}

// Invalidate takes back the prediction of cached blocks, since the prompt was not computed. Blocks of a later prompt
// stay. It may be called after Release.
func (l *Lease) Invalidate() {
	if l.router != nil {
		l.router.sources.Invalidate(&l.sent)
	}
}

// Compare compares the reported number of cached prompt tokens with the expected hit; below 0: not reported. See
// [overlap.Sources.Compare]. It may be called once, also after Release.
//
// Leave out answers whose prompt came from another worker or had unknown tokens, or where the engine did not use its
// cache.
func (l *Lease) Compare(cachedTokens int) overlap.Verdict {
	if l.router == nil || !l.router.has(l.Worker) {
		return overlap.Unsampled
	}
	return l.router.sources.Compare(&l.expected, l.Worker, l.Rank, cachedTokens)
}

// Release ends the booking.
func (l *Lease) Release(now time.Time) {
	if l.router != nil {
		l.router.enter(l, l.event(load.Free), now)
	}
}

// Computed ends the booking of a computed slice. The worker stays reserved for the rest until the next part is booked
// or [Done.End].
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

// sentTo attaches the lease to its router and records what its worker is about to compute.
func (l *Lease) sentTo(r *Router, c *scratch, now time.Time) {
	l.router = r
	l.sent = r.sources.Sent(l.Worker, l.Rank, c.req.Hashes, c.req.Text, now)
	if l.sent.Any() && r.core.cfg.OnBooking != nil {
		r.noteSent(Sent{l.Worker.ID, l.Rank, c.req.Text, c.req.Hashes})
	}
}

// enter books an event in k, unless the lease ended: its name may be reused.
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

func (l *Lease) event(k load.Kind) load.Event {
	return load.Event{Request: l.request, Attempt: l.attempt, Kind: k}
}
