package console

import (
	"sync"
	"time"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/pools"
)

// Phase is the present phase of a request.
type Phase uint8

// The phases, in the order of an undisturbed request.
const (
	Reading Phase = iota // tokenizing the prompt
	Waiting              // in the queue
	Prefilling
	Transferring // decode was called, and its first token is awaited
	Decoding     // if not streamed: decode was called
	Over
)

// String returns the phase's name on the page.
func (p Phase) String() string {
	return [...]string{"read", "queue", "prefill", "transfer", "decode", "over"}[p]
}

const (
	// maxSteps bounds the stored steps of a request. A retry takes three, so four attempts fit; further steps are
	// only counted.
	maxSteps = 12
	// undisturbed is the steps of a request without failures: queue, prefill, decode.
	undisturbed = 3
)

// Step is one step of a request. Its times count from the request's arrival.
type Step struct {
	Phase   Phase         `json:"phase"`
	Role    pools.Role    `json:"role,omitempty"` // of the worker; empty in the queue
	Worker  string        `json:"worker,omitempty"`
	Attempt int           `json:"attempt"`
	From    time.Duration `json:"from_ns"`
	To      time.Duration `json:"to_ns"`              // below 0 while the step is running
	First   time.Duration `json:"first_ns,omitempty"` // a decode call's first token; 0 before
	Handed  bool          `json:"handed,omitempty"`   // a decode call took over KV: From to First is the transfer
	Whole   bool          `json:"whole,omitempty"`    // a decode call that is not streamed: its first token is not visible
	Failed  string        `json:"failed,omitempty"`   // its fault class, or empty
	Action  string        `json:"action,omitempty"`   // what followed the failure
}

// trace is a live or stored request. Its memory is recycled.
type trace struct {
	at    int // its index among the live ones; owned by the recorder
	holds int // references from the recorder's lists; at 0 its memory is free
	// What follows is the recorder's, of a finished one: its shelf, its bytes, and the latest look at all.
	kind, size int
	round      uint64

	mu      sync.Mutex // guards all below
	id      string     // the client's id
	name    string     // the gateway's id
	model   string     // as registered: a client's spelling would retain its body
	arrived time.Time
	phase   Phase
	queued  time.Duration // the part of Spent.Queued that is already a step
	first   [undisturbed]Step
	steps   []Step // in first, or allocated if there are more
	count   int    // of steps, including those beyond maxSteps
	sum     summary
}

// begin resets t to an arrived request.
func (t *trace) begin(r *handoff.Record, model string) {
	t.mu.Lock()
	t.id, t.name, t.model, t.arrived = r.Call.ID, r.ID, model, r.Call.Arrival
	t.phase, t.queued, t.count = Reading, 0, 0
	t.steps = t.first[:0]
	t.mu.Unlock()
}

// enter records a phase without a call.
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

// waited adds the wait that ended at now, if any. The caller holds mu.
func (t *trace) waited(r *handoff.Record, now time.Duration) {
	if d := r.Spent.Queued - t.queued; d > 0 {
		t.queued = r.Spent.Queued
		t.push(Step{Phase: Waiting, Attempt: r.Attempts, From: max(0, now-d), To: now})
	}
}

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

// answered records decode's first token, or the end of prefill. An answer that is not streamed has no visible first
// token.
func (t *trace) answered(leg *handoff.Leg) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.openStep(leg.Worker.ID); s != nil && !s.Whole {
		s.First = leg.First.Sub(t.arrived)
	}
	if leg.Worker.Role != pools.Prefill {
		t.phase = Decoding
	}
}

// ended records the end of a call. A prefill that has answered ended then; any other call ends now.
func (t *trace) ended(leg *handoff.Leg) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.openStep(leg.Worker.ID)
	switch {
	case s == nil:
	case s.Role == pools.Prefill && s.First > 0:
		s.To = s.First
	default:
		s.To = time.Since(t.arrived)
	}
}

// failed records the failure of the latest call to its worker.
func (t *trace) failed(f *fault.Error, action handoff.Action) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := len(t.steps) - 1; i >= 0; i-- {
		if s := &t.steps[i]; s.Worker == f.Worker {
			s.Failed, s.Action = f.Class.String(), action.String()
			return
		}
	}
	at := time.Since(t.arrived) // it failed before the call
	t.push(Step{Phase: Prefilling, Role: f.Leg, Worker: f.Worker, From: at, To: at, Failed: f.Class.String(), Action: action.String()})
}

// openStep returns the worker's latest step that is still running, or nil. The caller holds mu.
func (t *trace) openStep(worker string) *Step {
	for i := len(t.steps) - 1; i >= 0; i-- {
		if s := &t.steps[i]; s.Worker == worker && s.To < 0 {
			return s
		}
	}
	return nil
}

// finish records the end of the request.
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
