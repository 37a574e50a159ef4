package handoff

import (
	"cmp"
	"strconv"

	"github.com/tandem-pd/tandem/decode"
	"github.com/tandem-pd/tandem/handoff/connector"
	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/pools"
)

// roundMemory holds what one round passes by reference. A request embeds that of its first round, for most the only
// one.
type roundMemory struct {
	round  connector.Round
	bodies *connector.Memory // of the legs; nil once decode has answered
	plan   connector.Plan
	result prefilled
	kv     StagedKV
	call   decode.Call

	sibling     *sibling // the prefill leg that runs in parallel with decode, or nil
	worker      string   // that decodes
	fromPrefill bool     // the answer is prefill's
}

func (r *request) nextRound() *connector.Round {
	r.Attempts++
	r.Sent.Accepted, r.Sent.HasToken = false, false
	if r.cur = &r.first; r.Attempts > 1 {
		r.cur = new(roundMemory)
	}
	r.cur.bodies = bodies.Take()
	round := r.roundOf(r.ID+"-"+strconv.Itoa(r.Attempts), r.d.Worker, r.d.Rank)
	round.ShowIDs, round.Memory = r.showsIDs(r.d.Worker), r.cur.bodies
	return round
}

// roundOf fills the round with id, its name for engines, and decode worker d.
func (r *request) roundOf(id string, d *pools.Worker, rank int) *connector.Round {
	round := &r.cur.round
	*round = connector.Round{
		ID: id, Request: r.Call.Request, Body: r.Call.Body,
		TraceParent: r.traceParent, TraceState: r.Call.TraceState, Forward: r.Call.Forward,
		Priority: cmp.Or(r.Call.Priority, r.Call.Request.Nvext.Priority),
		IDs:      r.ids, Kept: r.card.Kept(r.Call.Request), D: d, DRank: rank,
		Resume: r.resumeFrom,
	}
	if r.p.Lease != nil {
		round.P, round.PRank = r.p.Worker, r.p.Rank
	}
	return round
}

var bodies http1.Pool[connector.Memory, *connector.Memory]

// releaseBodies releases the memory of the legs' bodies once decode has begun its answer. A leg that is being sent
// holds its own reference.
func (m *roundMemory) releaseBodies() {
	if m.bodies != nil {
		m.bodies.Release()
		m.bodies = nil
	}
}

// newRequest begins a request, in reused memory if possible.
func (f *Flow) newRequest(call *Call) *request {
	r := f.requests.Take()
	r.flow, r.Record.Call = f, *call
	r.Record.ID = f.ids.next()
	r.stack.releaseKV = f.releaseKV
	return r
}

// Reset implements [http1.Pooled].
func (r *request) Reset() { *r = request{Refs: r.Refs} }
