package models

import (
	"errors"
	"slices"
	"sync"

	"github.com/tandem-pd/tandem/internal/openai"
)

// Source is where a prompt's tokens come from; a metric's label.
type Source string

// The sources, the best first. Of a prompt that is known FromText there are no tokens.
const (
	FromRequest Source = "request" // the client sent ids
	FromOwn     Source = "own"     // the gateway's tokenizer and chat template
	FromEngine  Source = "engine"  // the engine's /tokenize
	FromText    Source = "text"    // hashes of the text, unrelated to what an engine holds
)

// Sources are all of them.
var Sources = []Source{FromRequest, FromOwn, FromEngine, FromText}

// Tokens are the prompt's token ids, as far as they are kept: those in the request, or what the model's language makes
// of its text. They are nil where they are not known here: without a language (nil), or for what it does not render.
// A prompt whose bytes alone prove it too long is refused without being tokenized, or left unknown where the engine
// will cut it. The error is an *openai.Error.
func (c *Card) Tokens(req *openai.Request, l *Language) (Prompt, Source, error) {
	if req.Prompt.Kind == openai.PromptIDs {
		ids, err := c.Fit(req, req.Prompt.IDs)
		return Prompt{IDs: ids}, FromRequest, err
	}
	if l == nil {
		return Prompt{}, FromText, nil
	}
	kind := l.kind(req, c.Engine)
	if l.misleads(kind) {
		return Prompt{}, FromText, nil
	}
	if limit := c.ContextTokens; limit > 0 {
		switch n := l.tokenizer.Tokenizer().MinTokens(req.Prompt.TokensAtLeast(1)); {
		case n < limit:
		case c.Kept(req) < limit || !l.simulated():
			return Prompt{}, FromText, nil
		default:
			return Prompt{}, FromText, req.TooLong(n, limit, true)
		}
	}
	whole, err := l.prompt(req, c.Engine)
	if err != nil {
		if errors.Is(err, ErrUnrendered) {
			err = nil
		}
		return Prompt{}, FromText, err
	}
	if size := c.VocabSize(l); size < l.tokenizer.Tokenizer().VocabSize() && len(whole.IDs) > 0 &&
		int64(slices.Max(whole.IDs)) >= int64(size) {
		return Prompt{}, FromText, openai.BadRequest(req.PromptField(), "%s holds a token that the model has no embedding of", req.PromptField())
	}
	whole.kind = kind
	ids, err := c.Fit(req, whole.IDs)
	if err != nil && !l.likely(kind) { // the engine may count others
		return Prompt{}, FromText, nil
	}
	if len(ids) < len(whole.IDs) {
		whole.IDs, whole.kept, whole.in = slices.Clone(ids), nil, nil
	}
	return whole, FromOwn, err
}

// engineOnly are fields of a request to tokenize that only its engine understands, by whether SGLang does as for a chat.
var engineOnly = map[string]bool{
	"return_token_strs": false, "chat_template": false, "mm_processor_kwargs": false, "media_io_kwargs": false,
	"tool_choice": true, "reasoning_effort": true, "documents": true, "response_format": true,
}

// Exact returns the tokens that the model's engine answers a request to tokenize with; ok is false where they are not
// known here.
func (c *Card) Exact(req *openai.Request, l *Language) (ids []uint32, ok bool) {
	for name, sglangs := range engineOnly {
		if v, given := req.Field(name); given && string(v) != "null" && string(v) != "false" && !(sglangs && c.Engine == "sglang") {
			return nil, false
		}
	}
	if req.Prompt.Kind == openai.NoPrompt || l.misleads(l.kind(req, c.Engine)) {
		return nil, false
	}
	p, err := l.prompt(req, c.Engine)
	return p.IDs, err == nil
}

// prompt returns the tokens of a request's text or messages before they are cut. The error wraps [ErrUnrendered].
func (l *Language) prompt(req *openai.Request, engine string) (Prompt, error) {
	var key askKey
	remembers := l.prompts.takes(req)
	if remembers {
		q := question{req: req, seed: l.prompts.seed, own: engine}
		key = q.key()
		if a, ok := l.prompts.find(key, l.now); ok {
			return Prompt{IDs: a.ids, by: l, dated: len(a.dates) > 0, kept: a, in: l.prompts}, nil
		}
	}
	// How many tokens a prompt has is known only afterwards: the request keeps a copy of the right size.
	buffer := encodings.Get().(*[]uint32)
	defer func() {
		if cap(*buffer) <= keptIDs {
			encodings.Put(buffer)
		}
	}()
	var dates []date
	var err error
	if *buffer, dates, err = l.encode((*buffer)[:0], req, engine); err != nil {
		return Prompt{}, err
	}
	p := Prompt{IDs: slices.Clone(*buffer), by: l, dated: len(dates) > 0, in: l.prompts}
	if p.IDs == nil {
		p.IDs = []uint32{}
	}
	if remembers {
		p.kept = l.prompts.keep(key, p.IDs, dates)
	}
	return p, nil
}

// Fit cuts a prompt as the client asks, and refuses one that is empty or that no worker takes. The error is an
// *openai.Error.
func (c *Card) Fit(req *openai.Request, ids []uint32) ([]uint32, error) {
	ids = truncated(ids, c.Kept(req), req.TruncateRight)
	if len(ids) == 0 {
		return ids, openai.BadRequest(req.PromptField(), "the prompt is empty")
	}
	if limit := c.ContextTokens; limit > 0 && (len(ids) >= limit || len(ids)+req.MaxTokens > limit) {
		return ids, req.TooLong(len(ids), limit, false)
	}
	return ids, nil
}

// encodings are buffers to tokenize into.
var encodings = sync.Pool{New: func() any {
	ids := make([]uint32, 0, 1024)
	return &ids
}}

// truncated cuts a prompt to n tokens: its last ones, or its first.
func truncated(ids []uint32, n int, first bool) []uint32 {
	switch {
	case len(ids) <= n:
		return ids
	case first:
		return ids[:n]
	}
	return ids[len(ids)-n:]
}
