package replay

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/tokens"
)

func prompter(t testing.TB, seed uint64) *Prompter {
	t.Helper()
	p, err := NewPrompter(tokens.Sim(), seed)
	require.NoError(t, err)
	return p
}

func common(a, b []uint32) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

func TestPromptsShareExactlyTheSharedSpans(t *testing.T) {
	p := prompter(t, 1)
	base := []Span{{1, 512}, {2, 512}, {3, 100}}
	tests := []struct {
		name  string
		spans []Span
		want  int
	}{
		{"all", base, 1124},
		{"two blocks", []Span{{1, 512}, {2, 512}, {4, 100}}, 1024},
		{"a longer last block", []Span{{1, 512}, {2, 512}, {3, 512}}, 1124},
		{"one block", []Span{{1, 512}, {3, 512}}, 512},
		{"another order", []Span{{2, 512}, {1, 512}}, 0},
		{"an own id is not the trace's", []Span{{ownSpans | 1, 512}}, 0},
	}
	a := p.IDs(nil, base)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			assert.Equal(t, tt.want, common(a, p.IDs(nil, tt.spans)), "tokens in common")
		})
	}
	assert.Zero(t, common(a, prompter(t, 2).IDs(nil, base)), "another seed tokens in common")
	assert.True(t, slices.Equal(a, prompter(t, 1).IDs(nil, base)), "the same seed made another prompt")
}

// A prompt of text is as many tokens as one of ids, and shares as many.
func TestTextPromptsAreAsLongAndAsShared(t *testing.T) {
	p, tokenizer := prompter(t, 1), tokens.Sim()
	encode := func(spans []Span) []uint32 { return tokenizer.EncodeText(nil, string(p.AppendText(nil, spans))) }
	a, b := encode([]Span{{1, 512}, {2, 100}}), encode([]Span{{1, 512}, {3, 77}})
	if len(a) != 612 || len(b) != 589 || common(a, b) != 512 {
		t.Errorf("%d and %d tokens, %d in common; want 612, 589, 512", len(a), len(b), common(a, b))
	}
}

func TestPromptsOfIDs(t *testing.T) {
	p := prompter(t, 1)
	spans := []Span{{1, 3000}, {2, 3000}}
	want := p.IDs(nil, spans)
	var got []uint32
	require.NoError(t, json.Unmarshal(p.AppendIDs(nil, spans), &got))
	assert.Equal(t, want, got, "the JSON array is another")
	distinct := map[uint32]bool{}
	for _, id := range want {
		distinct[id] = true
	}
	assert.Less(t, int(slices.Max(want)), tokens.Sim().VocabSize())
	for _, special := range []string{"<|endoftext|>", "<|im_start|>", "<|im_end|>"} {
		id, ok := tokens.Sim().ID(special)
		assert.True(t, ok && !distinct[id], special)
	}
	assert.GreaterOrEqual(t, len(distinct), 2500, "of some 4,000 tokens in 6,000 draws")
	assert.Equal(t, "[]", string(p.AppendIDs(nil, nil)), "an empty prompt")
}
