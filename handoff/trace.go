package handoff

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/trace"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
)

// Trace is a sampled request's span and its steps, from which an observer makes spans.
type Trace struct {
	// Own is the request's own span.
	Own trace.Context
	// Parent is the client's span, zero without one.
	Parent trace.SpanID

	cut trace.SpanID // the decode call whose answer resumes

	mu    sync.Mutex // guards steps: two legs may run in parallel
	steps []Step     // in the order they began
}

// Step is a wait for workers or a call to one.
type Step struct {
	// ID is the step's span, the parent of the engine's own.
	ID trace.SpanID
	// Role is the leg's, empty for a wait.
	Role pools.Role
	// Attempt is the round, counted from 1.
	Attempt int
	// First is when a leg's first token, or prefill's whole answer, arrived; zero if none did.
	Began, First, Ended time.Time
	// Ahead is how many requests of the model were waiting when a wait began.
	Ahead int
	// Worker and Rank are the leg's; Why is how they were chosen.
	Worker *pools.Worker
	Rank   int
	Why    *router.Why
	// Prediction is the expected time for all prompt tokens booked on the worker, this leg's included; 0 if its rate
	// is unknown.
	Prediction time.Duration
	// From is the decode leg whose answer this one resumes, or zero.
	From trace.SpanID
	// Failure is the fault class of a failed step, or empty.
	Failure string
}

// NewTrace returns the trace of a request with these steps.
func NewTrace(own trace.Context, parent trace.SpanID, steps ...Step) *Trace {
	return &Trace{Own: own, Parent: parent, steps: steps}
}

// maxSteps bounds a request's steps: an admission may repeat without limit.
const maxSteps = 64

// trace decides whether the request is traced, and which traceparent engines get outside of its legs: the client's
// without Rooms.Sample.
func (f *Flow) trace(r *request) {
	r.traceParent = r.Call.TraceParent
	if f.rooms.Sample == nil {
		return
	}
	parent, ok := trace.Parse(r.Call.TraceParent)
	id := parent.Trace
	if !ok {
		id = trace.NewTraceID()
	}
	sampled := f.rooms.Sample(id, parent)
	if !sampled && ok && !parent.IsSampled() {
		return
	}
	own := trace.Context{Trace: id, Span: trace.NewSpanID(), Flags: parent.Flags &^ trace.Sampled}
	if sampled {
		own.Flags |= trace.Sampled
		r.Trace = NewTrace(own, parent.Span)
	}
	// Otherwise an engine would begin a trace of its own.
	r.traceParent = own.String()
}

// TraceID returns the request's trace id, 32 hexadecimal digits: its own or, if not traced, the client's, or empty.
func (r *Record) TraceID() string {
	if r.Trace != nil {
		return r.Trace.Own.Trace.String()
	}
	return r.Call.TraceID()
}

// OwnSpan returns the request's own span, zero unless it is traced.
func (r *Record) OwnSpan() (id trace.SpanID) {
	if r.Trace != nil {
		id = r.Trace.Own.Span
	}
	return id
}

// traceLeg begins the span of a leg and returns the traceparent for its engine.
func (f *Flow) traceLeg(r *request, leg *Leg, lease *router.Lease) string {
	t := r.Trace
	if t == nil {
		return r.traceParent
	}
	s := Step{
		ID: trace.NewSpanID(), Role: leg.Worker.Role, Attempt: r.Attempts, Began: leg.Began,
		Worker: leg.Worker, Rank: lease.Rank, Why: &lease.Why,
	}
	forecast := f.rooms.Decode.Forecast
	if s.Role == pools.Prefill {
		forecast = f.rooms.Prefill.Forecast
	}
	if s.Role == pools.Prefill || s.Role == pools.Both && r.KV == nil {
		own := lease.PrefillTokens
		s.Prediction, _ = forecast(s.Worker, lease.BacklogTokens-own, own, lease.Overlap*s.Worker.BlockSize)
	}
	if s.Role != pools.Prefill {
		s.From = t.cut
	}
	if r.prefillsOnly() { // its round has not begun
		s.Attempt++
	}
	leg.Span = s.ID
	t.begin(s)
	return trace.Context{Trace: t.Own.Trace, Span: s.ID, Flags: t.Own.Flags}.String()
}

// traceWait begins the span of a wait in the queue of a traced request.
func (r *request) traceWait(q *waitingRoom, now time.Time) (id trace.SpanID) {
	if t := r.Trace; t != nil {
		id = trace.NewSpanID()
		t.begin(Step{ID: id, Attempt: r.Attempts + 1, Began: now, Ahead: q.Stats().Waiting})
	}
	return id
}

func (t *Trace) begin(s Step) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.steps == nil {
		t.steps = make([]Step, 0, 4) // enough for most requests
	}
	if len(t.steps) < maxSteps {
		t.steps = append(t.steps, s)
	}
}

// end records how a step ended. t may be nil.
func (t *Trace) end(id trace.SpanID, first, ended time.Time, failure string) {
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

// Each calls f with every step, in the order they began. f must not retain it.
func (t *Trace) Each(f func(s *Step)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.steps {
		f(&t.steps[i])
	}
}

// waitFailure names why a wait ended without workers, or empty.
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

// failureOf returns a failure's class, or empty.
func failureOf(failed *fault.Error) string {
	if failed == nil {
		return ""
	}
	return failed.Class.String()
}
