package handoff

import (
	"time"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/handoff/connector"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
	"github.com/tandem-pd/tandem/router"
	"github.com/tandem-pd/tandem/router/placement"
)

// attempt is what a request holds of workers. Each round books what it lacks; prepare releases what the next round must
// not keep.
type attempt struct {
	// Reason is why there is no prefill leg, empty if there is one.
	Reason string
	// Price is the predicted cost of the hand-off, where that is the reason.
	Price placement.Price
	// KV is what a prefill worker keeps for the decode leg, nil if there is none.
	KV *StagedKV

	p, d                    placement.Booking // without a lease if none is held
	pPlace, dPlace, kvPlace int               // in the stack
	stack                   cleanupStack
}

// StagedKV is KV that a prefill worker keeps until a decode worker takes it over.
type StagedKV struct {
	prefill.KV
	// Cached is how many prompt tokens the prefill worker had cached, −1 if unreported.
	Cached int

	connector connector.Connector // binds it
	producer  *pools.Worker       // holds it
	permit    permit              // of the prefill call
	round     *connector.Round    // of that prefill leg
	taken     bool                // by decode: nothing to release
}

// reported reports whether decode repeats prefill's count of cached tokens.
func (kv *StagedKV) reported() bool {
	_, ok := kv.connector.(connector.ReportsCached)
	return ok
}

// complete reports whether everything for a round, or for a turn, is booked.
func (a *attempt) complete() bool {
	return a.p.Lease != nil || a.d.Lease != nil && (a.KV != nil || a.Reason != "")
}

// bindSession binds the request's session to the worker of a call that succeeds, or unbinds it from one that failed.
func bindSession(l *router.Lease, failed *fault.Error) {
	switch {
	case failed == nil:
		l.Bind(time.Now())
	case failed.Class.Blames():
		l.Unbind(time.Now())
	}
}

// book adds the bookings that q granted.
func (a *attempt) book(g *placement.Placement, q *waitingRoom) {
	a.Reason, a.Price, a.stack.queue = g.Reason, g.Price, q
	if d := g.Decode; d.Lease != nil {
		a.d, a.dPlace = d, a.stack.push(held{booking: d})
	}
	if p := g.Prefill; p.Lease != nil {
		a.p, a.pPlace = p, a.stack.push(held{booking: p})
	}
}

// releasePrefill releases the prefill booking and staged KV: the round has one leg.
func (a *attempt) releasePrefill(reason string) {
	if a.p.Lease != nil {
		a.p.Invalidate()
		a.stack.releaseAt(a.pPlace)
		a.p = placement.Booking{}
	}
	if a.KV != nil {
		a.releaseKV()
	}
	a.Reason = reason
}

// stage takes ownership of KV, which is released if no decode worker takes it.
func (a *attempt) stage(kv *StagedKV) { a.KV, a.kvPlace = kv, a.stack.push(held{kv: kv}) }

// releaseKV releases the staged KV.
func (a *attempt) releaseKV() {
	a.stack.releaseAt(a.kvPlace)
	a.KV = nil
}

// prepare releases what the next round must not have.
func (a *attempt) prepare(action Action) {
	switch {
	case action == LocalPrefill:
		a.Reason = placement.ReasonPrefillFailed
	case action == OtherDecode && a.KV != nil:
		a.stack.releaseAt(a.dPlace)
		a.d = placement.Booking{}
	case action == OtherDecode, action == Again:
		a.releaseAll()
	case action == Resume:
		a.releaseAll()
		a.Reason = ""
	}
}

// releaseAll releases everything.
func (a *attempt) releaseAll() {
	a.stack.release()
	a.p, a.d, a.KV = placement.Booking{}, placement.Booking{}, nil
	if a.Reason != placement.ReasonPrefillFailed {
		a.Reason = ""
	}
}

// releaseOne releases a booking, or KV that no decode worker took.
func (s *cleanupStack) releaseOne(h *held) {
	switch {
	case h.booking.Lease != nil:
		h.booking.Release(time.Now())
		if s.queue != nil {
			s.queue.Wake()
		}
	case h.kv != nil:
		h.kv.permit.end()
		if !h.kv.taken {
			s.releaseKV(h.kv)
		}
	}
}
