// Package backoff spaces attempts that fail: the first ones follow each other
// fast, later ones ever more slowly, and those of several processes apart.
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
