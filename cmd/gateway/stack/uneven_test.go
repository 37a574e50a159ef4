package stack

import (
	"testing"
	"time"

	"github.com/tandem-pd/tandem/router"
)

// How uneven a pool is follows from the bookings of the last minutes: not from those that happen to be open, nor from a few.
func TestUneven(t *testing.T) {
	now := time.Unix(1e9, 0)
	var u uneven
	for _, step := range []struct {
		name    string
		after   time.Duration
		counts  []uint64
		expects float64
	}{
		{"one booking", 0, []uint64{1, 0, 0, 0}, 0},
		{"too few", 10 * time.Second, []uint64{30, 5, 0, 0}, 0},
		{"even", 10 * time.Second, []uint64{1001, 1000, 1000, 1000}, 0},
		{"uneven", 10 * time.Second, []uint64{1101, 1000, 1000, 900}, 0.2},
		{"the next window has both", 40 * time.Second, []uint64{1101, 1000, 1000, 900}, 0.2},
		{"and the one after it this one", 61 * time.Second, []uint64{1201, 1100, 1100, 1000}, 0},
		{"a worker was forgotten", 10 * time.Second, []uint64{1301, 100, 1200, 1100}, 4.0 / 7},
	} {
		now = now.Add(step.after)
		loads := make([]router.WorkerLoad, len(step.counts))
		for i, n := range step.counts {
			loads[i] = router.WorkerLoad{Worker: string(rune('a' + i)), Booked: n}
		}
		if got := u.of(loads, now); got < step.expects-0.01 || got > step.expects+0.01 {
			t.Errorf("%s: %.3f, want %.2f", step.name, got, step.expects)
		}
	}
}
