package router

import (
	"math/rand/v2"
	"time"
)

func init() {
	Register("direct", "the worker that the request names; the leg it leaves open as in mode kv",
		func(c Config) Policy { return direct{policies["kv"].make(c)} })
}

// direct is for clients that choose for themselves. What they named is the only
// candidate by the time it picks; whatever they left open it picks as kv does.
type direct struct{ open Policy }

func (d direct) Pick(req Request, ws []Candidate, now time.Time, rng *rand.Rand, why *Why) (int, float64, bool) {
	return d.open.Pick(req, ws, now, rng, why)
}

// NeedsPin reports whether r's policy is for requests alone that name a worker.
// Whoever asks for a choice has to see to it.
func (r *Router) NeedsPin() bool {
	_, needs := r.policy.(direct)
	return needs
}
