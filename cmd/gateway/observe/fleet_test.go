package observe

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pools"
)

// Lost workers stand in their pools, those that are configured as down, with the time; one of no known pool in a pool of its own.
func TestLostWorkersAreReported(t *testing.T) {
	now := time.Now()
	got := addLost([]PoolReport{{Model: "m", Role: pools.Decode, Workers: []WorkerReport{{ID: "here", State: "up"}}}}, []pools.Lost{
		{Worker: &pools.Worker{ID: "gone", Model: "m", Role: pools.Decode}, Since: now.Add(-time.Minute)},
		{Worker: &pools.Worker{ID: "never", Role: pools.Both}, Since: now, Configured: true},
	}, now)
	require.True(t, len(got) == 2 && len(got[0].Workers) == 2 && len(got[1].Workers) == 1, "%+v", got)
	if w := got[0].Workers[1]; w.ID != "gone" || w.State != "lost" || *w.LostFor != 60 || w.Circuit != "" {
		t.Errorf("%+v", w)
	}
	if w := got[1].Workers[0]; w.ID != "never" || w.State != "down" || *w.LostFor != 0 {
		t.Errorf("%+v", w)
	}
}
