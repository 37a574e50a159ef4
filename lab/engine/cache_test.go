package engine

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestEvictionTakesTheLongestUnusedLeaf(t *testing.T) {
	cfg := smallConfig()
	cfg.TotalKVBlocks, cfg.ContextLength = 10, 40
	c := newTestCore(t, cfg)
	now := epoch
	run := func(id string, p []uint32) (events []Event) {
		mustAdd(t, c, Request{ID: id, Prompt: p, MaxTokens: 1})
		_, events, now = driven(t, c, now)
		return events
	}
	hashes := func(p []uint32) []uint64 { return BlockHashes(nil, p, 4, 0) }
	trunk := prompt(1, 8)
	left, right := append(slices.Clone(trunk), prompt(2, 8)...), append(slices.Clone(trunk), prompt(3, 8)...)
	run("left", left)          // trunk 2, left 2
	run("right", right)        // right 2
	run("other", prompt(4, 8)) // 2: eight cached, two free
	run("left again", left)
	events := run("new", prompt(5, 20)) // needs 5, 2 are free: three leaves go
	var removed []uint64
	for _, e := range events {
		if e.Kind == Removed {
			removed = append(removed, e.Hashes...)
		}
	}
	want := []uint64{hashes(right)[3], hashes(right)[2], hashes(prompt(4, 8))[1]}
	assert.True(t, slices.Equal(removed, want),
		"removed %x, want right's two blocks from its end, then other's last: %x", removed, want)
}
