package models

import (
	"slices"
	"sync"

	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/tokens"
)

// Tokens are the prompt's token ids, as far as they are kept. They are nil where they cannot be known: without the
// model's tokenizer (nil), or where the engine's own template puts in what ours does not (tools, images). A prompt
// whose bytes alone prove it too long is refused without being tokenized, or left unknown where the engine will cut
// it. The error is an *openai.Error.
func (c *Card) Tokens(req *openai.Request, tokenizer *tokens.Cache) ([]uint32, error) {
	ids, err := c.tokenize(req, tokenizer)
	if err != nil || ids == nil {
		return nil, err
	}
	if len(ids) == 0 {
		return ids, openai.BadRequest(promptField(req), "the prompt is empty")
	}
	if limit := c.ContextTokens; limit > 0 && (len(ids) >= limit || len(ids)+req.MaxTokens > limit) {
		return ids, openai.ContextLength(promptField(req), len(ids)+max(1, req.MaxTokens), limit, false)
	}
	return ids, nil
}

func (c *Card) tokenize(req *openai.Request, tokenizer *tokens.Cache) ([]uint32, error) {
	kept := c.Kept(req)
	if req.Prompt.Kind == openai.PromptIDs {
		return truncated(req.Prompt.IDs, kept, req.TruncateRight), nil
	}
	if tokenizer == nil || req.HasTools || req.HasToolMessages || req.HasMedia() {
		return nil, nil
	}
	if limit := c.ContextTokens; limit > 0 {
		switch n := tokenizer.Tokenizer().MinTokens(req.Prompt.TokensAtLeast(1)); {
		case n >= limit && kept < limit:
			return nil, nil
		case n >= limit:
			return nil, openai.ContextLength(promptField(req), n, limit, true)
		}
	}
	// How many tokens a prompt has is known only afterwards: the request keeps a copy of the right size.
	buffer := encodings.Get().(*[]uint32)
	defer encodings.Put(buffer)
	if req.Prompt.Kind == openai.PromptText {
		*buffer = tokenizer.Encode((*buffer)[:0], req.Prompt.Text())
	} else {
		messages := req.Prompt.Messages()
		chat := make([]tokens.Message, len(messages))
		for i, m := range messages {
			chat[i] = tokens.Message{Role: m.Role, Content: m.Content}
		}
		*buffer = tokenizer.EncodeChat((*buffer)[:0], chat)
	}
	return slices.Clone(truncated(*buffer, kept, req.TruncateRight)), nil
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
