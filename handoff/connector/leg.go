package connector

import (
	"fmt"
	"math"

	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/upstream"
	"github.com/tandem-pd/tandem/pools"
)

// leg edits the body for the round's worker of a role: as the client sent it less nvext, or with token ids in the
// prompt's place for a worker that takes tokens. more makes the protocol's own edits; tokens says that the leg
// carries token ids.
func leg(round Round, role pools.Role, more func(e *openai.Edit, tokens bool)) (upstream.Leg, error) {
	w, rank, again := round.D, round.DRank, round.DReannounce
	if role == pools.Prefill {
		w, rank, again = round.P, round.PRank, round.PReannounce
	}
	r := round.Request
	l := upstream.Leg{
		Purpose: string(role), Worker: w.ID, Base: w.Address, Path: r.Endpoint.Path(), RequestID: round.ID,
		Rank: -1, TraceParent: round.TraceParent, TraceState: round.TraceState, Forward: round.Forward, Stream: r.Stream,
	}
	if w.Ranks() > 1 {
		l.Rank = rank
	}
	tokens := w.ModelInput == "tokens"
	e := r.Edit()
	switch {
	case tokens && r.Endpoint == openai.Chat:
		var err error
		if e, err = openai.CompletionFromChat(r, round.IDs, w.ContextLength); err != nil {
			return l, err
		}
		l.Path = openai.Completions.Path()
	case tokens && round.IDs == nil:
		return l, openai.BadRequest("prompt", "this model's workers take token ids, and the gateway cannot make them of this prompt: send the prompt as token ids")
	case tokens && r.Prompt.Kind != openai.PromptIDs:
		e.SetIDs("prompt", round.IDs)
	}
	if name, _ := r.Field("model"); string(name) != `"`+w.Model+`"` { // another name that it serves under
		e.SetString("model", w.Model)
	}
	e.Delete("nvext")
	if salt := r.Nvext.CacheSalt; salt != "" && !r.Has("cache_salt") {
		e.SetString("cache_salt", salt) // engines read only the body's
	}
	if r.Truncate < 0 && round.Kept < math.MaxInt {
		// The engine would reckon by max_tokens, which the legs have not in common.
		e.SetInt("truncate_prompt_tokens", int64(round.Kept))
	}
	if again {
		reannounce(e, r)
	}
	if more != nil {
		more(e, tokens)
	}
	l.Body = e.Segments()
	return l, nil
}

// reannounce asks the engine to announce the cached blocks of the prompt that it uses again
// (vllm_xargs.kv_cache_report_mode, vLLM 0.26.0; older ones take no notice), unless the client has set that itself.
func reannounce(e *openai.Edit, r *openai.Request) {
	const field, mode = "vllm_xargs", "kv_cache_report_mode"
	given, ok := r.Field(field)
	if !ok || string(given) == "null" {
		e.Set(field, []byte(`{"`+mode+`":"full"}`))
		return
	}
	if xargs, ok := openai.NewEdit(given); ok && !xargs.Has(mode) {
		xargs.SetString(mode, "full")
		e.Set(field, xargs.Bytes())
	}
}

// sameRelease reports two engines of different releases. What is not known is not compared.
func sameRelease(p, d *pools.Worker) error {
	if a, b := p.EngineVersion, d.EngineVersion; a != "" && b != "" && a != b {
		return fmt.Errorf("%s is %s %s and %s is %s %s: a hand-off takes the same release", p.ID, p.Engine, a, d.ID, d.Engine, b)
	}
	return nil
}
