// Package placement decides which workers serve a request: a prefill and a decode worker, or one worker that does
// both.
//
// [Placer.Route] finds the pools that compute and generate, from one snapshot of the model's pools. [Placer.Book]
// picks the workers, books them and acquires the permits to call them; [Placer.Pick] makes the same choice and books
// nothing. The gateway's queue, the simulator and `gateway select` all call these, so that they choose alike.
//
// The package is a core: it reads no clock and holds no lock, and what the routers and permits answer is its input.
package placement

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/tandem-pd/tandem/router"
)

// Reasons why a request is served without a prefill leg, besides those of [Ask.OneLeg]; metric labels.
const (
	ReasonAggregated    = "aggregated"         // the worker does both
	ReasonNoPrefill     = "no_prefill_worker"  // none was left to choose
	ReasonNoPartner     = "no_common_protocol" // no prefill worker can hand over to a decode worker
	ReasonPrefillFailed = "prefill_failed"     // every other worker had failed
	ReasonSlow          = "slow_transfer"      // the prompt's KV would move slower than decode computes it
	ReasonFailing       = "failing_transfer"   // the latest hand-offs to the decode worker failed
)

// Why nothing was placed. The routers' own errors come through as well: see [Waits].
var (
	// ErrNoDecode: no worker that generates can be chosen.
	ErrNoDecode = errors.New("no decode worker is available")
	// ErrNoPrefill: no prefill worker can be chosen, and decode may not stand in.
	ErrNoPrefill = errors.New("no prefill worker is available and decode may not stand in")
	// ErrOnTrial: every worker that could serve has one call on trial, whose end decides.
	ErrOnTrial = errors.New("every worker that could serve is on trial")
	// ErrYield comes with another error for which [Waits] holds: there is room, but it is left to the request of [Ask.Yield].
	ErrYield = errors.New("room is left to a request at another gateway")
)

// AloneError refuses an ask that one worker must serve alone, when every worker needs a partner.
type AloneError struct {
	Reason string // see [Ask.OneLeg]
}

func (e *AloneError) Error() string {
	return "the request needs one worker that serves it alone, and there is none: " + e.Reason
}

// Waits reports whether waiting may resolve err: a token, a release or the end of a trial makes room.
func Waits(err error) bool {
	_, later := errors.AsType[*router.LaterError](err)
	return later || errors.Is(err, router.ErrBusy) || errors.Is(err, router.ErrNoRoom) || errors.Is(err, ErrOnTrial)
}

// Placement is the workers of one round of a request, booked or only picked.
type Placement struct {
	// Prefill computes the prompt; without a lease, Decode does that itself, or the ask keeps what it has.
	Prefill Booking
	// Decode generates the answer; without a lease, the ask keeps the worker that it has.
	Decode Booking
	// Reason is why there is no prefill leg, empty for a leg or when none is needed.
	Reason string
	// Price is the predicted cost of the hand-off, if that is the reason.
	Price Price
	// Took is the time of the choice, set by the caller.
	Took time.Duration
}

// Booking is one leg's worker and the permit to call it.
type Booking struct {
	*router.Lease // nil where there is no such leg
	// Done reports how the call ended: nil for its first sign of success, or its error. It is nil if the worker was only
	// picked.
	Done func(err error)
}

// Leases returns the leases of the legs, prefill's first.
func (p *Placement) Leases() []*router.Lease {
	return slices.DeleteFunc([]*router.Lease{p.Prefill.Lease, p.Decode.Lease}, func(l *router.Lease) bool { return l == nil })
}

// Release releases a placement that is not used: no prompt was sent to its workers.
func (p *Placement) Release(now time.Time) {
	for _, l := range p.Leases() {
		l.Invalidate()
	}
	p.Prefill.Release(now)
	p.Decode.Release(now)
}

// Release ends the booking, if there is one, and its permit, unless Done was called: a call that was not made shows
// nothing of its worker.
func (b *Booking) Release(now time.Time) {
	if b.Done != nil {
		b.Done(context.Canceled)
	}
	if b.Lease != nil {
		b.Lease.Release(now)
	}
}
