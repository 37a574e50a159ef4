package handoff

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tandem-pd/tandem/decode"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/handoff/connector"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/models"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
)

// Resuming configures answers that resume on another worker.
type Resuming struct {
	// Limit is how many times an answer may resume: engines are asked for the tokens of a stream's answer, and when its
	// worker fails the prompt and these tokens go to other workers. A greedy answer (temperature 0) then is what it
	// would have been. A sampled one resumes as another sample. With 0 a stream whose worker fails ends with that
	// error.
	Limit int `flag:"migration-limit" default:"3" range:"0..100" help:"How often one answer may resume on another worker. With 0 a stream whose worker fails ends with an error event."`
	// LongestTokens bounds prompt and answer together, which are computed again, in tokens.
	LongestTokens int `flag:"migration-max-seq-len" default:"0" range:"0.." help:"Longest prompt and answer, in tokens, that may resume; they are computed again. 0 sets no limit."`
	// Within bounds how long a resume may stall the client's stream.
	Within time.Duration `default:"30s" range:"1ms.."`
}

// errResumeTimeout ends a resume that takes too long.
var errResumeTimeout = fmt.Errorf("the answer did not resume in time: %w", fault.ErrTimeout)

// NotResumable explains each reason, a label of a metric. docs/faults.md lists them.
var NotResumable = map[string]string{
	"n":          "several answers were requested",
	"logprobs":   "its probabilities were requested",
	"media":      "its prompt has media",
	"max_tokens": "nothing is generated",
	"grammar":    "it is bound to a grammar",
	"echo":       "it echoes its prompt",
	"bad_words":  "it may have begun a forbidden word",
	"penalties":  "its penalties count the tokens that were generated",
	"repetition": "it may have begun a repetition that ends it",
	"details":    "more than its text and its tokens was requested",
	"reasoning":  "its reasoning is hidden",
	"processor":  "its tokens pass a processor of their own",
	"engine":     "its engine does not show the tokens that it generates",
	"tool_call":  "it has begun to call a tool",
	"stop":       "a stop string may have begun in it, and its tokens cannot be read here",
	"whole":      "it is not streamed",
	"parser":     "its engine's parser loses its place in a resumed answer",
	"limit":      "it has resumed as often as --migration-limit allows",
	"length":     "it is longer than --migration-max-seq-len allows",
	"pinned":     "the request names its worker",
	"budget":     "as many requests were tried again as the retry budget allows, for as long as an answer may stand still",
	"runaway":    "it does not end",
}

// draft returns the draft in which decode keeps what another worker needs to resume the answer, nil if none could.
func (f *Flow) draft(r *request) *decode.Draft {
	req := r.Call.Request
	if r.draft != nil || r.NotResumable != "" || f.cfg.Resume.Limit == 0 {
		return r.draft
	}
	if r.NotResumable = req.Unresumable(r.card.Engine, false); !req.Stream {
		r.NotResumable = "whole"
	}
	if r.NotResumable != "" {
		return nil
	}
	r.draft = decode.NewDraft(req)
	r.draft.HideIDs, r.draft.Context = !asksIDs(req, r.card.Engine), r.card.ContextTokens
	if language := f.rooms.Languages.Of(req.Model); language != nil {
		r.draft.Tokenizer = language.Tokenizer().Tokenizer()
	}
	return r.draft
}

// asksIDs reports whether the client itself asks an engine for token ids.
func asksIDs(req *openai.Request, engine string) bool {
	all, _ := req.Bool("return_token_ids")
	prompts, _ := req.Bool("return_prompt_token_ids")
	return all || prompts && engine == "sglang" && req.Endpoint == openai.Chat // the others do not read it
}

// resumable reports whether another worker may resume r's answer after this failure. If not, r.NotResumable is why.
func (f *Flow) resumable(r *request, failed *fault.Error) bool {
	cfg := &f.cfg.Resume
	switch {
	case cfg.Limit == 0 || failed.Class == fault.ClientGone || failed.Class == fault.Shutdown:
		return false
	case r.NotResumable != "":
	case errors.Is(failed.Err, decode.ErrParser):
		r.NotResumable = "parser"
	case errors.Is(failed.Err, fault.ErrRunaway):
		r.NotResumable = "runaway"
	case r.Resumes >= cfg.Limit:
		r.NotResumable = "limit"
	case r.pins.decode.Worker != "" || r.pins.prefill.Worker != "":
		r.NotResumable = "pinned"
	case cfg.LongestTokens > 0 && r.ISL+r.Sent.Tokens > cfg.LongestTokens:
		r.NotResumable = "length"
	default:
		r.NotResumable = r.draft.Unresumable()
	}
	return r.NotResumable == ""
}

// resume sets up the next round with the prompt and what was generated. The returned context ends if the answer does
// not resume in time.
func (f *Flow) resume(ctx context.Context, r *request) context.Context {
	if r.resumeTimer == nil {
		within, cancel := context.WithCancelCause(ctx)
		ctx, r.resumeTimer = within, time.AfterFunc(f.cfg.Resume.Within, func() { cancel(errResumeTimeout) })
	} else {
		r.resumeTimer.Reset(f.cfg.Resume.Within)
	}
	if r.Trace != nil {
		r.Trace.cut = r.leg.Span
	}
	r.CachedBefore = r.cachedTokens()
	r.Resumes++
	r.before = r.Attempts
	r.done = router.Done{}
	r.resumeFrom = r.draft.Resume()
	r.ids = r.resumeFrom.Prompt
	r.prompt = models.Prompt{IDs: r.ids}
	r.Hashes, r.decodeHashes = r.card.Hashes(r.Call.Request, r.prompt)
	return ctx
}

// length returns the tokens of the next round's prompt.
func (r *request) length() int {
	if r.Resumes > 0 {
		return len(r.ids)
	}
	return r.ISL
}

// endsUnresumed adds to the client's error why its stream was not resumed.
func (r *request) endsUnresumed(answer *openai.Error) *openai.Error {
	if r.NotResumable == "" || answer.Final {
		return answer
	}
	return openai.BadGateway("not_resumable", answer.Message+"; the answer cannot resume on another worker: "+NotResumable[r.NotResumable])
}

// MigrationLimit returns how often an answer may resume.
func (f *Flow) MigrationLimit() int { return f.cfg.Resume.Limit }

// showsIDs reports whether worker w is to return the answer's token ids.
func (r *request) showsIDs(w *pools.Worker) bool {
	return r.draft != nil && connector.ShowsIDs(w, r.Call.Request.Endpoint)
}
