package router

import (
	"math/rand/v2"
	"time"
)

func init() {
	RegisterPairer("sequential", "each leg by its pool's policy: prefill for overlap, then decode for load",
		func(prefill, decode Policy) Pairer { return sequential{prefill, decode} })
}

// sequential picks prefill by one policy and then decode by another.
type sequential struct {
	prefill, decode Policy
}

func (s sequential) PickPair(req Request, ps, ds []Candidate, link Link, now time.Time, rng *rand.Rand, why *PairWhy) (p, d int, ok bool) {
	p, why.Prefill.Cost, ok = s.prefill.Pick(req, ps, now, rng, &why.Prefill)
	if !ok {
		return 0, 0, false
	}
	req.Turn = req.DecodeTurn
	d, why.Decode.Cost, ok = s.decode.Pick(req, ds, now, rng, &why.Decode)
	return p, d, ok
}
