package console

import (
	"sync"
	"time"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/pools"
)

// Phase is where a request is on its way.
type Phase uint8

// The phases, in the order of an undisturbed request.
const (
	Reading Phase = iota // the prompt's tokens are made
	Waiting              // in the queue
	Prefilling
	Transferring // decode was called, and its first token is awaited
	Decoding     // of an answer that is not streamed: decode was called
	Over
)

// String is the phase's word on the page.
func (p Phase) String() string {
	return [...]string{"read", "queue", "prefill", "transfer", "decode", "over"}[p]
}

const (
	// maxSteps bounds what is kept of one request's way. A retry takes three steps, so that a request of four attempts is
	// kept whole; of what comes behind only the number is.
	maxSteps = 12
	// undisturbed is the steps of a request that nothing disturbs: queue, prefill, decode.
	undisturbed = 3
)

// Step is one part of a request's way. Its times count from the request's arrival.
type Step struct {
	Phase    Phase
	Role     pools.Role // of the worker; empty in the queue
	Worker   string
	Attempt  int
	From, To time.Duration // To is below 0 while the step lasts
	First    time.Duration // a decode call's first token; 0 before
	Handed   bool          // a decode call took over KV, so that From to First is the transfer
	Whole    bool          // a decode call whose answer is not streamed, so that its first token is not seen
	Failed   string        // the class of its failure, empty for none
	Action   string        // what was done about it
}

// trace is one request in the gateway, or one that is kept. Its memory is used again for others.
type trace struct {
	at    int // its place among the live ones; the recorder's
	holds int // how many lists of the recorder have it; at 0 its memory is free

	mu      sync.Mutex // guards all below
	id      string     // the client's name for it
	name    string     // the gateway's
	model   string     // as some worker has registered it: a client's spelling would keep its body in memory
	arrived time.Time
	phase   Phase
	queued  time.Duration // of Spent.Queued, what has a step already
	first   [undisturbed]Step
	steps   []Step // in first, or in memory of their own if there are more
	count   int    // of steps; those beyond maxSteps are not kept
	sum     summary
}

// begin makes t that of a request which has arrived.
func (t *trace) begin(r *handoff.Record, model string) {
	t.mu.Lock()
	t.id, t.name, t.model, t.arrived = r.Call.ID, r.ID, model, r.Call.Arrival
	t.phase, t.queued, t.count, t.sum = Reading, 0, 0, summary{}
	t.steps = t.first[:0]
	t.mu.Unlock()
}

// enter notes a phase that has no call yet.
func (t *trace) enter(p Phase) {
	t.mu.Lock()
	t.phase = p
	t.mu.Unlock()
}

// push adds a step, unless there are too many. The caller holds mu.
func (t *trace) push(s Step) {
	if t.count < maxSteps {
		t.steps = append(t.steps, s)
	}
	t.count++
}

// waited adds the wait that ended at now, if there was one. The caller holds mu.
func (t *trace) waited(r *handoff.Record, now time.Duration) {
	if d := r.Spent.Queued - t.queued; d > 0 {
		t.queued = r.Spent.Queued
		t.push(Step{Phase: Waiting, Attempt: r.Attempts, From: max(0, now-d), To: now})
	}
}

// called notes that a worker is called.
func (t *trace) called(r *handoff.Record, leg *handoff.Leg) {
	t.mu.Lock()
	defer t.mu.Unlock()
	at := leg.Began.Sub(t.arrived)
	t.waited(r, at)
	s := Step{Phase: Prefilling, Role: leg.Worker.Role, Worker: leg.Worker.ID, Attempt: r.Attempts, From: at, To: -1}
	if t.phase = Prefilling; leg.Worker.Role != pools.Prefill {
		s.Phase, s.Handed, s.Whole = Decoding, r.KV != nil, !r.Call.Request.Stream
		switch {
		case s.Whole:
			t.phase = Decoding
		case s.Handed:
			t.phase = Transferring
		}
	}
	t.push(s)
}

// answered notes decode's first token, or the end of prefill. A whole answer comes with its end, and its first token
// is not known.
func (t *trace) answered(leg *handoff.Leg) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.open(leg.Worker.ID); s != nil && !s.Whole {
		s.First = leg.First.Sub(t.arrived)
	}
	if leg.Worker.Role != pools.Prefill {
		t.phase = Decoding
	}
}

// ended notes that a call is over. A prefill that has answered ended then; any other call ends now.
func (t *trace) ended(leg *handoff.Leg) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.open(leg.Worker.ID)
	switch {
	case s == nil:
	case s.Role == pools.Prefill && s.First > 0:
		s.To = s.First
	default:
		s.To = time.Since(t.arrived)
	}
}

// failed notes what became of the latest call to the worker that failed.
func (t *trace) failed(f *fault.Error, action handoff.Action) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := len(t.steps) - 1; i >= 0; i-- {
		if s := &t.steps[i]; s.Worker == f.Worker {
			s.Failed, s.Action = f.Class.String(), action.String()
			return
		}
	}
	at := time.Since(t.arrived) // it failed before it was called
	t.push(Step{Phase: Prefilling, Role: f.Leg, Worker: f.Worker, From: at, To: at, Failed: f.Class.String(), Action: action.String()})
}

// open is the latest step of the worker that lasts, nil for none. The caller holds mu.
func (t *trace) open(worker string) *Step {
	for i := len(t.steps) - 1; i >= 0; i-- {
		if s := &t.steps[i]; s.Worker == worker && s.To < 0 {
			return s
		}
	}
	return nil
}

// finish notes the end of the request.
func (t *trace) finish(r *handoff.Record, s *summary, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	at := now.Sub(t.arrived)
	t.waited(r, at)
	for i := range t.steps {
		if t.steps[i].To < 0 {
			t.steps[i].To = at
		}
	}
	t.phase, t.sum = Over, *s
}
