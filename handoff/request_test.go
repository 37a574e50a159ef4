package handoff

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/models"
)

// What makes vLLM compute the probabilities of the prompt's own tokens takes one leg, so does what generates nothing or several
// choices, and nothing else does. What bounds an answer to a token is known as such.
func TestWhatTakesOneLeg(t *testing.T) {
	const completion, chat = `{"model":"m","prompt":"hi"`, `{"model":"m","messages":[{"role":"user","content":"hi"}]`
	for _, c := range []struct {
		endpoint   openai.Endpoint
		head, want string
		fields     []string
		engine     string
	}{
		{openai.Completions, completion, "", []string{
			``, `,"logprobs":3`, `,"prompt_logprobs":null`, `,"echo":true`, `,"echo":true,"logprobs":null`, `,"echo":false,"logprobs":3`,
			`,"echo":"no","logprobs":3`, `,"echo":null,"logprobs":3`, `,"max_tokens":1`, `,"max_tokens":null`,
		}, ""},
		{openai.Completions, completion, reasonPrompt, []string{
			`,"prompt_logprobs":0`, `,"prompt_logprobs":-1`, `,"echo":true,"logprobs":0`, `,"echo":1,"logprobs":"3"`,
		}, ""},
		{openai.Completions, completion, reasonChoices, []string{`,"n":2`}, ""},
		{openai.Completions, completion, reasonPromptOnly, []string{`,"max_tokens":0,"echo":true,"logprobs":1`}, ""},
		{openai.Chat, chat, "", []string{`,"logprobs":true,"top_logprobs":2`, `,"echo":false,"logprobs":true,"top_logprobs":2`}, ""},
		{openai.Chat, chat, reasonPrompt, []string{`,"prompt_logprobs":1`, `,"echo":true`, `,"echo":"on"`}, ""}, // vLLM reads that as true
		// What SGLang ignores is no reason (cmd/gateway/e2e/conformance/testdata/sglang.json, chat echo and prompt_logprobs).
		{openai.Chat, chat, "", []string{`,"prompt_logprobs":1`, `,"echo":true`}, "sglang"},
		{openai.Completions, completion, "", []string{`,"prompt_logprobs":1`, `,"echo":true`}, "sglang"},
		{openai.Completions, completion, reasonPrompt, []string{`,"echo":true,"logprobs":1`}, "sglang"},
	} {
		for _, fields := range c.fields {
			r := requestOf(Call{Request: scanned(t, c.endpoint, c.head+fields+"}")}, "x")
			r.card = models.Card{ContextTokens: 100, Engine: c.engine}
			assert.Equal(t, c.want, r.oneLeg(), c.head+fields)
			bounded := r.Call.Request.PromptOnly || r.Call.Request.MaxTokens == 1
			assert.Equal(t, bounded, r.longestAnswer() == 1, c.head+fields)
		}
	}
}

// Of a prompt that is cached whole the last token's block is computed: predicted is ISL - 1, rounded down to a block.
func TestTheLastTokenIsComputed(t *testing.T) {
	for _, c := range []struct{ isl, blocks, want int }{
		{64, 2, 32}, {65, 2, 64}, {63, 2, 32}, {64, 1, 32}, {32, 1, 0}, {1, 0, 0}, {0, 0, 0}, {10, 3, 0},
	} {
		r := &request{Record: Record{ISL: c.isl}}
		assert.Equal(t, c.want, r.reusable(c.blocks, 32), "%d blocks of 32 held of a prompt of %d tokens", c.blocks, c.isl)
	}
}
