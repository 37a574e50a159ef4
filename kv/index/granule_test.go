package index

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestGranules walks along a text of 2 million blocks: granules follow on one another without a gap, none is longer
// than 1/32 of what lies before it, and both functions agree on where they end.
func TestGranules(t *testing.T) {
	n := 0
	for end := 0; end < 2<<20; n++ {
		next := GranuleBlocks(n + 1)
		length := next - end
		require.True(t, length >= 1 && length <= max(1, end/perOctave), "granule %d has %d blocks, after %d", n, length, end)
		for _, blocks := range []int{end, next - 1} {
			require.Equal(t, n, GranulesWithin(blocks), "granules within %d blocks", blocks)
		}
		end = next
	}
	assert.LessOrEqual(t, n, 600, "granules")
}

// TestAppend compares the chain of a prompt's granules with that of its longer ones, of which it is the beginning.
func TestAppend(t *testing.T) {
	hashes := make([]uint64, 5000)
	for i := range hashes {
		hashes[i] = uint64(i + 1) // of which each is how many blocks it names
	}
	all := AppendGranules(nil, hashes)
	for _, n := range []int{0, 1, 63, 64, 65, 66, 200, 4999} {
		got := AppendGranules(nil, hashes[:n])
		assert.True(t, len(got) == GranulesWithin(n) && slices.Equal(got, all[:len(got)]), "%d blocks: %v", n, got)
		for i, end := range got {
			assert.Equal(t, uint64(GranuleBlocks(i+1)), end, "%d blocks: granule %d ends with block", n, i)
		}
	}
}
