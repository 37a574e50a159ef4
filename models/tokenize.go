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
	FromText    Source = "text"    // hashes of the text, which say nothing of what an engine holds
)

// Sources are all of them.
var Sources = []Source{FromRequest, FromOwn, FromEngine, FromText}

// Tokens are the prompt's token ids, as far as they are kept: those in the request, or what the model's language makes
// of its text. They are nil where they are not known here: without a language (nil), or for what it does not render.
// A prompt whose bytes alone prove it too long is refused without being tokenized, or left unknown where the engine
// will cut it. The error is an *openai.Error.
func (c *Card) Tokens(req *openai.Request, l *Language) ([]uint32, Source, error) {
	if req.Prompt.Kind == openai.PromptIDs {
		ids, err := c.Fit(req, req.Prompt.IDs)
		return ids, FromRequest, err
	}
	if l == nil || l.Trust().Distrusted {
		return nil, FromText, nil
	}
	if limit := c.ContextTokens; limit > 0 {
		switch n := l.tokenizer.Tokenizer().MinTokens(req.Prompt.TokensAtLeast(1)); {
		case n < limit:
		case c.Kept(req) < limit || !l.simulated():
			return nil, FromText, nil
		default:
			return nil, FromText, openai.ContextLength(promptField(req), n, limit, true)
		}
	}
	// How many tokens a prompt has is known only afterwards: the request keeps a copy of the right size.
	buffer := encodings.Get().(*[]uint32)
	defer encodings.Put(buffer)
	var err error
	if *buffer, err = l.Encode((*buffer)[:0], req, c.Engine); err != nil {
		if errors.Is(err, ErrUnrendered) {
			err = nil
		}
		return nil, FromText, err
	}
	ids, err := c.Fit(req, *buffer)
	if err != nil && !l.proven() { // the engine may count others
		return nil, FromText, nil
	}
	return slices.Clone(ids), FromOwn, err
}

// Fit cuts a prompt as the client asks, and refuses one that is empty or that no worker takes. The error is an
// *openai.Error.
func (c *Card) Fit(req *openai.Request, ids []uint32) ([]uint32, error) {
	ids = truncated(ids, c.Kept(req), req.TruncateRight)
	if len(ids) == 0 {
		return ids, openai.BadRequest(promptField(req), "the prompt is empty")
	}
	if limit := c.ContextTokens; limit > 0 && (len(ids) >= limit || len(ids)+req.MaxTokens > limit) {
		return ids, openai.ContextLength(promptField(req), len(ids)+max(1, req.MaxTokens), limit, false)
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

// promptField names the body's field that holds the prompt.
func promptField(req *openai.Request) string {
	if req.Endpoint == openai.Chat {
		return "messages"
	}
	return "prompt"
}
