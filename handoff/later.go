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

// prefillPass computes the prompt, or a slice of it, on a prefill worker booked alone: in mode eft decode is chosen
// afterwards. The KV of a whole prompt is staged; that of a slice stays in the worker's prefix cache.
func (f *Flow) prefillPass(ctx context.Context, r *request) *fault.Error {
	speaks, standIn := f.handsOverLater(r.p.Worker)
	if speaks == nil { // the decode workers are gone
		r.releaseAll()
		return nil
	}
	r.cur = new(roundMemory) // it keeps the KV while the request's own serves decode
	round := r.roundOf(r.ID+"-"+strconv.Itoa(r.Attempts+1)+"p"+strconv.Itoa(r.passes), standIn, 0)
	round.DecodeLater, round.Slice = true, r.p.Slice
	round.TransferID = transferID()
	if r.pin(round); round.Slice > 0 { // sent as a completion
		round.ShowPrompt = false
	}
	if ask := f.rooms.Reannounce; ask != nil {
		round.PReannounce = ask(round.P, round.PRank)
	}
	plan := &r.cur.plan
	if err := planInto(plan, speaks, round); err != nil {
		r.Attempts++
		return &fault.Error{Class: fault.Rejected, Leg: pools.Prefill, Worker: round.P.ID, Err: err}
	}
	var failed *fault.Error
	if round.Slice > 0 {
		result := f.prefill(ctx, r, speaks, round, plan.Prefill, nil)
		r.prefilled(&result)
		failed = result.failed
		if failed == nil {
			result.permit.end()
			f.found(r, round.P.ID, round.PRank, result.cached)
			r.sliced = round.Slice - max(0, result.cached)
			r.done = result.done
		}
	} else if _, failed = f.prefillFirst(ctx, r, speaks, round, plan); failed == nil {
		r.KV.Cached = f.found(r, r.KV.producer.ID, round.PRank, r.KV.Cached)
	}
	if failed != nil {
		r.Attempts++
		return failed
	}
	r.passes++
	return nil
}

// prefillsOnly reports whether only a prefill worker is booked.
func (r *request) prefillsOnly() bool { return r.p.Lease != nil && r.d.Lease == nil }

// found records how many prompt tokens a pass found cached, below 0 if unknown, and returns how many were cached
// before the first pass. A pass on another worker than the one before it loses nothing.
func (f *Flow) found(r *request, worker string, rank, cached int) int {
	if r.done.Tokens > 0 && cached >= 0 && r.done.Worker == worker && r.done.Rank == rank {
		f.slices.note(r.sliced, max(0, r.done.Tokens-cached))
	}
	if r.passes == 0 || cached < r.cachedFirst {
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
