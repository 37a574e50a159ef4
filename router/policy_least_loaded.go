package router

import (
	"math/rand/v2"
	"time"
)

func init() {
	Register("least-loaded", "the worker with the fewest requests in flight", func(Config) Policy { return leastLoaded{} })
}

// leastLoaded takes the candidate with the fewest requests in flight, ties at
// random. Its cost is that number.
type leastLoaded struct{}

func (leastLoaded) Pick(req Request, ws []Candidate, now time.Time, rng *rand.Rand, why *Why) (int, float64, bool) {
	inFlight := func(c *Candidate) float64 { return float64(c.Load.Requests) }
	why.explain(ws, inFlight)
	return cheapest(ws, inFlight, rng)
}
