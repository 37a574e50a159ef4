package handoff

import (
	"testing"

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
		req, err := openai.Limits{}.Scan(c.endpoint, []byte(body))
		if err != nil {
			t.Fatal(err)
		}
		if got := requestOf(Call{Request: req}, "x").oneLeg(); got != c.want {
			t.Errorf("%s: %q, want %q", body, got, c.want)
		}
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
		if got := r.oneLeg(); got != want {
			t.Errorf("%s: %q, want %q", body, got, want)
		}
		bounded := r.Call.Request.PromptOnly || r.Call.Request.MaxTokens == 1
		if longest := r.longestAnswer(); (longest == 1) != bounded {
			t.Errorf("%s: an answer of up to %d tokens", body, longest)
		}
	}
}

// requestOf is a request as a flow begins it.
func requestOf(call Call, id string) *request {
	return &request{Record: Record{Call: call, ID: id}}
}

// Of a prompt that is cached whole the last token's block is computed: predicted is ISL - 1, rounded down to a block.
func TestTheLastTokenIsComputed(t *testing.T) {
	for _, c := range []struct{ isl, blocks, want int }{
		{64, 2, 32}, {65, 2, 64}, {63, 2, 32}, {64, 1, 32}, {32, 1, 0}, {1, 0, 0}, {0, 0, 0}, {10, 3, 0},
	} {
		r := &request{Record: Record{ISL: c.isl}}
		if got := r.reusable(c.blocks, 32); got != c.want {
			t.Errorf("%d blocks of 32 held of a prompt of %d tokens: %d, want %d", c.blocks, c.isl, got, c.want)
		}
	}
}
