package handoff

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/tandem-pd/tandem/decode"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/kv/overlap"
	"github.com/tandem-pd/tandem/models"
	"github.com/tandem-pd/tandem/router"
	"github.com/tandem-pd/tandem/router/placement"
)

// Reasons why a request is served without a prefill leg, besides placement's; metric labels.
const (
	reasonChoices    = "n"               // siblings, and a search's beams, would share the handed-off blocks
	reasonPromptOnly = "max_tokens"      // nothing is decoded
	reasonPrompt     = "prompt_logprobs" // the prompt's own probabilities cross no hand-off
)

// request is one request on its way. It belongs to Serve's goroutine; the drain step reads its Ask while that
// goroutine waits.
type request struct {
	Record

	// What the request asks for. It is fixed once understood; a retry changes nothing of it.
	card     models.Card
	pins     pins             // the workers that the client names
	override *router.Override // the weights that the client wants, nil for the pools'
	prompt   models.Prompt    // the prompt's tokens
	ids      []uint32         // the same, nil if unknown
	// decodeHashes are Hashes in decode's blocks, nil if they are of one size.
	decodeHashes  []uint64
	remoteOverlap *overlap.Report // the overlap that a remote index answered

	traceParent string // what engines get as traceparent, unless a leg has a span of its own

	asks      placement.Ask // of the first round; those of later ones are their own
	shown     bool          // decode's engine has shown the prompt's ids, which it computed itself
	tried     []string      // workers that failed this request
	last      *fault.Error  // why the latest round ended
	suspected suspicion     // of the latest round
	disputes  []dispute     // errors that may be the request's own
	leg       Leg           // the latest decode call
	transfer  placement.Transfer
	leaves    bool // decode may give it up and compute the prompt itself
	slow      bool // it did
	retrying  bool // it has a place in the retry budget

	turns       int         // of its prompt, computed before the decode worker was chosen
	done        router.Done // what slices have computed of it
	sliced      int         // tokens that the latest of them computed
	cachedFirst int         // tokens that the first of them found cached
	promoted    bool        // it goes before the queue's order, for its next turn too

	draft  *decode.Draft // what the client has of a stream, nil where no other worker could go on with it
	goesOn openai.Resume // what the round goes on with; nothing until the answer has moved
	before int           // rounds until then
	still  *time.Timer   // ends a move that takes too long

	now    *roundMemory // of the round at hand
	first  roundMemory
	calls  callbacks
	served bool // the client got its whole answer
}

// given is the first of the values that was given, or zero: a header wins over the body.
func given[T any](values ...*T) (v T) {
	if first := cmp.Or(values...); first != nil {
		v = *first
	}
	return v
}

// oneLeg is the reason why this request is decoded without hand-off by any worker, empty when it is not.
func (r *request) oneLeg() string {
	switch {
	case r.Call.Request.N > 1, r.Call.Request.BeamSearch:
		return reasonChoices
	case r.Call.Request.PromptOnly:
		return reasonPromptOnly
	case showsPrompt(r.Call.Request, r.card.Engine):
		return reasonPrompt
	case r.Reason == placement.ReasonPrefillFailed:
		return placement.ReasonPrefillFailed
	case r.slow:
		return placement.ReasonSlow
	}
	return ""
}

// showsPrompt says whether the client wants the probabilities of the prompt's own tokens. A decode worker that takes
// the prompt's KV over has none, and releases of vLLM fail an assertion in its core, which ends the engine. In
// addition to prompt_logprobs itself, echo asks for them: with logprobs in a completion, and always in a chat, whose
// top_logprobs is 0 where it is absent (vLLM's to_sampling_params). SGLang reads echo alone, and of completions alone.
func showsPrompt(req *openai.Request, engine string) bool {
	asks := func(field string) bool {
		v, ok := req.Field(field)
		return ok && string(v) != "null"
	}
	echo, _ := req.Bool("echo")
	if engine == "sglang" {
		return echo && req.Endpoint == openai.Completions && asks("logprobs")
	}
	return asks("prompt_logprobs") || echo && (req.Endpoint == openai.Chat || asks("logprobs"))
}

// take makes a placement's bookings the request's own.
func (r *request) take(g *placement.Placement, q *waitingRoom) {
	r.book(g, q)
	computes := g.Prefill.Lease
	if p := computes; p != nil {
		r.Prefill = Choice{p.Worker.ID, p.Why}
	}
	if d := g.Decode.Lease; d != nil {
		r.Decode = Choice{d.Worker.ID, d.Why}
		if computes == nil && r.KV == nil {
			computes = d // decode computes the prompt itself
		}
	}
	if computes != nil && r.turns == 0 {
		r.Overlap, r.OverlapTokens = computes.Overlap, r.reusable(computes.Overlap, computes.Worker.BlockSize)
	}
}

// prefilled takes in that the prefill leg has ended.
func (r *request) prefilled(came *prefilled) {
	r.Spent.Prefill += came.took
	if came.failed != nil {
		r.dispute(came.failed, came.permit, nil)
	}
	r.p = placement.Booking{}
}

// reusable is how many of the prompt's tokens a worker that holds so many of its leading blocks can use again. Engines
// compute the last token, and with it its block, however much is cached (max_cache_hit_length in vLLM 0.32's
// v1/core/kv_cache_manager.py; max_prefix_len in SGLang 0.5.23's srt/managers/schedule_batch.py).
func (r *request) reusable(blocks, blockSize int) int {
	return min(blocks, max(0, r.ISL-1)/blockSize) * blockSize
}

// failed notes why a round ended, and which worker to leave out.
func (r *request) failed(failed *fault.Error) {
	r.last = failed
	if failed.Class == fault.Moved { // it may come back to the worker, restarted
		return
	}
	if r.suspected.decode == failed.Worker { // it may not be to blame
		return
	}
	if !slices.Contains(r.tried, failed.Worker) {
		r.tried = append(r.tried, failed.Worker)
	}
}

// cachedTokens is the count of cached tokens that the client gets, −1 to leave decode's figure: most decode workers call
// every transferred token cached. Of a prefill worker that did not report it nothing is known to have been.
func (r *request) cachedTokens() int {
	switch {
	case r.Resumes > 0:
		return min(r.CachedBefore, r.ISL)
	case r.KV == nil, r.KV.Cached < 0 && r.KV.reported():
		return -1
	}
	return max(0, r.KV.Cached)
}

// compare gives the router the tokens that the worker which computed the prompt had cached, below 0 where it did not
// say. A later attempt finds what an earlier one left behind; several answers add up; an engine that shows the
// prompt's own probabilities computes all of it; and a prompt without tokens was looked up by its text. None of these
// measures the worker's events.
func (r *request) compare(l *router.Lease, cached int) {
	if r.Attempts > 1 || r.turns > 0 || r.ids == nil || r.Call.Request.N > 1 || r.Call.Request.Has("prompt_logprobs") || r.Call.Request.Has("echo") {
		return
	}
	l.Compare(cached)
}

// longestAnswer is how many tokens each answer may have: what the client asked for, or the rest of the model's
// context; 0 where neither is known.
func (r *request) longestAnswer() int {
	switch req := r.Call.Request; {
	case req.MaxTokens > 0:
		return req.MaxTokens - r.goesOn.Generated
	case req.PromptOnly:
		return 1 // vLLM computes a token and does not show it
	}
	return max(0, r.card.ContextTokens-r.length())
}

// mostTokens is how many tokens each answer can have at the very most, 0 where that is not known. The prompt's length
// may be an estimate, and is left out of it.
func (r *request) mostTokens() int {
	if n := r.Call.Request.MaxTokens; n > 0 {
		return n
	}
	return r.card.ContextTokens
}

// refuse is the end of a request that was not admitted.
func (r *request) refuse(ctx context.Context, err error, out Sink) error {
	cause := context.Cause(ctx)
	if cause == nil && errors.Is(err, errStandsStill) {
		cause = err
	}
	if cause != nil {
		class := fault.Classify(cause, 0)
		r.Outcome = class.String()
		if class == fault.Timeout { // an answer that was to move
			r.endStream(r.answerTo(r.last), out)
		}
		return cause
	}
	answer := r.refusal(err)
	noDecode := errors.Is(err, placement.ErrNoDecode)
	r.NoneLeft = noDecode || errors.Is(err, placement.ErrNoPrefill)
	switch { // every worker was tried: the last one's failure says more
	case r.Poison():
		answer = poisoned()
	case noDecode && r.last != nil:
		answer = r.answerTo(r.last)
	}
	r.Outcome = answer.Code
	r.endStream(answer, out)
	return answer
}

// endStream ends a stream that has begun by an error event.
func (r *request) endStream(answer *openai.Error, out Sink) {
	if r.Sent.Started && r.Call.Request.Stream {
		_ = out.Write(openai.AppendEvent(nil, r.endsUnresumed(answer).Append(nil, r.Call.ID))) // the client may be gone as well
	}
}

// stopWaiting ends the timer of a move.
func (r *request) stopWaiting() {
	if r.still != nil {
		r.still.Stop()
	}
}

// fail is the end of a request whose last round failed: an error to answer with, or, after the first byte, an error
// event that ends the stream without its end marker.
func (r *request) fail(failed *fault.Error, out Sink) error {
	r.Outcome = failed.Class.String()
	if r.Poison() {
		failed.Err = errors.Join(poisoned(), failed.Err) // so that the client's library does not try again by itself
	}
	if failed.Class == fault.ClientGone {
		return failed
	}
	answer := r.answerTo(failed)
	if !r.Sent.Started {
		return answer
	}
	r.endStream(answer, out)
	return failed
}
