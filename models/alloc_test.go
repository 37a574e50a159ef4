//go:build !race

package models

import (
	"strings"
	"testing"

	"github.com/tandem-pd/tandem/internal/openai"
)

// TestTokenizingAllocatesTheTokens: a long prompt costs its decoded text and its
// token ids, and no buffers that were too short for them.
func TestTokenizingAllocatesTheTokens(t *testing.T) {
	sim, text := Sim(1<<20), strings.Repeat("hello world ", 1<<16)
	req, card, p := scanned(t, openai.Completions, `{"model":"m","prompt":"`+text+`"}`), Card{}, Prompt{}
	cost := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if p, _, _ = card.Tokens(req, sim); p.IDs == nil {
				b.Fatal("no tokens")
			}
		}
	}).AllocedBytesPerOp()
	if needed := int64(len(text) + 4*len(p.IDs)); len(p.IDs) == 0 || cost > needed*5/4 {
		t.Errorf("%d bytes allocated for a text of %d bytes and %d tokens", cost, len(text), len(p.IDs))
	}
}
