package handoff

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/tracecontext"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
)

// Trace is a traced request's place in its trace, and its steps, of which an observer makes spans. A request that is not
// sampled has none.
type Trace struct {
	// Own is the request's own span.
	Own tracecontext.Context
	// Parent is the client's span, zero without one.
	Parent tracecontext.SpanID

	cut tracecontext.SpanID // the decode call whose answer went on elsewhere

	mu    sync.Mutex // guards steps: the legs of a pair run at the same time
	steps []Step     // in the order they began
}

// Step is a wait for workers or a call to one.
type Step struct {
	// ID is the step's span. An engine gets it as the parent of its own.
	ID tracecontext.SpanID
	// Role is the leg's, empty of a wait.
	Role pools.Role
	// Attempt is the round, counted from 1.
	Attempt int
	// Began and Ended bound the step. First is when a leg's first token came, or prefill's whole answer; zero if none did.
	Began, First, Ended time.Time
	// Ahead is how many requests of the model waited when a wait began.
	Ahead int
	// Worker and Rank are the leg's, with the choice that led there.
	Worker *pools.Worker
	Rank   int
	Why    *router.Why
	// Prediction is how long the worker was expected to take for all prompt tokens booked on it, this leg's included; 0
	// where its rate is not known.
	Prediction time.Duration
	// From is the decode leg whose answer this one goes on with, zero where it begins one.
	From tracecontext.SpanID
	// Failure is why the step failed: a fault class. Empty if it did not.
	Failure string
}

// NewTrace is the trace of a request that has had these steps.
func NewTrace(own tracecontext.Context, parent tracecontext.SpanID, steps ...Step) *Trace {
	return &Trace{Own: own, Parent: parent, steps: steps}
}

// maxSteps bounds a request's steps: retries and moves are bounded, but an admission may be repeated.
const maxSteps = 64

// trace decides whether the request is traced, and what engines get as its traceparent while they are called for none of
// its legs. Without Rooms.Sample they get the client's.
func (f *Flow) trace(r *request) {
	r.traceParent = r.Call.TraceParent
	if f.rooms.Sample == nil {
		return
	}
	parent, given := tracecontext.Parse(r.Call.TraceParent)
	id := parent.Trace
	if !given {
		id = tracecontext.NewTraceID()
	}
	sampled := f.rooms.Sample(id, parent)
	if !sampled && given && !parent.IsSampled() {
		return
	}
	own := tracecontext.Context{Trace: id, Span: tracecontext.NewSpanID(), Flags: parent.Flags &^ tracecontext.Sampled}
	if sampled {
		own.Flags |= tracecontext.Sampled
		r.Trace = NewTrace(own, parent.Span)
	}
	// Without one, an engine that traces would begin a trace of its own.
	r.traceParent = own.String()
}

// TraceID is the id of the trace that the request belongs to, 32 hexadecimal digits: its own or, where it is not traced,
// the client's; empty without either.
func (r *Record) TraceID() string {
	if r.Trace != nil {
		return r.Trace.Own.Trace.String()
	}
	return r.Call.TraceID()
}

// OwnSpan is the request's own span, zero unless it is traced.
func (r *Record) OwnSpan() (id tracecontext.SpanID) {
	if r.Trace != nil {
		id = r.Trace.Own.Span
	}
	return id
}

// traceLeg begins the span of a leg and returns the traceparent that its engine gets. lease is the leg's.
func (f *Flow) traceLeg(r *request, leg *Leg, lease *router.Lease) string {
	t := r.Trace
	if t == nil {
		return r.traceParent
	}
	s := Step{ID: tracecontext.NewSpanID(), Role: leg.Worker.Role, Attempt: r.Attempts, Began: leg.Began, Worker: leg.Worker, Rank: lease.Rank, Why: &lease.Why}
	rate := 0.
	switch {
	case s.Role == pools.Prefill:
		rate = f.rooms.Prefill.Rate(s.Worker.ID)
	case s.Role == pools.Both && r.KV == nil:
		rate = f.rooms.Decode.Rate(s.Worker.ID)
	}
	if rate > 0 {
		s.Prediction = time.Duration(float64(lease.BacklogTokens) / rate * float64(time.Second))
	}
	if s.Role != pools.Prefill {
		s.From = t.cut
	}
	if r.takesTurn() { // before its round begins
		s.Attempt++
	}
	leg.Span = s.ID
	t.begin(s)
	return tracecontext.Context{Trace: t.Own.Trace, Span: s.ID, Flags: t.Own.Flags}.String()
}

// traceWait begins the span of a wait in the queue, if the request is traced.
func (r *request) traceWait(q *waitingRoom, now time.Time) (id tracecontext.SpanID) {
	if t := r.Trace; t != nil {
		id = tracecontext.NewSpanID()
		t.begin(Step{ID: id, Attempt: r.Attempts + 1, Began: now, Ahead: q.Stats().Waiting})
	}
	return id
}

// begin adds a step.
func (t *Trace) begin(s Step) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.steps == nil {
		t.steps = make([]Step, 0, 4) // what most requests need
	}
	if len(t.steps) < maxSteps {
		t.steps = append(t.steps, s)
	}
}

// end notes how a step ended; a nil trace notes nothing.
func (t *Trace) end(id tracecontext.SpanID, first, ended time.Time, failure string) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.steps {
		if s := &t.steps[i]; s.ID == id {
			s.First, s.Ended, s.Failure = first, ended, failure
		}
	}
}

// Each calls f with every step, in the order they began. f must keep nothing of it.
func (t *Trace) Each(f func(s *Step)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.steps {
		f(&t.steps[i])
	}
}

// waitFailure names why a wait for workers ended without them, empty where it ended with them.
func (r *request) waitFailure(ctx context.Context, err error) string {
	switch cause := context.Cause(ctx); {
	case err == nil:
		return ""
	case errors.Is(err, errLeaseOver):
		return "lease_over"
	case cause != nil:
		return fault.Classify(cause, 0).String()
	}
	return CodeOf(r.refusal(err))
}

// failureOf names a leg's failure for its span, empty for none.
func failureOf(failed *fault.Error) string {
	if failed == nil {
		return ""
	}
	return failed.Class.String()
}
