package stack

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/internal/metrics"
	"github.com/tandem-pd/tandem/router"
)

// exportUneven registers how evenly the group uses workers, and what it yields to priorities elsewhere.
func (g *Gateway) exportUneven(reg prometheus.Registerer) {
	s := metrics.In(reg).Snapshot()
	imbalance := s.Gauge("replica_imbalance", "Bookings of the most used worker less the least, over the mean.", "model", "role")
	yielded := s.Counter("replica_yielded_total", "Requests that left room to a higher strict priority elsewhere.", "model", "result")
	used := map[string]*uneven{}
	s.Read(func() {
		for model, q := range g.Flow.Waiting() {
			yielded.Set(float64(q.YieldedTotal), model, "held")
			yielded.Set(float64(q.YieldsUnusedTotal), model, "unused")
		}
		now := time.Now()
		for _, p := range g.Roster.Pools() {
			if used[p.Name()] == nil {
				used[p.Name()] = new(uneven)
			}
			imbalance.Set(used[p.Name()].of(g.routers.For(p.Model, p.Role).Loads(p), now), p.Model, string(p.Role))
		}
	})
}

// Limits of the measure of uneven use.
const (
	unevenWindow = time.Minute
	unevenLeast  = 10 // bookings a worker, on average: fewer are uneven by chance
)

// uneven measures how unevenly a pool's workers were used in the last one or two windows.
type uneven struct {
	from, next map[string]uint64 // bookings by worker when the previous and the present window began
	since      time.Time         // the present window's
}

// of returns the most bookings of a worker minus the fewest, over their mean; 0 if there were too few. Call it at
// least once a window.
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
			continue // not present for the whole window
		}
		if before > l.Booked {
			before = 0 // its bookings were reset
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
