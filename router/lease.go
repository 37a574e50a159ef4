package router

import (
	"time"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router/load"
)

// Lease is a worker booked for one leg of one attempt. It lasts until Release,
// which its holder owes whatever happens. Its methods may be called from any
// goroutine, in any order and any number of times; after Release they do
// nothing, but for Withdraw.
type Lease struct {
	Worker *pools.Worker
	Rank   int
	Why    // the choice: Policy, Cost, Overlap, Candidates

	// PrefillTokens are the prompt tokens this lease was booked with; 0 in a pool
	// that does not track them.
	PrefillTokens int
	// BacklogTokens are all prefill tokens booked on the worker's rank when the
	// lease was granted, its own included: over the worker's observed rate, they
	// predict when prefill answers.
	BacklogTokens int

	noted    noted  // what was predicted of the worker for this booking
	believed belief // for Compare
	router   *Router
	request  string
	attempt  int
	released bool // guarded by router.mu
}

// PrefillDone ends the booking of the prompt's tokens: prefill has answered, or
// the first token is here.
func (l *Lease) PrefillDone(now time.Time) { l.tell(l.event(load.PrefillDone), now) }

// Grow books blocks more, for tokens that were generated. A count below 1 books
// none, nor does a pool that does not track active blocks.
func (l *Lease) Grow(blocks int, now time.Time) {
	if !l.router.cfg.TrackActiveBlocks {
		return
	}
	e := l.event(load.Grow)
	e.Blocks = blocks
	l.tell(e, now)
}

// Withdraw takes back what was predicted to be cached on the worker because of
// this booking, as far as no later one was sent there for the same blocks: the
// prompt was not computed after all. It does nothing where nothing was
// predicted, and may be called after Release as well.
func (l *Lease) Withdraw() {
	l.noted.withdraw()
}

// Release ends all that was booked.
func (l *Lease) Release(now time.Time) {
	l.router.mu.Lock()
	defer l.router.mu.Unlock()
	l.free(now)
}

// free is Release for a caller that holds the router's lock.
func (l *Lease) free(now time.Time) {
	if l.released {
		return
	}
	l.released = true
	l.router.book.Apply(l.event(load.Free), now)
}

// tell enters an event, unless the lease has ended: another lease may bear the
// same name by then.
func (l *Lease) tell(e load.Event, now time.Time) {
	l.router.mu.Lock()
	defer l.router.mu.Unlock()
	if !l.released {
		l.router.book.Apply(e, now)
	}
}

// event returns one of the lease's booking.
func (l *Lease) event(k load.Kind) load.Event {
	return load.Event{Request: l.request, Attempt: l.attempt, Kind: k}
}
