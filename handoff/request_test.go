package handoff

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/models"
)

// What makes vLLM compute the probabilities of the prompt's own tokens takes one
// leg, and nothing else does.
func TestWhatTakesOneLeg(t *testing.T) {
	const completion, chat = openai.Completions, openai.Chat
	for _, c := range []struct {
		endpoint openai.Endpoint
		fields   string
		want     string
	}{
		{completion, ``, ""},
		{completion, `,"n":2`, reasonChoices},
		{completion, `,"logprobs":3`, ""},
		{completion, `,"prompt_logprobs":0`, reasonPrompt},
		{completion, `,"prompt_logprobs":-1`, reasonPrompt},
		{completion, `,"prompt_logprobs":null`, ""},
		{completion, `,"echo":true`, ""},
		{completion, `,"echo":true,"logprobs":0`, reasonPrompt},
		{completion, `,"echo":true,"logprobs":null`, ""},
		{completion, `,"echo":false,"logprobs":3`, ""},
		{completion, `,"echo":"no","logprobs":3`, ""},
		{completion, `,"echo":1,"logprobs":"3"`, reasonPrompt},
		{completion, `,"echo":null,"logprobs":3`, ""},
		{chat, `,"logprobs":true,"top_logprobs":2`, ""},
		{chat, `,"prompt_logprobs":1`, reasonPrompt},
		{chat, `,"echo":true`, reasonPrompt},
		{chat, `,"echo":"on"`, reasonPrompt}, // vLLM reads that as true
		{chat, `,"echo":false,"logprobs":true,"top_logprobs":2`, ""},
	} {
		body := `{"model":"m","prompt":"hi"` + c.fields + `}`
		if c.endpoint == chat {
			body = `{"model":"m","messages":[{"role":"user","content":"hi"}]` + c.fields + `}`
		}
		assert.Equal(t, c.want, requestOf(Call{Request: scanned(t, c.endpoint, body)}, "x").oneLeg(), body)
	}
}

// What generates nothing has nothing to hand over.
func TestPromptOnlyTakesOneLeg(t *testing.T) {
	for body, want := range map[string]string{
		`{"model":"m","prompt":"x","max_tokens":0,"echo":true,"logprobs":1}`: reasonPromptOnly,
		`{"model":"m","prompt":"x","max_tokens":1}`:                          "",
		`{"model":"m","prompt":"x","max_tokens":null}`:                       "",
		`{"model":"m","prompt":"x"}`:                                         "",
	} {
		r := requestOf(Call{Request: scanned(t, openai.Completions, body)}, "x")
		r.card = models.Card{ContextTokens: 100}
		assert.Equal(t, want, r.oneLeg(), body)
		bounded := r.Call.Request.PromptOnly || r.Call.Request.MaxTokens == 1
		assert.Equal(t, bounded, r.longestAnswer() == 1, body)
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
