package simulate

import (
	"cmp"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/lab/replay"
)

// A family has the rate, the lengths and the bursts that its plan names, and the same requests for the same seed.
func TestFamilies(t *testing.T) {
	w := WorkloadPlan{Families: []FamilyPlan{
		{Rate: 3, Duration: 30_000 * time.Second, Burst: 40, SharedTokens: 512, Input: Spread{1469, 7436}, Output: Spread{13, 251}},
	}}
	all := w.withFamilies(nil, 1)
	assert.Equal(t, w.withFamilies(nil, 1), all, "the same seed draws other requests")
	near := func(what string, got, want, by float64) {
		t.Helper()
		assert.LessOrEqual(t, math.Abs(got/want-1), by, "%s is %.3g, want %.3g", what, got, want)
	}
	near("the number", float64(len(all)), 90_000, .1)
	lengths := func(of func(r *replay.Request) int) (p50, p99 float64) {
		var n []int
		for i := range all {
			n = append(n, of(&all[i]))
		}
		slices.Sort(n)
		return float64(n[len(n)/2]), float64(n[len(n)*99/100])
	}
	p50, p99 := lengths(func(r *replay.Request) int { return r.InputTokens() - 512 })
	near("the median prompt", p50, 1469, .03)
	near("the 99th percentile of prompts", p99, 7436, .05)
	p50, p99 = lengths(func(r *replay.Request) int { return r.OutputTokens })
	near("the median answer", p50, 13, .1)
	near("the 99th percentile of answers", p99, 251, .1)
	counts := make([]float64, 3000)
	for i := range all {
		require.True(t, i <= 0 || all[i].At >= all[i-1].At, "they are out of order")
		counts[all[i].At/window]++
	}
	var sum, squares float64
	for _, n := range counts {
		sum, squares = sum+n, squares+n*n
	}
	mean := sum / float64(len(counts))
	near("variance over mean", (squares/float64(len(counts))-mean*mean)/mean, 40, .2)
}

// Families come between the requests of a trace, whose own requests stay as they are.
func TestFamiliesJoinATrace(t *testing.T) {
	base := []replay.Request{{At: time.Second, OutputTokens: 1}, {At: 2 * time.Second, OutputTokens: 2}}
	w := WorkloadPlan{Families: []FamilyPlan{{Rate: 5, Duration: 4 * time.Second, Input: Spread{10, 10}, Output: Spread{7, 7}}}}
	all := w.withFamilies(base, 3)
	var own []int
	for i, r := range all {
		assert.Equal(t, i, r.Index, "request N has the index")
		if r.OutputTokens != 7 {
			own = append(own, r.OutputTokens)
		}
	}
	if !slices.Equal(own, []int{1, 2}) || len(all) < 8 ||
		!slices.IsSortedFunc(all, func(a, b replay.Request) int { return cmp.Compare(a.At, b.At) }) {
		t.Errorf("of the trace %v, of %d in all", own, len(all))
	}
}
