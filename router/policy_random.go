package router

import (
	"math/rand/v2"
	"time"
)

func init() {
	Register("random", "any worker, all equally likely", func(Config) Policy { return random{} })
}

// random takes any candidate.
type random struct{}

func (random) Pick(req Request, ws []Candidate, now time.Time, rng *rand.Rand, why *Why) (int, float64, bool) {
	if len(ws) == 0 {
		return 0, 0, false
	}
	why.explain(ws, func(*Candidate) float64 { return 0 })
	return rng.IntN(len(ws)), 0, true
}
