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

// attempt is what a request holds of workers. Each round books what is lacking; after a failure, prepare frees what
// the next round must not have.
type attempt struct {
	// Reason says why there is no prefill leg, empty if there is one.
	Reason string
	// Price is what a hand-off was predicted to cost, where that is the reason.
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
	// Cached is the prompt's tokens that the prefill worker had cached, −1 if it did not report it.
	Cached int

	connector connector.Connector // which binds it
	producer  *pools.Worker       // which holds it
	permit    permit              // of the call that made it
	round     *connector.Round    // whose prefill leg made it
	taken     bool                // decode has it: there is nothing to abandon
}

// reported says that decode's own figure of cached tokens is prefill's.
func (kv *StagedKV) reported() bool {
	_, ok := kv.connector.(connector.ReportsCached)
	return ok
}

// complete reports whether nothing is lacking for a round, or for a turn.
func (a *attempt) complete() bool {
	return a.p.Lease != nil || a.d.Lease != nil && (a.KV != nil || a.Reason != "")
}

// bindSession binds the request's session to the worker of a call that has shown a sign of success, or drops its binding to one
// that has failed.
func bindSession(l *router.Lease, failed *fault.Error) {
	switch {
	case failed == nil:
		l.Bind(time.Now())
	case failed.Class.Blames():
		l.Unbind(time.Now())
	}
}

// book adds a placement's bookings, which q granted.
func (a *attempt) book(g *placement.Placement, q *waitingRoom) {
	a.Reason, a.Price, a.stack.queue = g.Reason, g.Price, q
	if d := g.Decode; d.Lease != nil {
		a.d, a.dPlace = d, a.stack.push(held{booking: d})
	}
	if p := g.Prefill; p.Lease != nil {
		a.p, a.pPlace = p, a.stack.push(held{booking: p})
	}
}

// dropPrefill gives up what was booked or staged for decode: the round has one leg.
func (a *attempt) dropPrefill(reason string) {
	if a.p.Lease != nil {
		a.p.Invalidate()
		a.stack.free(a.pPlace)
		a.p = placement.Booking{}
	}
	if a.KV != nil {
		a.dropKV()
	}
	a.Reason = reason
}

// stage takes responsibility for KV, which is abandoned if no decode worker takes it.
func (a *attempt) stage(kv *StagedKV) { a.KV, a.kvPlace = kv, a.stack.push(held{kv: kv}) }

// dropKV gives staged KV up.
func (a *attempt) dropKV() {
	a.stack.free(a.kvPlace)
	a.KV = nil
}

// prepare frees what the next round must not have.
func (a *attempt) prepare(action Action) {
	switch {
	case action == LocalPrefill:
		a.Reason = placement.ReasonPrefillFailed
	case action == OtherDecode && a.KV != nil:
		a.stack.free(a.dPlace)
		a.d = placement.Booking{}
	case action == OtherDecode, action == Again:
		a.startOver()
	case action == Resume:
		a.startOver()
		a.Reason = ""
	}
}

// startOver frees everything.
func (a *attempt) startOver() {
	a.stack.release()
	a.p, a.d, a.KV = placement.Booking{}, placement.Booking{}, nil
	if a.Reason != placement.ReasonPrefillFailed {
		a.Reason = ""
	}
}

// letGo gives a booking back, or KV up that no decode worker took.
func (s *cleanupStack) letGo(h *held) {
	switch {
	case h.booking.Lease != nil:
		h.booking.GiveBack(time.Now())
		if s.queue != nil {
			s.queue.Wake()
		}
	case h.kv != nil:
		h.kv.permit.end()
		if !h.kv.taken {
			s.abandoned = true
			s.abandon(h.kv)
		}
	}
}
