package handoff

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Names follow from the seed and the order, never repeat, and without a seed
// are drawn.
func TestIDs(t *testing.T) {
	a, b, other := ids{seed: 7}, ids{seed: 7}, ids{seed: 8}
	seen := map[string]bool{}
	for range 10_000 {
		id := a.next()
		require.True(t, id == b.next() && id != other.next() && len(id) == 16 && !seen[id], "id %q", id)
		seen[id] = true
	}
	transfers := map[int64]bool{}
	for range 10_000 {
		id := transferID()
		require.True(t, id >= 1<<42 && !transfers[id], "transfer id %d", id)
		transfers[id] = true
	}
	var drawn, drawnToo ids
	assert.NotEqual(t, drawnToo.next(), drawn.next(), "drawn ids are the same")
}
