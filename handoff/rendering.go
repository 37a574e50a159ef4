package handoff

import (
	"bytes"

	"github.com/tandem-pd/tandem/handoff/connector"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/models"
	"github.com/tandem-pd/tandem/pools"
)

// mostShown is the longest prompt, in tokens, whose ids an engine is asked for: prefill's answer has to hold them.
const mostShown = 1 << 19

// pin decides whether the legs get the prompt's ids instead of the messages, or return the ids that the engine made
// of them. For staged KV the prefill leg has already decided.
func (r *request) pin(round *connector.Round) {
	req := r.Call.Request
	switch {
	case r.Resumes > 0:
		if req.Endpoint == openai.Chat && !req.HasMedia() {
			round.PinnedIDs = r.prompt.JSON()
		}
		return
	case r.KV != nil && r.KV.round != nil:
		round.PinnedIDs = r.KV.round.PinnedIDs
		return
	case req.HasMedia(), echoes(req), len(r.ids) > mostShown, r.ids == nil && len(req.Raw) > 2*mostShown:
		return
	}
	w, role, hidden := round.P, pools.Prefill, true
	if w == nil {
		w, role = round.D, pools.Decode
		hidden = round.ShowIDs || !req.Stream && req.N <= 1 // only then the ids can be removed from the answer
	}
	switch {
	case !hidden, w.ModelInput == "tokens" && req.Endpoint == openai.Completions, !connector.ShowsPrompt(w, req.Endpoint, role, req.Stream):
	case req.Endpoint == openai.Chat && r.prompt.Pins(w):
		round.PinnedIDs = r.prompt.JSON()
	default: // prefill reports them for decode too, whose own might differ
		round.ShowPrompt = r.Source == models.FromOwn || round.P != nil && req.Endpoint == openai.Chat && connector.TakesPrompt(round.D)
	}
}

// echoes reports whether the answer contains the prompt's text. vLLM omits it from completions that request ids
// (0.32.0's completion/serving.py), and from chats given as ids, which it does not render.
func echoes(req *openai.Request) bool {
	echo, _ := req.Bool("echo")
	text, _ := req.Bool("return_prompt_text")
	return echo && req.Endpoint == openai.Completions || text
}

// compareTokens compares the prompt's tokens with those that worker w reports and passes the result to the model's
// language. A different count means a different prompt; an equal count proves nothing. It returns the reported ids,
// nil if malformed.
func (f *Flow) compareTokens(prompt models.Prompt, w *pools.Worker, named *openai.ChunkInfo) (ids []byte) {
	switch {
	case named.PromptIDs != nil:
		f.rooms.Languages.Compare(w, prompt, openai.EqualIDs(named.PromptIDs, prompt.IDs))
	case named.Usage && named.PromptTokens != len(prompt.IDs):
		f.rooms.Languages.Compare(w, prompt, false)
	}
	if len(bytes.Trim(named.PromptIDs, "[0123456789, ]")) > 0 {
		return nil
	}
	return named.PromptIDs
}

// computesAndShows reports whether the round's decode worker computes the prompt and returns its ids.
func (r *request) computesAndShows() bool { return r.cur.round.ShowPrompt && r.cur.round.P == nil }

// startDraft starts the round's answer by w in the request's draft, if any. The draft knows the prompt's tokens if
// the engine was given them.
func (r *request) startDraft(w *pools.Worker) {
	d := r.draft
	if d == nil {
		return
	}
	if d.Pinned, d.SGLang = r.cur.round.PinnedIDs, w.Engine == "sglang"; r.Resumes > 0 {
		return
	}
	d.Prompt = nil
	if d.Pinned != nil || r.Source == models.FromRequest || w.ModelInput == "tokens" && r.Call.Request.Endpoint == openai.Completions {
		d.Prompt = r.ids
	}
}
