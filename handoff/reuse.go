package handoff

import (
	"cmp"
	"strconv"
	"sync"

	"github.com/tandem-pd/tandem/decode"
	"github.com/tandem-pd/tandem/handoff/connector"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/upstream"
	"github.com/tandem-pd/tandem/pools"
)

// roundMemory is what one round needs for as long as it lasts: what it hands over by reference. A request has that of its
// first round in itself, which for most is the only one.
type roundMemory struct {
	round  connector.Round
	bodies *connector.Memory // of the legs; nil once they have left
	plan   connector.Plan
	came   prefilled
	kv     StagedKV
	call   decode.Call

	sibling *sibling // the prefill leg that runs at the same time as decode, nil if none does
	worker  string   // that decodes
	given   bool     // the answer is prefill's
}

// nextRound opens a round.
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

// roundOf is the round that engines know as id, whose decode worker is d, in the memory at hand.
func (r *request) roundOf(id string, d *pools.Worker, rank int) *connector.Round {
	a := &r.now.round
	*a = connector.Round{
		ID: id, Request: r.Call.Request,
		TraceParent: r.traceParent, TraceState: r.Call.TraceState, Forward: r.Call.Forward,
		Priority: cmp.Or(r.Call.Priority, r.Call.Request.Nvext.Priority),
		IDs:      r.ids, Kept: r.card.Kept(r.Call.Request), D: d, DRank: rank,
		Resume: r.goesOn,
	}
	if r.p.Lease != nil {
		a.P, a.PRank = r.p.Worker, r.p.Rank
	}
	return a
}

// callbacks are a request's own functions as decode is given them, made once for all requests that use its memory.
type callbacks struct {
	cachedTokens func() int
	mayMove      func() bool
	prompt       func(ids []byte)
	first        func()
	leave        func() error
}

// bodies are reused: they are full while the legs of a round are sent, and an open stream has none.
var bodies = sync.Pool{New: func() any { return new(connector.Memory) }}

// sent gives back what the legs' bodies were written to, now that decode has begun its answer: they have left, unless one
// is so long that its worker may answer before it has read all of it, or prefill runs at the same time.
func (m *roundMemory) sent() {
	if m.sibling != nil || m.bodies == nil || m.plan.Decode.Body.Len() > upstream.LeavesWhole {
		return
	}
	m.bodies.Reset()
	bodies.Put(m.bodies)
	m.bodies, m.round.Memory, m.plan.Decode.Body = nil, nil, nil
}

// blank makes the memory of a request.
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

// newRequest begins a request, in the memory of one that has ended where there is one.
func (f *Flow) newRequest(call *Call) *request {
	r := f.requests.Get().(*request)
	r.Record.Call = *call
	r.Record.ID = f.ids.next()
	r.stack.abandon = f.abandon
	return r
}

// reuse gives the memory of a request that has ended to the next one, if it was served in its first round: then no queue,
// no clean-up and no leg refers to it, or to its body, any more. (KV may be given up before the first round, too.) It reports
// whether that is so.
func (f *Flow) reuse(r *request) bool {
	if !r.served || r.Attempts > 1 || r.stack.abandoned {
		return false
	}
	*r = request{calls: r.calls}
	f.requests.Put(r)
	return true
}
