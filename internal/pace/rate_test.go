package pace

import (
	"testing"
	"time"
)

func TestTimeoutFollowsTheObservedRate(t *testing.T) {
	var r Rate
	if got := r.Limit(1 << 20); got != 30*time.Second {
		t.Errorf("unknown rate: %v, want 30s", got)
	}
	for range 50 {
		r.Observe(20_000, time.Second)
	}
	if got := r.PerSecond(); got < 19_999 || got > 20_001 {
		t.Errorf("rate %v, want 20,000 tokens/s", got)
	}
	for _, c := range []struct {
		tokens int
		want   time.Duration
	}{
		{1_000, 30 * time.Second},
		{120_000, 30 * time.Second},
		{240_000, 60 * time.Second},
		{2_000_000, 500 * time.Second},
	} {
		if got := r.Limit(c.tokens).Round(time.Millisecond); got != c.want {
			t.Errorf("%d tokens: %v, want %v", c.tokens, got, c.want)
		}
	}
}

// A long prompt must outweigh a crowd of short ones, whose time is overhead.
func TestRateWeighsByLength(t *testing.T) {
	var r Rate
	r.Observe(100_000, 5*time.Second)
	for range 3 {
		r.Observe(16, 15*time.Millisecond)
	}
	if got := r.PerSecond(); got < 19_000 {
		t.Errorf("rate fell to %.0f tokens/s", got)
	}
	r.Observe(0, time.Second)
	r.Observe(5, 0)
	if got := r.PerSecond(); got < 19_000 {
		t.Errorf("an answer without tokens or time moved the rate to %.0f", got)
	}
}

// A speed near zero does not make a limit that wraps around.
func TestTimeoutDoesNotOverflow(t *testing.T) {
	var r Rate
	r.Observe(1, time.Hour)
	if got := r.Limit(1 << 40); got != Longest {
		t.Errorf("the limit is %v, want %v", got, Longest)
	}
}
