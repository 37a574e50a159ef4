// Package guard limits what failures cost: [Backoff] spaces attempts, of several processes apart; contained handlers
// and loops survive a panic; [LogLimiter] bounds how often a line that a stranger can cause is logged; [TempDir] is a
// folder that the next process removes if this one dies.
package guard

import (
	"math/rand/v2"
	"time"
)

// Backoff is how long to wait between attempts.
type Backoff struct {
	Min, Max time.Duration
}

// Delay returns the wait after an attempt that failed, where failures attempts had failed before it: Min doubled for
// each of them, at most Max. With rng it is up to half shorter.
func (b Backoff) Delay(failures int, rng *rand.Rand) time.Duration {
	wait := b.Max
	if doubled := b.Min << min(failures, 62); failures < 62 && doubled>>failures == b.Min {
		wait = min(b.Max, doubled)
	}
	if rng != nil {
		wait -= time.Duration(rng.Int64N(int64(wait)/2 + 1))
	}
	return wait
}
