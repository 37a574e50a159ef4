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

// turn computes the prompt, or a slice of it, on the prefill worker that is booked alone: in mode eft the decode worker is
// chosen once the whole of it is computed. The KV of the whole is staged; that of a slice stays in the worker's prefix cache.
func (f *Flow) turn(ctx context.Context, r *request) *fault.Error {
	speaks, standIn := f.handsOverLater(r.p.Worker)
	if speaks == nil { // the decode workers have gone since the choice: the next admission knows
		r.startOver()
		return nil
	}
	r.now = new(roundMemory) // which has the KV when the request's own is decode's
	a := r.roundOf(r.ID+"-"+strconv.Itoa(r.Attempts+1)+"p"+strconv.Itoa(r.turns), standIn, 0)
	a.DecodeLater, a.Slice = true, r.p.Slice
	a.TransferID = transferID()
	if r.pin(a); a.Slice > 0 { // which is no chat
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
		came := f.prefill(ctx, r, speaks, a, plan.Prefill, nil)
		r.prefilled(&came)
		failed = came.failed
		if failed == nil {
			came.permit.end()
			f.found(r, a.P.ID, a.PRank, came.cached)
			r.sliced = a.Slice - max(0, came.cached)
			r.done = came.done
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

// takesTurn reports whether a prefill worker is booked alone.
func (r *request) takesTurn() bool { return r.p.Lease != nil && r.d.Lease == nil }

// found takes in how many of the prompt's tokens a turn found cached, below 0 where the worker did not say. It returns how
// many were cached before the first turn. A turn that went to another worker than the slice before it found nothing of that
// there, as was known when it was chosen: nothing is lost.
func (f *Flow) found(r *request, worker string, rank, cached int) int {
	if r.done.Tokens > 0 && cached >= 0 && r.done.Worker == worker && r.done.Rank == rank {
		f.slices.note(r.sliced, max(0, r.done.Tokens-cached))
	}
	if r.turns == 0 || cached < r.cachedFirst {
		r.cachedFirst = cached
	}
	return r.cachedFirst
}

// decodesLater reports whether the decode worker of r may be chosen once its prompt is computed, and whether that may be
// computed in slices. A request that names its workers gets both at once.
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

// handsOverLater is the protocol by which p hands over to a decode worker that it need not know before, and one such worker;
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

// sliceGuard is a placement.Slicing that several goroutines may use.
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
