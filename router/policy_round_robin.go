package router

import (
	"math/rand/v2"
	"time"
)

func init() {
	Register("round-robin", "one worker after the other", func(Config) Policy { return roundRobin{} })
}

// roundRobin takes the candidates in turn. The turn is the host's and comes
// with the request, so that choosing twice for one request chooses the same.
type roundRobin struct{}

func (roundRobin) Pick(req Request, ws []Candidate, now time.Time, rng *rand.Rand, why *Why) (int, float64, bool) {
	if len(ws) == 0 {
		return 0, 0, false
	}
	why.explain(ws, func(*Candidate) float64 { return 0 })
	return int(req.Turn % uint64(len(ws))), 0, true
}
