package handoff

import (
	"time"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/tracecontext"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
)

// Observer is notified of the moments of every request's way: metrics, the request log and the demand for workers are
// observers. Its methods run on the request's goroutine (Released on the clean-up's), must not wait, and keep nothing
// of what they are given.
type Observer interface {
	// Arrived: the request's model is known. Understood and Ended follow in any case.
	Arrived(r *Record)
	// Understood: the prompt has been read, or refused.
	Understood(r *Record)
	// Queued: the request waits for its workers. No worker has more cached of its prompt than all but uncached
	// tokens. Granted follows in any case.
	Queued(r *Record, uncached int)
	// Granted: the workers are booked, or err says why they are not.
	Granted(r *Record, err error)
	// LegStarted: a worker is called. The function returned is called for each token after the first, with the time
	// since the one before; nil if none is needed.
	LegStarted(r *Record, leg Leg) (token func(gap time.Duration))
	// FirstToken: decode's first token, or prefill's whole answer, has come.
	FirstToken(r *Record, leg Leg)
	// LegEnded: the call is over. Of decode, r.Sent says what came of it.
	LegEnded(r *Record, leg Leg)
	// Failed: a leg has failed, and action is what follows. Any action but Fail is another round.
	Failed(r *Record, failed *fault.Error, action Action)
	// Ended: the request is over. It was not Known to the other moments if its model was not found.
	Ended(r *Record, err error)
	// Released: the KV that was staged for a decode which never came is freed, or err says why it stays until its
	// lease ends.
	Released(kv prefill.KV, attempt string, err error)
}

// Leg is one of a request's calls to a worker.
type Leg struct {
	Worker *pools.Worker
	// Began is when the call was made, and First when its first token came, zero before.
	Began, First time.Time
	// Span is the call's in the request's trace, zero if that is not traced.
	Span tracecontext.SpanID
}
