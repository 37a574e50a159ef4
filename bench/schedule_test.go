package main

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSchedule(t *testing.T) {
	r := rate{500, 20 * time.Second}
	times := schedule(r, 7, 1)
	require.True(t, slices.IsSorted(times) && times[0] >= 0 && times[len(times)-1] < r.For,
		"%d times from %v to %v, want them in order and within %v", len(times), times[0], times[len(times)-1], r.For)
	// A Poisson process: the rate times the time, give or take a few standard deviations.
	want := r.PerSecond * r.For.Seconds()
	if n := float64(len(times)); math.Abs(n-want) > 4*math.Sqrt(want) {
		t.Errorf("%v arrivals, want about %v", n, want)
	}
	assert.True(t, slices.Equal(times, schedule(r, 7, 1)), "the same seed and round make other arrivals")
	assert.True(t, !slices.Equal(times, schedule(r, 8, 1)) && !slices.Equal(times, schedule(r, 7, 2)),
		"another seed or round makes the same arrivals")
}
