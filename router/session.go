package router

import (
	"math"

	"github.com/zeebo/xxh3"
)

// crowded bounds the cost of a session's own worker, in multiples of the mean.
const crowded = 1.25

// alike reports whether the candidates differ in load only, and not in cached blocks or preference.
func alike(ws []candidate) bool {
	for i := range ws {
		a, b := &ws[i], &ws[0]
		if a.Overlap != b.Overlap || a.Host != b.Host || a.Disk != b.Disk || a.Shared != b.Shared || a.Favour != b.Favour {
			return false
		}
	}
	return true
}

// home returns the candidate that ranks first for the session by rendezvous hashing, among those that cost at most
// [crowded] times the mean. All gateways rank alike, and a joining or leaving worker moves only its own sessions. A
// policy without costs compares requests in flight.
func (c *scratch) home() int {
	if math.IsNaN(c.costs[0]) {
		for i := range c.ws {
			c.costs[i] = float64(c.ws[i].Load.Requests)
		}
	}
	var sum float64
	for _, cost := range c.costs {
		sum += cost
	}
	limit := float64(crowded * sum / float64(len(c.costs)))
	session := xxh3.HashString(c.query.Session)
	first, most := 0, uint64(0)
	for i := range c.ws {
		w := &c.ws[i]
		if rank := xxh3.HashStringSeed(w.Worker.ID, session+uint64(w.Rank)); c.costs[i] <= limit && rank >= most {
			first, most = i, rank
		}
	}
	return first
}
