package router

import (
	"math/rand/v2"
	"time"
)

func init() {
	Register("lmetric", "least prompt to compute times requests in flight; knows what is cached where, and has no weights to tune",
		func(Config) Policy { return lmetric{} })
}

// lmetric is the product of what a worker has yet to compute and how many it
// serves:
//
//	(booked prefill tokens + uncached tokens of this prompt) · (requests in flight + 1)
//
// after LMetric (arXiv 2603.15202), which multiplies a worker's new prefill
// tokens by its batch: the one delays the first token, the other every token,
// and a product needs no exchange rate between them. In a pool that computes no
// prompts the first factor is the same for all, and the fewest requests win.
type lmetric struct{}

func (lmetric) Pick(req Request, ws []Candidate, now time.Time, rng *rand.Rand, why *Why) (int, float64, bool) {
	cost := func(c *Candidate) float64 {
		return float64(c.Load.PrefillTokens+req.uncached(c)) * float64(c.Load.Requests+1)
	}
	why.explain(ws, cost)
	return cheapest(ws, cost, rng)
}
