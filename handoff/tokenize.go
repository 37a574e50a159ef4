package handoff

import (
	"github.com/tandem-pd/tandem/internal/openai"
)

// mostTokenized is the longest body, in bytes, that the gateway tokenizes for a client itself.
const mostTokenized = 4 << 20

// tokenizeHere returns the answer to a request to tokenize, or for the tokenizer's configuration, if the gateway has the
// model's tokenizer and it makes the engine's tokens; else nil. The answer has vLLM's form
// (entrypoints/serve/tokenize/protocol.py of 0.32).
func (f *Flow) tokenizeHere(r *request) []byte {
	req, language := r.Call.Request, f.rooms.Languages.Of(r.Call.Request.Model)
	switch {
	case language == nil:
	case req.Endpoint == openai.TokenizerInfo:
		return language.Info()
	case req.Endpoint == openai.Tokenize && r.card.ContextTokens > 0 && len(req.Raw) <= mostTokenized:
		ids, ok := r.card.Exact(req, language)
		if !ok {
			return nil
		}
		return []byte(marshalled(struct {
			Count       int      `json:"count"`
			MaxModelLen int      `json:"max_model_len"`
			Tokens      []uint32 `json:"tokens"`
			Strings     any      `json:"token_strs"`
		}{len(ids), r.card.ContextTokens, ids, nil}))
	}
	return nil
}
