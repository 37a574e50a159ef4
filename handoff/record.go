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

// Record is the state of one request for its observers and the client's nvext. The flow writes it on the request's
// goroutine; observers read it during a call and retain no part of it.
type Record struct {
	// Call is the client's call.
	Call Call
	// ID is the gateway's own name for the request. Engines see it with the round's number.
	ID string
	// Trace is the request's span and steps; nil unless it is traced.
	Trace *Trace
	// Known reports that some worker serves the model. Any other model name is client input and must not become a
	// label.
	Known bool

	// ISL is the prompt's length in tokens, an estimate unless Tokenized.
	ISL       int
	Tokenized bool
	// Source is the source of the prompt's tokens.
	Source models.Source
	// Hashes are the sequence hashes of the prompt's full blocks of BlockSize tokens; hashes of its text unless
	// Tokenized.
	Hashes    []uint64
	BlockSize int
	// PolicyClass is the class that the request waits in, empty without classes.
	PolicyClass string
	// Remote is the outcome of the remote index query, empty without one.
	Remote string

	// Attempts counts the rounds started.
	Attempts int
	// Resumes counts how often the answer resumed on another worker. Hashes then cover the prompt and what was
	// generated before the latest resume.
	Resumes int
	// CachedBefore is the cached-token count to report to the client after a resume, −1 if unknown.
	CachedBefore int
	// NotResumable is a one-word reason why the answer cannot resume, or empty.
	NotResumable string
	// Dead are the workers that died while they had this request.
	Dead []string
	// NoneLeft reports that no worker is left that could serve the request.
	NoneLeft bool
	// Prefill and Decode are the latest choice of each leg's worker.
	Prefill, Decode Choice
	// Overlap is the prompt blocks that the router expects in the cache of the worker that computes the prompt, and
	// OverlapTokens the same in tokens.
	Overlap, OverlapTokens int
	// holdings has Reason, why there is no prefill leg, and KV, the KV handed over.
	holdings
	// HandedOver is when the KV was ready and the latest decode call was made; Sent is that call's result.
	HandedOver time.Time
	Sent       decode.Transcript
	// Spent is the time that each step took.
	Spent Spent
	// Outcome is how the request ended: ok, a fault class or an error's code.
	Outcome string
	// Mark is for an observer's own use. The flow never reads it.
	Mark any
}

// Choice is the worker chosen for a leg, and how it was chosen.
type Choice struct {
	Worker string     `json:"worker"`
	Why    router.Why `json:"why,omitzero"`
}

// Spent is the time of each step. Queued and Prefill sum all rounds; the others are of the latest.
type Spent struct {
	Tokenizing, Hashing, Asking, Matching, Scheduling time.Duration
	Queued, Prefill                                   time.Duration
}

// Found returns how many prompt tokens the worker that computed the prompt had cached, as it reported; below 0 if
// unknown. t is the decode leg's, nil if there was none.
func (r *Record) Found(t *decode.Transcript) int {
	switch {
	case r.KV != nil && (r.KV.Cached >= 0 || t == nil || !r.KV.reported()):
		return r.KV.Cached
	case t != nil && !t.First.IsZero(): // computed by decode, or decode reports prefill's number
		return t.CachedTokens
	}
	return -1
}

// Poison reports whether the request is suspected of killing workers: MaxDeaths died while they had it, or all there
// are. It is not retried.
func (r *Record) Poison() bool { return len(r.Dead) >= MaxDeaths || r.NoneLeft && len(r.Dead) > 0 }

// end sets the outcome of a request that ends with err.
func (r *Record) end(err error) {
	switch {
	case err == nil:
		r.Outcome = fault.None.String()
		return
	case r.Outcome != "": // set when it failed
		return
	}
	if answer, ok := errors.AsType[*openai.Error](err); ok {
		r.Outcome = CodeOf(answer)
		return
	}
	r.Outcome = fault.Classify(err, 0).String()
}

// CodeOf returns an error's code; an error without one is the client's mistake.
func CodeOf(e *openai.Error) string { return cmp.Or(e.Code, fault.Rejected.String()) }

// Shown truncates a client's model name for logs and errors.
func Shown(model string) string { return model[:min(len(model), 128)] }
