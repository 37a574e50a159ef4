package index

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAdviceChangesNothing advises on arrays of many sizes that begin anywhere in a page: what is in them and around
// them stays.
func TestAdviceChangesNothing(t *testing.T) {
	buffer := make([]uint64, 3<<20)
	for i := range buffer {
		buffer[i] = uint64(i)
	}
	for _, from := range []int{0, 1, 511, 1 << 18} {
		for _, n := range []int{0, 1, 1 << 18, 1<<19 - 1, 1 << 19, 1<<20 + 3, 2 << 20} {
			advise(buffer[from : from+n])
			join(buffer[from : from+n])
		}
	}
	for i, word := range buffer {
		require.Equal(t, uint64(i), word, "word %d", i)
	}
}
