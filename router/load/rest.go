package load

import (
	"slices"
	"time"
)

// Rest is what is still to be computed of a prompt in slices. It comes back to the worker that computed the latest of them,
// where they are cached; what goes there before it delays it.
type Rest struct {
	Request string
	Takes   time.Duration
	// Drain is the latest drain of the queue that has planned the rest: it counts there as what is planned does.
	Drain uint64

	page *Page // nil once it has ended
}

// Await adds r to the rests that come back to the page's worker, until [Rest.End].
func (p *Page) Await(r *Rest) {
	r.page = p
	p.rests++
	p.line.rests = append(p.line.rests, r)
}

// End ends the wait for the rest. It may be called more than once, and of nil.
func (r *Rest) End() {
	if r == nil || r.page == nil {
		return
	}
	p := r.page
	r.page = nil
	p.rests--
	p.line.rests = slices.DeleteFunc(p.line.rests, func(o *Rest) bool { return o == r })
}

// Awaits reports whether there are any.
func (p *Page) Awaits() bool { return p.rests > 0 }

// Delays is how long the page's rests and a prompt of another request that takes so long delay each other: of each two the
// shorter goes first. What this drain has planned, 0 being none, is left out.
func (p *Page) Delays(request string, takes time.Duration, drain uint64) (delays time.Duration) {
	for _, r := range p.line.rests {
		if r.Request != request && (drain == 0 || r.Drain != drain) {
			delays += min(r.Takes, takes)
		}
	}
	return delays
}
