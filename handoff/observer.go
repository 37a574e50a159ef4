package handoff

import (
	"time"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/trace"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
)

// Observer is notified of every request's steps, for metrics, the request log and the demand for workers. Its methods
// run on the request's goroutine (Released and Warmed on the clean-up's), must not block, and retain none of their arguments.
type Observer interface {
	// Arrived: the request's model was found. Understood and Ended always follow.
	Arrived(r *Record)
	// Understood: the prompt has been read, or refused.
	Understood(r *Record)
	// Queued: the request waits for its workers. The best worker lacks uncached tokens of its prompt. Granted always
	// follows.
	Queued(r *Record, uncached int)
	// Granted: the workers are booked, or err is why they are not.
	Granted(r *Record, err error)
	// LegStarted: a worker is called. The returned func, which may be nil, is called for each token after the first,
	// with the time since the one before.
	LegStarted(r *Record, leg Leg) (token func(gap time.Duration))
	// FirstToken: decode's first token, or prefill's whole answer, has arrived.
	FirstToken(r *Record, leg Leg)
	// LegEnded: the call is over. For decode, r.Sent has the result.
	LegEnded(r *Record, leg Leg)
	// Failed: a leg has failed, and action is what follows. Any action but Fail is another round.
	Failed(r *Record, failed *fault.Error, action Action)
	// Ended: the request is over. No other step precedes it if its model was not found.
	Ended(r *Record, err error)
	// Released: staged KV that no decode took is freed, or err is why it stays until its lease ends.
	Released(kv prefill.KV, round string, err error)
	// Warmed: a client wanted the next turn's prompt computed ahead, and this became of it: one of WarmOutcomes.
	Warmed(model, outcome string)
}

// Leg is one of a request's calls to a worker.
type Leg struct {
	Worker *pools.Worker
	// Began is when the call was made, and First when its first token came, zero before.
	Began, First time.Time
	// Backlog is the prompt tokens booked on the worker's rank when it was chosen, the call's own included.
	Backlog int
	// Span is the call's in the request's trace, zero if that is not traced.
	Span trace.SpanID
}
