package observe

import (
	"testing"
	"time"
)

// Each bucket takes its own exemplars, so that a rare slow request shows among many fast ones, and few of one bucket.
func TestExemplarsByBucket(t *testing.T) {
	if n := len(new(exemplified).next); n != len(latencyBuckets)+1 {
		t.Fatalf("%d places for %d buckets", n, len(latencyBuckets)+1)
	}
	var e exemplified
	for _, step := range []struct {
		seconds float64
		at      time.Duration
		want    bool
	}{
		{.004, 0, true}, {.0045, 99 * time.Millisecond, false}, {3, 99 * time.Millisecond, true}, {1000, 99 * time.Millisecond, true},
		{.004, 100 * time.Millisecond, true}, {.004, 199 * time.Millisecond, false}, {.0051, 199 * time.Millisecond, true}, {.005, 199 * time.Millisecond, false},
	} {
		if got := e.due(step.seconds, step.at); got != step.want {
			t.Errorf("%v s at %v: %v", step.seconds, step.at, got)
		}
	}
}
