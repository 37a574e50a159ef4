package handoff

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/handoff/connector"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router/placement"
)

// turn computes the prompt, or a slice of it, on a prefill worker booked alone: in mode eft decode is chosen
// afterwards. The KV of a whole prompt is staged; that of a slice stays in the worker's prefix cache.
func (f *Flow) turn(ctx context.Context, r *request) *fault.Error {
	speaks, standIn := f.handsOverLater(r.p.Worker)
	if speaks == nil { // the decode workers are gone
		r.releaseAll()
		return nil
	}
	r.now = new(roundMemory) // it keeps the KV while the request's own serves decode
	a := r.roundOf(r.ID+"-"+strconv.Itoa(r.Attempts+1)+"p"+strconv.Itoa(r.turns), standIn, 0)
	a.DecodeLater, a.Slice = true, r.p.Slice
	a.TransferID = transferID()
	if r.pin(a); a.Slice > 0 { // sent as a completion
		a.ShowPrompt = false
	}
	if ask := f.rooms.Reannounce; ask != nil {
		a.PReannounce = ask(a.P, a.PRank)
	}
	plan := &r.now.plan
	if err := planInto(plan, speaks, a); err != nil {
		r.Attempts++
		return &fault.Error{Class: fault.Rejected, Leg: pools.Prefill, Worker: a.P.ID, Err: err}
	}
	var failed *fault.Error
	if a.Slice > 0 {
		result := f.prefill(ctx, r, speaks, a, plan.Prefill, nil)
		r.prefilled(&result)
		failed = result.failed
		if failed == nil {
			result.permit.end()
			f.found(r, a.P.ID, a.PRank, result.cached)
			r.sliced = a.Slice - max(0, result.cached)
			r.done = result.done
		}
	} else if _, failed = f.prefillFirst(ctx, r, speaks, a, plan); failed == nil {
		r.KV.Cached = f.found(r, r.KV.producer.ID, a.PRank, r.KV.Cached)
	}
	if failed != nil {
		r.Attempts++
		return failed
	}
	r.turns++
	return nil
}

// takesTurn reports whether only a prefill worker is booked.
func (r *request) takesTurn() bool { return r.p.Lease != nil && r.d.Lease == nil }

// found records how many prompt tokens a turn found cached, below 0 if unknown, and returns how many were cached
// before the first turn. A turn on another worker than the slice before it loses nothing.
func (f *Flow) found(r *request, worker string, rank, cached int) int {
	if r.done.Tokens > 0 && cached >= 0 && r.done.Worker == worker && r.done.Rank == rank {
		f.slices.note(r.sliced, max(0, r.done.Tokens-cached))
	}
	if r.turns == 0 || cached < r.cachedFirst {
		r.cachedFirst = cached
	}
	return r.cachedFirst
}

// decodesLater reports whether decode may be chosen once the prompt is computed, and whether slices may compute it. A
// request that names its workers books both at once.
func (f *Flow) decodesLater(r *request, ask *placement.Ask) (later, sliced bool) {
	if ask.Want != placement.Any || ask.Pin != nil || ask.DecodePin != nil {
		return false, false
	}
	prefill := f.rooms.Roster.Snapshot(ask.Model, pools.Prefill)
	if len(prefill.Members) == 0 || !f.rooms.Routers.For(ask.Model, pools.Prefill).BindsLate(prefill) {
		return false, false
	}
	if speaks, _ := f.handsOverLater(prefill.Members[0].Worker); speaks == nil {
		return false, false
	}
	req := r.Call.Request
	exact := r.ids != nil && r.prompt.Likely() && !req.HasMedia()
	return true, exact && r.Resumes == 0 && f.slices.on()
}

// handsOverLater returns the protocol by which p hands over to a decode worker chosen later, with one such worker;
// nil if it has none.
func (f *Flow) handsOverLater(p *pools.Worker) (connector.Connector, *pools.Worker) {
	now := time.Now()
	for _, m := range f.rooms.Roster.Snapshot(p.Model, pools.Decode).Members {
		if !m.Eligible(now) {
			continue
		}
		if speaks, err := f.rooms.Between(p, m.Worker); err == nil {
			if _, later := speaks.(connector.DecodeLater); later {
				return speaks, m.Worker
			}
		}
	}
	return nil, nil
}

// sliceGuard guards a placement.Slicing for concurrent use.
type sliceGuard struct {
	mu      sync.Mutex
	slicing placement.Slicing
}

func (g *sliceGuard) on() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.slicing.On(time.Now())
}

func (g *sliceGuard) note(tokens, lost int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.slicing.Note(tokens, lost, time.Now())
}
