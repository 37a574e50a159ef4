package models

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/tokens"
)

// What is only estimated never keeps a request from a worker that could take it.
func TestEstimatesStayWithinTheWorkers(t *testing.T) {
	for _, tt := range []struct {
		card Card
		want int
	}{
		{Card{BlockSize: 16}, math.MaxInt},
		{Card{BlockSize: 16, ContextTokens: 4096}, 4095},
		{Card{BlockSize: 16, kvTokens: 1600}, 1600},
		{Card{BlockSize: 16, ContextTokens: 4096, kvTokens: 160_000}, 4095},
		{Card{BlockSize: 16, ContextTokens: 1}, 1},
	} {
		assert.Equal(t, tt.want, tt.card.longestPrompt(), "%+v", tt.card)
	}
}

// What the engine cuts off a prompt is neither booked nor hashed.
func TestTruncatedPrompts(t *testing.T) {
	const words = `"One two three four five six seven eight nine ten"`
	sim := tokens.Sim()
	all := sim.Encode(nil, words[1:len(words)-1])
	n := len(all)
	require.GreaterOrEqual(t, n, 8)
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
			req := scanned(t, openai.Completions, `{"model":"m","prompt":`+prompt+tt.more+`}`)
			card := Card{BlockSize: 2, ContextTokens: 100}
			p, _, err := card.Tokens(req, Sim(1<<20))
			assert.NoError(t, err)
			assert.Equal(t, tt.want, p.IDs, "%s of %.10s", tt.more, prompt)
		}
	}
}

func jsonIDs(ids []uint32) string { return string(openai.AppendIDs(nil, ids)) }

// A prompt that would take long to read, and is cut in any case, is left to the
// engine.
func TestTruncatedPromptsUnseen(t *testing.T) {
	long := strings.Repeat("a", 1<<20)
	card := Card{BlockSize: 2, ContextTokens: 100}
	tokenize := func(more string) ([]uint32, error) {
		req := scanned(t, openai.Completions, `{"model":"m",`+more+`"prompt":"`+long+`"}`)
		p, _, err := card.Tokens(req, Sim(1<<20))
		return p.IDs, err
	}
	ids, err := tokenize(`"truncate_prompt_tokens":8,`)
	assert.NoError(t, err)
	assert.Nil(t, ids)
	_, err = tokenize("")
	assert.Error(t, err, "a prompt too long")
}
