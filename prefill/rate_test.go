package prefill

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestTimeoutFollowsTheObservedRate(t *testing.T) {
	var r Rate
	assert.Equal(t, 30*time.Second, r.Limit(1<<20), "of an unknown rate")
	for range 50 {
		r.Observe(20_000, time.Second)
	}
	assert.InDelta(t, 20_000, r.PerSecond(), 1)
	for tokens, want := range map[int]time.Duration{1_000: 30 * time.Second, 120_000: 30 * time.Second, 240_000: time.Minute,
		2_000_000: 500 * time.Second} {
		assert.Equal(t, want, r.Limit(tokens).Round(time.Millisecond), "%d tokens", tokens)
	}
	r = Rate{}
	r.Observe(1, time.Hour)
	assert.Equal(t, 24*time.Hour, r.Limit(1<<40), "a speed near zero does not make a limit that wraps around")
}

// A long prompt must outweigh a crowd of short ones, whose time is overhead.
func TestRateWeighsByLength(t *testing.T) {
	var r Rate
	r.Observe(100_000, 5*time.Second)
	for range 3 {
		r.Observe(16, 15*time.Millisecond)
	}
	assert.Greater(t, r.PerSecond(), 19_000.)
	r.Observe(0, time.Second)
	r.Observe(5, 0)
	assert.Greater(t, r.PerSecond(), 19_000., "after answers without tokens or time")
}
