package engine

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestHybridAsRecorded sends the prompts of ../shared/vectors/kvevents-vllm-0.32/hybrid-sliding-first.json, a model of
// Gemma 3's form under vLLM 0.32, and wants the cached tokens of that engine's answers.
func TestHybridAsRecorded(t *testing.T) {
	c := newTestCore(t, Config{Engine: "vllm", BlockSize: 32, SlidingWindow: 128, TotalKVBlocks: 1200, ContextLength: 2048})
	s := prompt(1, 640)
	a := append(slices.Clone(s), prompt(2, 50)...)
	with := func(p []uint32, seed uint32, n int) []uint32 { return append(slices.Clone(p), prompt(seed, n)...) }
	turn := [][]uint32{with(a, 6, 90)}
	for i := range uint32(3) {
		turn = append(turn, with(turn[i], 7+i, 90))
	}
	now, windows := epoch, 0
	var outs []observed
	var events []Event
	for i, r := range []struct {
		prompt         []uint32
		answer, cached int
	}{
		{a, 8, 0}, {a, 8, 672}, {a, 8, 672}, {with(s, 3, 70), 8, 0}, {with(s, 4, 70), 8, 640}, {with(s, 5, 70), 8, 640}, {with(s, 9, 70), 8, 640},
		{turn[0], 40, 672}, {turn[1], 40, 768}, {turn[2], 40, 864}, {turn[3], 40, 928},
	} {
		mustAdd(t, c, Request{ID: "r", Prompt: r.prompt, MaxTokens: r.answer, IgnoreEOS: true})
		outs, events, now = driven(t, c, now)
		for _, o := range outs {
			require.Equal(t, r.cached, o.Cached, "request %d of %d tokens cached", i, len(r.prompt))
		}
		for _, e := range events {
			if e.Window > 0 {
				windows++
			}
			if e.Kind == Stored && e.Group == 1 != (e.Window == 0) || e.Window == 0 && len(e.Hashes)*32 != len(e.TokenIDs) {
				t.Errorf("request %d: %+v", i, e)
			}
		}
	}
	assert.NotZero(t, windows, "no event of the window")
}

// TestATwinIsEvictedByItself is ../shared/vectors/kvevents-vllm-0.32/stored-twice-evicted-once: the last block of a
// prompt that is cached whole is computed and stored again, and a removal comes for each of its copies.
func TestATwinIsEvictedByItself(t *testing.T) {
	cfg := smallConfig()
	cfg.Engine, cfg.TotalKVBlocks, cfg.ContextLength = "vllm", 12, 40
	c := newTestCore(t, cfg)
	now := epoch
	var events []Event
	run := func(p []uint32) (cached int) {
		mustAdd(t, c, Request{ID: "r", Prompt: p, MaxTokens: 1})
		outs, more, end := driven(t, c, now)
		events, now = append(events, more...), end
		return outs[0].Cached
	}
	p := prompt(1, 8)
	last := BlockHashes(nil, p, 4, 0)[1]
	longer := append(slices.Clone(p), prompt(2, 4)...)
	run(p)
	assert.Equal(t, 4, run(p), "tokens cached, want 4: the last block is computed again")
	for i := range uint32(8) {
		run(prompt(10+i, 12))
		if got := run(longer); i > 0 && got != 8 {
			t.Errorf("%d tokens of the prompt in use are cached, want 8", got)
		}
	}
	stored, removed := 0, 0
	for _, e := range events {
		if n := len(e.Hashes); slices.Contains(e.Hashes, last) && n > 0 {
			if e.Kind == Stored {
				stored++
			} else {
				removed++
			}
		}
	}
	assert.True(t, stored == 2 && removed == 1,
		"the last block was stored %d times and removed %d times, want 2 and 1", stored, removed)
}
