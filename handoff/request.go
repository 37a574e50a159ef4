package handoff

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/tandem-pd/tandem/decode"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/kv/overlap"
	"github.com/tandem-pd/tandem/models"
	"github.com/tandem-pd/tandem/router"
	"github.com/tandem-pd/tandem/router/placement"
)

// Reasons why a request is served without a prefill leg, besides placement's; metric labels.
const (
	reasonChoices    = "n"               // sibling answers, and beams, would share the handed-off blocks
	reasonPromptOnly = "max_tokens"      // nothing is decoded
	reasonPrompt     = "prompt_logprobs" // the prompt's own probabilities are not handed over
	reasonEndpoint   = "endpoint"        // nothing is generated
)

// request is one request in flight. It belongs to Serve's goroutine; the drain step reads its Ask while that
// goroutine waits.
type request struct {
	http1.Refs
	Record

	// What the request asks for: fixed once understood.
	card     models.Card
	pins     pins             // named by the client
	override *router.Override // the client's weights, nil for the pools'
	prompt   models.Prompt    // the prompt's tokens
	ids      []uint32         // the same, nil if unknown
	// decodeHashes are Hashes in decode's block size, nil if it is the same.
	decodeHashes  []uint64
	remoteOverlap *overlap.Report // from the remote index

	traceParent string // for engines, unless a leg has its own span

	computes *router.Router // of the pool that computes the prompt, nil if it has no worker
	ask      *placement.Ask // for the next round, nil until it is made
	firstAsk placement.Ask  // memory of the first round's

	shown     bool         // decode's engine reported the ids of the prompt it computed
	tried     []string     // workers that failed this request
	last      *fault.Error // why the latest round ended
	suspected suspicion    // of the latest round
	disputes  []dispute    // errors that may be the request's own
	leg       Leg          // the latest decode call
	onToken   func(gap time.Duration)
	transfer  placement.Transfer
	leaves    bool // decode may leave it and compute the prompt itself
	slow      bool // it did so
	retrying  bool // it holds a place in the retry budget

	passes      int         // prefill passes that ended before decode was chosen
	done        router.Done // what slices have computed
	sliced      int         // tokens that the latest slice computed
	cachedFirst int         // tokens that the first slice found cached
	promoted    bool        // its next pass skips the queue's order

	draft       *decode.Draft // what the client has of a stream, nil if it cannot be resumed
	resumeFrom  openai.Resume // what the round resumes; empty before the first resume
	before      int           // rounds before the latest resume
	resumeTimer *time.Timer   // ends a resume that takes too long

	cur   *roundMemory // of the current round
	first roundMemory
	flow  *Flow
}

// firstSet returns the first non-nil value, or zero: a header overrides the body.
func firstSet[T any](values ...*T) (v T) {
	if first := cmp.Or(values...); first != nil {
		v = *first
	}
	return v
}

// oneLeg returns why any worker must decode this request without a hand-off, or empty.
func (r *request) oneLeg() string {
	switch req := r.Call.Request; {
	case !req.Endpoint.Generates():
		return reasonEndpoint
	case req.N > 1, req.BeamSearch, req.BestOf > 1 && r.card.Engine == "trtllm": // other engines have one answer then
		return reasonChoices
	case req.PromptOnly:
		return reasonPromptOnly
	case showsPrompt(req, r.card.Engine):
		return reasonPrompt
	case r.Reason == placement.ReasonPrefillFailed:
		return placement.ReasonPrefillFailed
	case r.slow:
		return placement.ReasonSlow
	}
	return ""
}

// rulesOut returns the client's field that rules a prefill leg out for a reason of oneLeg, and its value in words.
func (r *request) rulesOut(reason string) (field, value string) {
	switch req := r.Call.Request; {
	case reason == reasonEndpoint:
		return "an endpoint that generates nothing", ""
	case reason == reasonPromptOnly:
		return "max_tokens", " 0"
	case reason == reasonPrompt && req.Has("prompt_logprobs"):
		return "prompt_logprobs", ""
	case reason == reasonPrompt:
		return "echo", ""
	case req.BeamSearch:
		return "use_beam_search", ""
	case req.N > 1:
		return "n", " above 1"
	}
	return "best_of", " above 1"
}

// showsPrompt reports whether the client requests the probabilities of the prompt's own tokens. A decode worker that
// takes over the prompt's KV has none, and some releases of vLLM crash on an assertion in the core. In vLLM,
// prompt_logprobs requests them, echo with logprobs in completions, and echo always in chats, whose top_logprobs
// defaults to 0 (to_sampling_params). SGLang reads echo of completions only.
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

// take adds a placement's bookings to the request.
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
	if computes != nil && r.passes == 0 {
		r.Overlap, r.OverlapTokens = computes.Overlap, r.reusable(computes.Overlap, computes.Worker.BlockSize)
	}
}

// prefilled records the end of the prefill leg.
func (r *request) prefilled(result *prefilled) {
	r.Spent.Prefill += result.took
	if result.failed != nil {
		r.dispute(result.failed, result.permit, nil)
	}
	r.p = placement.Booking{}
}

// reusable returns how many of the prompt's tokens a worker with so many of its leading blocks cached can reuse.
// Engines always compute the last token, and with it its block (max_cache_hit_length in vLLM 0.32's
// v1/core/kv_cache_manager.py; max_prefix_len in SGLang 0.5.23's srt/managers/schedule_batch.py).
func (r *request) reusable(blocks, blockSize int) int {
	return min(blocks, max(0, r.ISL-1)/blockSize) * blockSize
}

// failed records why a round ended, and the worker to exclude.
func (r *request) failed(failed *fault.Error) {
	r.last = failed
	if failed.Class == fault.Moved { // the restarted worker may serve it
		return
	}
	if r.suspected.decode == failed.Worker { // it may not be to blame
		return
	}
	if !slices.Contains(r.tried, failed.Worker) {
		r.tried = append(r.tried, failed.Worker)
	}
}

// cachedTokens returns the cached-token count for the client, −1 for decode's own: most decode workers count every
// transferred token as cached. It is 0 if the prefill worker reported none.
func (r *request) cachedTokens() int {
	switch {
	case r.Resumes > 0:
		return min(r.CachedBefore, r.ISL)
	case r.KV == nil, r.KV.Cached < 0 && r.KV.reported():
		return -1
	}
	return max(0, r.KV.Cached)
}

// compare reports to the router how many tokens the worker that computed the prompt had cached, below 0 if unknown.
// It skips what does not measure the worker's KV events: a later round, several answers, the prompt's own
// probabilities, and prompts looked up by text.
func (r *request) compare(l *router.Lease, cached int) {
	req := r.Call.Request
	if r.Attempts > 1 || r.passes > 0 || r.ids == nil || req.N > 1 || req.Has("prompt_logprobs") || req.Has("echo") {
		return
	}
	l.Compare(cached)
}

// longestAnswer returns the most tokens left to each answer: the client's limit, or the rest of the model's context;
// 0 if neither is known.
func (r *request) longestAnswer() int {
	switch req := r.Call.Request; {
	case req.MaxTokens > 0:
		return req.MaxTokens - r.resumeFrom.Generated
	case !req.Endpoint.Generates():
		return max(1, req.Inputs) // as long as a token of each
	case req.PromptOnly:
		return 1 // vLLM computes a token and does not return it
	}
	return max(0, r.card.ContextTokens-r.length())
}

// mostTokens returns an upper bound of each answer's tokens, 0 if unknown. It ignores the prompt's length, which may
// be an estimate.
func (r *request) mostTokens() int {
	if n := r.Call.Request.MaxTokens; n > 0 {
		return n
	}
	return r.card.ContextTokens
}

// refuse ends a request that was not admitted.
func (r *request) refuse(ctx context.Context, err error, out Sink) error {
	cause := context.Cause(ctx)
	if cause == nil && errors.Is(err, errResumeTimeout) {
		cause = err
	}
	if cause != nil {
		class := fault.Classify(cause, 0)
		r.Outcome = class.String()
		if class == fault.Timeout { // an answer that was to resume
			r.endStream(r.answerTo(r.last), out)
		}
		return cause
	}
	answer := r.refusal(err)
	noDecode := errors.Is(err, placement.ErrNoDecode)
	r.NoneLeft = noDecode || errors.Is(err, placement.ErrNoPrefill)
	switch { // every worker was tried: the last one's failure is more specific
	case r.Poison():
		answer = poisoned()
	case noDecode && r.last != nil:
		answer = r.answerTo(r.last)
	}
	r.Outcome = answer.Code
	r.endStream(answer, out)
	return answer
}

// endStream ends a started stream with an error event.
func (r *request) endStream(answer *openai.Error, out Sink) {
	if r.Sent.Started && r.Call.Request.Stream {
		_ = out.Write(openai.AppendEvent(nil, r.endsUnresumed(answer).Append(nil, r.Call.ID))) // the client may be gone
	}
}

// stopWaiting stops the timer of a resume.
func (r *request) stopWaiting() {
	if r.resumeTimer != nil {
		r.resumeTimer.Stop()
	}
}

// fail ends a request whose last round failed: with an error or, after the first byte, an error event that ends the
// stream without its end marker.
func (r *request) fail(failed *fault.Error, out Sink) error {
	r.Outcome = failed.Class.String()
	if r.Poison() {
		failed.Err = errors.Join(poisoned(), failed.Err) // so that client libraries do not retry
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
