package handoff

import (
	"math"
	"slices"
	"testing"

	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/tokens"
)

// What is only estimated never keeps a request from a worker that could take it.
func TestEstimatesStayWithinTheWorkers(t *testing.T) {
	for _, tt := range []struct {
		card card
		want int
	}{
		{card{blockSize: 16}, math.MaxInt},
		{card{blockSize: 16, contextTokens: 4096}, 4095},
		{card{blockSize: 16, kvTokens: 1600}, 1600},
		{card{blockSize: 16, contextTokens: 4096, kvTokens: 160_000}, 4095},
		{card{blockSize: 16, contextTokens: 1}, 1},
	} {
		if got := tt.card.longestPrompt(); got != tt.want {
			t.Errorf("%+v: %d, want %d", tt.card, got, tt.want)
		}
	}
}

// What the engine cuts off a prompt is neither booked nor hashed.
func TestTruncatedPrompts(t *testing.T) {
	const words = `"One two three four five six seven eight nine ten"`
	sim := tokens.Sim()
	all := sim.Encode(nil, words[1:len(words)-1])
	n := len(all)
	if n < 8 {
		t.Fatalf("%d tokens", n)
	}
	for _, tt := range []struct {
		more string
		want []uint32
	}{
		{``, all},
		{`,"truncate_prompt_tokens":null`, all},
		{`,"truncate_prompt_tokens":4`, all[n-4:]},
		{`,"truncate_prompt_tokens":4,"truncation_side":"left"`, all[n-4:]},
		{`,"truncate_prompt_tokens":4,"truncation_side":"right"`, all[:4]},
		{`,"truncate_prompt_tokens":4000`, all},
		{`,"truncate_prompt_tokens":-1`, all},
		{`,"max_tokens":95,"truncate_prompt_tokens":-1`, all[n-5:]},
	} {
		for _, prompt := range []string{words, jsonIDs(all)} {
			r := newRequest(Call{Request: scanned(t, openai.Completions, `{"model":"m","prompt":`+prompt+tt.more+`}`)}, "x")
			r.card = card{blockSize: 2, contextTokens: 100}
			r.kept = r.card.kept(r.call.Request)
			if err := r.tokenize(tokens.NewCache(sim, 1<<20)); err != nil || !slices.Equal(r.ids, tt.want) {
				t.Errorf("%s of %.10s: %v, %v; want %v", tt.more, prompt, r.ids, err, tt.want)
			}
		}
	}
}

func jsonIDs(ids []uint32) string { return string(openai.AppendIDs(nil, ids)) }

// A prompt that would take long to read, and is cut in any case, is left to the
// engine.
func TestTruncatedPromptsUnseen(t *testing.T) {
	long := make([]byte, 1<<20)
	for i := range long {
		long[i] = 'a'
	}
	r := newRequest(Call{Request: scanned(t, openai.Completions, `{"model":"m","truncate_prompt_tokens":8,"prompt":"`+string(long)+`"}`)}, "x")
	r.card = card{blockSize: 2, contextTokens: 100}
	r.kept = r.card.kept(r.call.Request)
	if err := r.tokenize(tokens.NewCache(tokens.Sim(), 1<<20)); err != nil || r.ids != nil {
		t.Errorf("%d ids, %v", len(r.ids), err)
	}
	r.kept = math.MaxInt
	if err := r.tokenize(tokens.NewCache(tokens.Sim(), 1<<20)); err == nil {
		t.Error("a prompt too long is not refused")
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
		r := newRequest(Call{Request: scanned(t, openai.Completions, body)}, "x")
		r.card = card{contextTokens: 100}
		if got := r.oneLeg(); got != want {
			t.Errorf("%s: %q, want %q", body, got, want)
		}
		bounded := r.call.Request.PromptOnly || r.call.Request.MaxTokens == 1
		if longest := r.longestAnswer(); (longest == 1) != bounded {
			t.Errorf("%s: an answer of up to %d tokens", body, longest)
		}
	}
}
