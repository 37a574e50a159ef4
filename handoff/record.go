package handoff

import (
	"cmp"
	"errors"
	"time"

	"github.com/tandem-pd/tandem/decode"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/models"
	"github.com/tandem-pd/tandem/router"
)

// Record is what is known of one request, for its observers and for the client's nvext. The flow writes it on the
// request's goroutine; an observer reads it during a call and keeps no part of it.
type Record struct {
	// Call is the client's call.
	Call Call
	// ID is the gateway's own name for the request. Engines see it with the attempt's number.
	ID string
	// Trace is the request's place in its trace, and its steps; nil unless it is traced.
	Trace *Trace
	// Known says that some worker serves the model. The name of any other is a client's text and must not become a
	// label.
	Known bool

	// ISL is the length in tokens of the prompt as it is kept, an estimate unless Tokenized.
	ISL       int
	Tokenized bool
	// Source is where the prompt's tokens come from.
	Source models.Source
	// Hashes are the sequence hashes of the prompt's full blocks, and BlockSize the tokens of a block. They are
	// hashes of its text unless Tokenized.
	Hashes    []uint64
	BlockSize int
	// PolicyClass is the class that the request waits in, empty without classes.
	PolicyClass string
	// Remote is the outcome of asking the remote index, empty if it was not asked.
	Remote string

	// Attempts counts the rounds begun.
	Attempts int
	// Resumes counts the moves of an answer that had begun to another worker. Hashes then are those of the prompt and
	// of what was generated before the latest move.
	Resumes int
	// CachedBefore is what the client is to get as its cached tokens since an answer has moved, −1 if it is not known.
	CachedBefore int
	// NotResumable says by one word why no other worker can go on with the answer, empty where one can or none was
	// asked to.
	NotResumable string
	// Dead are the workers that died while they had this request.
	Dead []string
	// NoneLeft: there is no worker left that could serve it.
	NoneLeft bool
	// Prefill and Decode are the latest choice of each leg's worker.
	Prefill, Decode Choice
	// Overlap is the blocks of the prompt that the router predicted to be cached on the worker that computes it, and
	// OverlapTokens the same in tokens.
	Overlap, OverlapTokens int
	// attempt has Reason, why there is no prefill leg, and KV, what was handed over.
	attempt
	// HandedOver is when the KV was there and the latest decode call was made, and Sent what came of it.
	HandedOver time.Time
	Sent       decode.Transcript
	// Spent is the time that each step took.
	Spent Spent
	// Outcome is how the request ended: ok, a fault class or an error's code.
	Outcome string
	// Mark is an observer's own, to find at a later moment what it keeps of the request. The flow never reads it.
	Mark any
}

// Choice is the worker chosen for a leg, and how it was chosen.
type Choice struct {
	Worker string
	Why    router.Why
}

// Spent is the time that a request's steps took. Queued and Prefill are of all rounds, the others of the latest.
type Spent struct {
	Tokenizing, Hashing, Asking, Matching, Scheduling time.Duration
	Queued, Prefill                                   time.Duration
}

// Found is how many prompt tokens the worker that computed the prompt had cached, as it reported; below 0 if it did
// not, or if nothing ran. t is the decode leg's, nil if there was none.
func (r *Record) Found(t *decode.Transcript) int {
	switch {
	case r.KV != nil && (r.KV.Cached >= 0 || t == nil || !r.KV.reported()):
		return r.KV.Cached
	case t != nil && !t.First.IsZero(): // it was computed where it was decoded, or decode reports prefill's number
		return t.CachedTokens
	}
	return -1
}

// Poison reports whether the request is suspected of killing workers: MaxDeaths have died while they had it, or all there
// are. It is tried on no other.
func (r *Record) Poison() bool { return len(r.Dead) >= MaxDeaths || r.NoneLeft && len(r.Dead) > 0 }

// end sets the outcome of a request that ends with err.
func (r *Record) end(err error) {
	switch {
	case err == nil:
		r.Outcome = fault.None.String()
		return
	case r.Outcome != "": // named when it failed
		return
	}
	if answer, ok := errors.AsType[*openai.Error](err); ok {
		r.Outcome = CodeOf(answer)
		return
	}
	r.Outcome = fault.Classify(err, 0).String()
}

// CodeOf is an error's code; an error without one is the client's mistake.
func CodeOf(e *openai.Error) string { return cmp.Or(e.Code, fault.Rejected.String()) }

// Shown bounds what a client can write into the log by asking for a model.
func Shown(model string) string { return model[:min(len(model), 128)] }
