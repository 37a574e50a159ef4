package router

import (
	"math"

	"github.com/zeebo/xxh3"
)

// crowded is how many times the mean cost a session's own worker may cost.
const crowded = 1.25

// alike reports whether nothing but their load tells the candidates apart: where one holds more of the prompt than
// another, or is preferred, that decides.
func alike(ws []candidate) bool {
	for i := range ws {
		a, b := &ws[i], &ws[0]
		if a.Overlap != b.Overlap || a.Host != b.Host || a.Disk != b.Disk || a.Shared != b.Shared || a.Favour != b.Favour {
			return false
		}
	}
	return true
}

// home is the candidate that ranks first for the request's session, by rendezvous hashing, of those that cost no more
// than [crowded] times the mean. Every gateway ranks alike, and a worker that comes or goes moves only the sessions
// that rank it first. Where the policy has no costs, the requests in flight are what is compared.
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
