package observe

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Each bucket takes its own exemplars, so that a rare slow request shows among many fast ones, and few of one bucket.
func TestExemplarsByBucket(t *testing.T) {
	require.Equal(t, len(latencyBuckets)+1, len(new(exemplified).next), "places for N buckets")
	var e exemplified
	for _, step := range []struct {
		seconds float64
		at      time.Duration
		want    bool
	}{
		{.004, 0, true}, {.0045, 99 * time.Millisecond, false}, {3, 99 * time.Millisecond, true}, {1000, 99 * time.Millisecond, true},
		{.004, 100 * time.Millisecond, true}, {.004, 199 * time.Millisecond, false}, {.0051, 199 * time.Millisecond, true},
		{.005, 199 * time.Millisecond, false},
	} {
		assert.Equal(t, step.want, e.due(step.seconds, step.at), "%v s at %v", step.seconds, step.at)
	}
}
