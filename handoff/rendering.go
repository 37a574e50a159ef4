package handoff

import (
	"bytes"

	"github.com/tandem-pd/tandem/handoff/connector"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/models"
	"github.com/tandem-pd/tandem/pools"
)

// mostShown is the tokens of the longest prompt whose ids an engine is asked for: prefill's answer has to hold them.
const mostShown = 1 << 19

// pin decides whether the legs of a round get the prompt's ids in the place of what its worker would make of the messages,
// or are to show what that makes of them. Of a prompt whose KV is staged that was decided with its prefill leg.
func (r *request) pin(a *connector.Round) {
	req := r.Call.Request
	switch {
	case r.Resumes > 0:
		if req.Endpoint == openai.Chat && !req.HasMedia() {
			a.PinnedIDs = r.prompt.JSON()
		}
		return
	case r.KV != nil && r.KV.round != nil:
		a.PinnedIDs = r.KV.round.PinnedIDs
		return
	case req.HasMedia(), echoes(req), len(r.ids) > mostShown, r.ids == nil && len(req.Raw) > 2*mostShown:
		return
	}
	w, role, hidden := a.P, pools.Prefill, true
	if w == nil {
		w, role = a.D, pools.Decode
		hidden = a.ShowIDs || !req.Stream && req.N <= 1 // only then ids can be taken out of the answer again
	}
	switch {
	case !hidden, w.ModelInput == "tokens" && req.Endpoint == openai.Completions, !connector.ShowsPrompt(w, req.Endpoint, role, req.Stream):
	case req.Endpoint == openai.Chat && r.prompt.Pins(w):
		a.PinnedIDs = r.prompt.JSON()
	default: // prefill reports them for decode's sake too, whose own might be others
		a.ShowPrompt = r.Source == models.FromOwn || a.P != nil && req.Endpoint == openai.Chat && connector.TakesPrompt(a.D)
	}
}

// echoes reports whether the answer has the prompt's text. vLLM leaves it out of completions where it is asked for ids
// (0.32.0's completion/serving.py), and of chats that come with ids, which it does not render.
func echoes(req *openai.Request) bool {
	echo, _ := req.Bool("echo")
	text, _ := req.Bool("return_prompt_text")
	return echo && req.Endpoint == openai.Completions || text
}

// compareTokens reports to the model's language what the worker that computed the prompt made of it, as its answer says.
// Another number of tokens is another prompt. The same number says nothing. It returns the answer's ids, nil for what is none.
func (f *Flow) compareTokens(prompt models.Prompt, w *pools.Worker, said *openai.ChunkInfo) (ids []byte) {
	switch {
	case said.PromptIDs != nil:
		f.rooms.Languages.Compare(w, prompt, openai.EqualIDs(said.PromptIDs, prompt.IDs))
	case said.Usage && said.PromptTokens != len(prompt.IDs):
		f.rooms.Languages.Compare(w, prompt, false)
	}
	if len(bytes.Trim(said.PromptIDs, "[0123456789, ]")) > 0 {
		return nil
	}
	return said.PromptIDs
}

// computesAndShows reports whether the round's decode worker computes the prompt, and shows what it made of it.
func (r *request) computesAndShows() bool { return r.now.round.ShowPrompt && r.now.round.P == nil }

// startDraft has the request's draft, if it has one, begin a round's answer by worker w, of which it knows the prompt's
// tokens if the engine was given them; others it is shown.
func (r *request) startDraft(w *pools.Worker) {
	d := r.draft
	if d == nil {
		return
	}
	if d.Pinned, d.SGLang = r.now.round.PinnedIDs, w.Engine == "sglang"; r.Resumes > 0 {
		return
	}
	d.Prompt = nil
	if d.Pinned != nil || r.Source == models.FromRequest || w.ModelInput == "tokens" && r.Call.Request.Endpoint == openai.Completions {
		d.Prompt = r.ids
	}
}
