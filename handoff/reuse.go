package handoff

import (
	"cmp"
	"strconv"
	"sync"

	"github.com/tandem-pd/tandem/decode"
	"github.com/tandem-pd/tandem/handoff/connector"
	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/pools"
)

// roundMemory holds what one round passes by reference. A request embeds that of its first round, for most the only
// one.
type roundMemory struct {
	round  connector.Round
	bodies *connector.Memory // of the legs; nil once they were sent
	plan   connector.Plan
	result prefilled
	kv     StagedKV
	call   decode.Call

	sibling *sibling // the prefill leg that runs in parallel with decode, or nil
	worker  string   // that decodes
	given   bool     // the answer is prefill's
}

// nextRound begins a round.
func (r *request) nextRound() *connector.Round {
	r.Attempts++
	r.Sent.Accepted, r.Sent.Began = false, false
	if r.now = &r.first; r.Attempts > 1 {
		r.now = new(roundMemory)
	}
	r.now.bodies = bodies.Get().(*connector.Memory)
	a := r.roundOf(r.ID+"-"+strconv.Itoa(r.Attempts), r.d.Worker, r.d.Rank)
	a.ShowIDs, a.Memory = r.showsIDs(r.d.Worker), r.now.bodies
	return a
}

// roundOf fills the round with id, its name for engines, and decode worker d.
func (r *request) roundOf(id string, d *pools.Worker, rank int) *connector.Round {
	a := &r.now.round
	*a = connector.Round{
		ID: id, Request: r.Call.Request,
		TraceParent: r.traceParent, TraceState: r.Call.TraceState, Forward: r.Call.Forward,
		Priority: cmp.Or(r.Call.Priority, r.Call.Request.Nvext.Priority),
		IDs:      r.ids, Kept: r.card.Kept(r.Call.Request), D: d, DRank: rank,
		Resume: r.resumeFrom,
	}
	if r.p.Lease != nil {
		a.P, a.PRank = r.p.Worker, r.p.Rank
	}
	return a
}

// callbacks are a request's funcs for decode, bound once per request memory.
type callbacks struct {
	cachedTokens func() int
	mayMove      func() bool
	prompt       func(ids []byte)
	first        func()
	leave        func() error
}

// bodies are pooled: they are in use only while a round's legs are sent.
var bodies = sync.Pool{New: func() any { return new(connector.Memory) }}

// sent returns the legs' body memory to the pool once decode has begun its answer. It keeps bodies so long that a
// worker may answer before reading all, and those of parallel legs.
func (m *roundMemory) sent() {
	if m.sibling != nil || m.bodies == nil || m.plan.Decode.Body.Len() > http1.LeavesWhole {
		return
	}
	m.bodies.Reset()
	bodies.Put(m.bodies)
	m.bodies, m.round.Memory, m.plan.Decode.Body = nil, nil, nil
}

// blank allocates a request's memory.
func (f *Flow) blank() *request {
	r := new(request)
	r.calls = callbacks{
		cachedTokens: func() int { r.now.sibling.settle(r); return r.cachedTokens() },
		mayMove:      func() bool { return f.mayMove(r) },
		prompt: func(ids []byte) {
			if r.computesAndShows() && !r.shown {
				r.shown = true
				f.compareTokens(r.prompt, r.leg.Worker, &openai.ChunkInfo{PromptIDs: ids})
			}
		},
		first: func() { f.firstToken(r) },
		leave: func() error { return f.links.leave(f, r) },
	}
	return r
}

// newRequest begins a request, in reused memory if possible.
func (f *Flow) newRequest(call *Call) *request {
	r := f.requests.Get().(*request)
	r.Record.Call = *call
	r.Record.ID = f.ids.next()
	r.stack.abandon = f.abandon
	return r
}

// reuse recycles the memory of a request that was served in its first round: no queue, clean-up call or leg still
// refers to it or its body. It reports whether it did. (KV may also be abandoned before the first round.)
func (f *Flow) reuse(r *request) bool {
	if !r.served || r.Attempts > 1 || r.stack.abandoned {
		return false
	}
	*r = request{calls: r.calls}
	f.requests.Put(r)
	return true
}
