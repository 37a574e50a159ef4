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

// holdings is what a request holds of workers. Each round books what it lacks; prepare releases what the next round must
// not keep.
type holdings struct {
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

// complete reports whether everything for a round, or for a prefill pass, is booked.
func (h *holdings) complete() bool {
	return h.p.Lease != nil || h.d.Lease != nil && (h.KV != nil || h.Reason != "")
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
func (h *holdings) book(g *placement.Placement, q *waitingRoom) {
	h.Reason, h.Price, h.stack.queue = g.Reason, g.Price, q
	if d := g.Decode; d.Lease != nil {
		h.d, h.dPlace = d, h.stack.push(held{booking: d})
	}
	if p := g.Prefill; p.Lease != nil {
		h.p, h.pPlace = p, h.stack.push(held{booking: p})
	}
}

// releasePrefill releases the prefill booking and staged KV: the round has one leg.
func (h *holdings) releasePrefill(reason string) {
	if h.p.Lease != nil {
		h.p.Invalidate()
		h.stack.releaseAt(h.pPlace)
		h.p = placement.Booking{}
	}
	if h.KV != nil {
		h.releaseKV()
	}
	h.Reason = reason
}

// stage takes ownership of KV, which is released if no decode worker takes it.
func (h *holdings) stage(kv *StagedKV) { h.KV, h.kvPlace = kv, h.stack.push(held{kv: kv}) }

func (h *holdings) releaseKV() {
	h.stack.releaseAt(h.kvPlace)
	h.KV = nil
}

// prepare releases what the next round must not have.
func (h *holdings) prepare(action Action) {
	switch {
	case action == LocalPrefill:
		h.Reason = placement.ReasonPrefillFailed
	case action == OtherDecode && h.KV != nil:
		h.stack.releaseAt(h.dPlace)
		h.d = placement.Booking{}
	case action == OtherDecode, action == Again:
		h.releaseAll()
	case action == Resume:
		h.releaseAll()
		h.Reason = ""
	}
}

func (h *holdings) releaseAll() {
	h.stack.release()
	h.p, h.d, h.KV = placement.Booking{}, placement.Booking{}, nil
	if h.Reason != placement.ReasonPrefillFailed {
		h.Reason = ""
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
