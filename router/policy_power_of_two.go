package router

import (
	"math/rand/v2"
	"time"
)

func init() {
	Register("power-of-two", "the one with fewer requests in flight of two workers drawn at random", func(Config) Policy { return powerOfTwo{} })
}

// powerOfTwo draws two different candidates, all pairs equally likely, and takes
// the one with fewer requests in flight (Mitzenmacher, "The Power of Two Choices
// in Randomized Load Balancing", 2001). Its cost is that number. It avoids the
// most loaded worker without sending every request of a moment to the least
// loaded one.
type powerOfTwo struct{}

func (powerOfTwo) Pick(req Request, ws []Candidate, now time.Time, rng *rand.Rand, why *Why) (int, float64, bool) {
	inFlight := func(c *Candidate) float64 { return float64(c.Load.Requests) }
	why.explain(ws, inFlight)
	switch len(ws) {
	case 0:
		return 0, 0, false
	case 1:
		return 0, inFlight(&ws[0]), true
	}
	i, j := rng.IntN(len(ws)), rng.IntN(len(ws)-1)
	if j >= i {
		j++
	}
	if inFlight(&ws[j]) < inFlight(&ws[i]) {
		i = j
	}
	return i, inFlight(&ws[i]), true
}
