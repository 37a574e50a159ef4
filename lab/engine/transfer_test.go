package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// prefilled is a core that has just finished a prefill of n tokens for a decode engine.
func prefilled(t *testing.T, n int) (*Core, *Pinned, time.Time) {
	t.Helper()
	c := newTestCore(t, Config{})
	mustAdd(t, c, Request{ID: "p", Prompt: prompt(1, n), MaxTokens: 1, IgnoreEOS: true, Pin: true})
	end := epoch
	r := c.Step(end)
	for len(r.Outputs) == 0 {
		end = r.Next
		r = c.Step(end)
	}
	require.NotNil(t, r.Outputs[0].Pinned, "the prefill ended with %+v", r.Outputs)
	return c, r.Outputs[0].Pinned, end
}

func TestFinishedPrefillStaysPinnedForItsLease(t *testing.T) {
	for _, tc := range []struct {
		name  string
		beats []time.Duration // after the prefill's end
		held  time.Duration
	}{
		{"no heartbeat", nil, 30 * time.Second},
		{"an early one changes nothing", []time.Duration{5 * time.Second}, 30 * time.Second},
		{"a later one adds", []time.Duration{25 * time.Second}, 45 * time.Second},
		{"many add no more", []time.Duration{25 * time.Second, 25 * time.Second, 25 * time.Second}, 45 * time.Second},
		{"one after another", []time.Duration{25 * time.Second, 40 * time.Second}, 60 * time.Second},
	} {
		c, p, end := prefilled(t, 100)
		if want := blocksFor(100, 16); c.cache.active() != want || len(p.BlockIDs) != want || p.Tokens != 100 {
			t.Fatalf("%d blocks active, %d named for %d tokens", c.cache.active(), len(p.BlockIDs), p.Tokens)
		}
		for _, b := range tc.beats {
			assert.True(t, c.Heartbeat("p", end.Add(b)), "%s: no lease after %v", tc.name, b)
		}
		c.Step(end.Add(tc.held - 1))
		assert.NotZero(t, c.cache.active(), "%s: freed before %v", tc.name, tc.held)
		r := c.Step(end.Add(tc.held))
		assert.True(t, c.cache.active() == 0 && r.Next.IsZero() && c.Stats().LapsedLeases == 1,
			"%s: %d blocks active after %v", tc.name, c.cache.active(), tc.held)
	}
}

func TestNICCarriesOneTransferAtATime(t *testing.T) {
	c, p, now := prefilled(t, 12_000)
	one := c.transferTime(12_000)
	assert.Equal(t, time.Millisecond+62_914_560*time.Nanosecond, one, "12,000 tokens take")
	r := Remote{RequestID: "p", BlockIDs: [][]int32{p.BlockIDs}}
	for i := range 3 {
		wait, err := c.Fetch(r, 12_000, 12_000, now)
		assert.True(t, err == nil && wait == time.Duration(i)*one,
			"transfer %d waits for %v, want %v (%v)", i, wait, time.Duration(i)*one, err)
	}
	if wait, _ := c.Fetch(r, 12_000, 12_000, now.Add(time.Minute)); wait != 0 {
		t.Errorf("an idle NIC makes wait for %v", wait)
	}
}
