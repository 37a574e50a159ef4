//go:build !race

package handoff

import (
	"math"
	"strings"
	"testing"

	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/tokens"
)

// TestTokenizingAllocatesTheTokens: a long prompt costs its decoded text and its
// token ids, and no buffers that were too short for them.
func TestTokenizingAllocatesTheTokens(t *testing.T) {
	tokenizer, text := tokens.NewCache(tokens.Sim(), 1<<20), strings.Repeat("hello world ", 1<<16)
	r := newRequest(Call{Request: scan(t, openai.Completions, `{"model":"m","prompt":"`+text+`"}`)}, "x")
	r.kept = math.MaxInt
	cost := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := r.tokenize(tokenizer); err != nil {
				b.Fatal(err)
			}
		}
	}).AllocedBytesPerOp()
	if needed := int64(len(text) + 4*len(r.ids)); len(r.ids) == 0 || cost > needed*5/4 {
		t.Errorf("%d bytes allocated for a text of %d bytes and %d tokens", cost, len(text), len(r.ids))
	}
}
