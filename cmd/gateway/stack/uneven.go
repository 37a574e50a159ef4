package stack

import (
	"time"

	"github.com/tandem-pd/tandem/router"
)

// How unevenly workers are used is known of so much.
const (
	unevenWindow = time.Minute
	unevenLeast  = 10 // bookings a worker, on average: fewer are uneven by chance
)

// uneven is how unevenly a pool's workers have been used in the last one or two windows.
type uneven struct {
	from, next map[string]uint64 // bookings by worker when the window before this one began, and when this one did
	since      time.Time         // this one
}

// of returns the most bookings of a worker less the fewest, over their mean; 0 where there were too few. It is to be asked at least once in a window.
func (u *uneven) of(loads []router.WorkerLoad, now time.Time) float64 {
	if u.from == nil || now.Sub(u.since) >= unevenWindow {
		counts := make(map[string]uint64, len(loads))
		for _, l := range loads {
			counts[l.Worker] = l.Booked
		}
		if u.from = u.next; u.from == nil {
			u.from = counts
		}
		u.next, u.since = counts, now
	}
	least, most, sum, workers := ^uint64(0), uint64(0), uint64(0), uint64(0)
	for _, l := range loads {
		before, known := u.from[l.Worker]
		if !known {
			continue // it has not been there for all of the window
		}
		if before > l.Booked {
			before = 0 // its bookings were forgotten meanwhile
		}
		n := l.Booked - before
		workers++
		least, most, sum = min(least, n), max(most, n), sum+n
	}
	if workers == 0 || sum < unevenLeast*workers {
		return 0
	}
	return float64(most-least) * float64(workers) / float64(sum)
}
