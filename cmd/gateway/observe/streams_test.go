package observe

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The buckets have room for every gap.
func TestGapsHaveEveryBucket(t *testing.T) {
	require.Equal(t, len(gapBuckets)+1, len(Gaps{}.counts), "counts for %d buckets and what is above them", len(gapBuckets))
	var g Gaps
	if !math.IsNaN(g.Quantile(.5)) {
		t.Errorf("the median of nothing is %v", g.Quantile(.5))
	}
	g.counts[5] = 10 // 15 to 20 ms
	if got := g.Quantile(.5); math.Abs(got-.0175) > 1e-9 {
		t.Errorf("the median is %v, want 17.5 ms", got)
	}
	g.counts[16] = 1000
	assert.EqualValues(t, 5, g.Quantile(.99), "above the greatest bound it, want that bound")
	if got := g.Plus(g).Minus(g); got != g {
		t.Errorf("twice less once is %v", got)
	}
}
