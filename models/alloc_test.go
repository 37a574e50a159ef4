//go:build !race

package models

import (
	"math"
	"runtime"
	"strings"
	"testing"

	"github.com/tandem-pd/tandem/internal/openai"
)

// allocated is how many bytes run allocates, those that are collected meanwhile as well.
func allocated(run func()) int {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	run()
	runtime.ReadMemStats(&after)
	return int(after.TotalAlloc - before.TotalAlloc)
}

// TestTokenizingAllocatesTheTokens: a long prompt costs its decoded text and its
// token ids, and no buffers that were too short for them.
func TestTokenizingAllocatesTheTokens(t *testing.T) {
	sim, text := Sim(1<<20), strings.Repeat("hello world ", 1<<14)
	req, card, p := scanned(t, openai.Completions, `{"model":"m","prompt":"`+text+`"}`), Card{}, Prompt{}
	cost := math.MaxInt
	for range 10 { // the first makes buffers that the others use again
		cost = min(cost, allocated(func() { p, _, _ = card.Tokens(req, sim) }))
	}
	if needed := len(text) + 4*len(p.IDs); len(p.IDs) == 0 || cost > needed*5/4 {
		t.Errorf("%d bytes allocated for a text of %d bytes and %d tokens", cost, len(text), len(p.IDs))
	}
}

// TestEachSaltHasItsOwnMemory has two tenants send the same text, as a completion and as a chat, short enough that its parts
// alone are remembered, and long: what one has sent the other does not find in any memory, and finds its own.
func TestEachSaltHasItsOwnMemory(t *testing.T) {
	text := strings.Repeat("some words. ", minWhole/16)
	for name, l := range map[string]*Language{"sim": Sim(8 << 20), "qwen": qwen(t)} {
		for _, c := range []struct {
			ep   openai.Endpoint
			body string
		}{
			{openai.Completions, `{"model":"m","prompt":"` + text + `"}`},
			{openai.Completions, `{"model":"m","add_special_tokens":false,"prompt":"b` + text + `"}`},
			{openai.Chat, `{"model":"m","messages":[{"role":"user","content":"c` + text + `"}]}`},
			{openai.Chat, `{"model":"m","add_special_tokens":true,"messages":[{"role":"system","content":"d` + text + `"},{"role":"user","content":"d"}]}`},
		} {
			for _, long := range []string{"", strings.Repeat("x y ", minWhole/2)} {
				req := scanned(t, c.ep, strings.Replace(c.body, "some", long+"some", 1))
				made := func(tenants ...byte) int { // what tokenizing for the last of two costs
					turn := 0
					return int(testing.AllocsPerRun(1, func() {
						req.CacheSalt = ""
						req.Isolate([32]byte{tenants[turn]})
						turn++
						if _, source, err := (&Card{Engine: "vllm"}).Tokens(req, l); source != FromOwn || err != nil {
							t.Fatal(source, err)
						}
					}))
				}
				cold, found, again := made(1, 2), made(1, 1), made(2, 2)
				if found != again || found >= cold {
					t.Errorf("%s: %.60s, %d bytes: %d allocations for what another has sent, %d and %d for one's own", name, c.body, len(req.Raw), cold, found, again)
				}
			}
		}
	}
}
