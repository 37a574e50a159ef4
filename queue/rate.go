package queue

import (
	"math"
	"time"
)

const (
	// rateMemory is the decay time of the drain rate, in backlogged time.
	rateMemory = 10 * time.Second
	// rateLeast is the least backlogged time for a rate, so that two grants within a microsecond do not make a huge one.
	rateLeast = 100 * time.Millisecond

	leastRetryAfter = time.Second
	mostRetryAfter  = 60 * time.Second
)

// rate is the drain rate: grants per second of backlogged time, in which a request waited. Idle time and grants without a
// wait show demand, not capacity: neither counts. Both sums decay with backlogged time.
type rate struct {
	grants  float64   // decayed
	seconds float64   // decayed, backlogged
	since   time.Time // of the latest update, while backlogged; zero: no request waits
}

// backlog records whether a request waits from now on.
func (r *rate) backlog(waiting bool, now time.Time) {
	r.fade(now)
	r.since = time.Time{}
	if waiting {
		r.since = now
	}
}

func (r *rate) grant(now time.Time) {
	if r.fade(now); !r.since.IsZero() {
		r.grants++
	}
}

// perSecond returns the rate, 0 if nothing was granted from a backlog.
func (r *rate) perSecond(now time.Time) float64 {
	r.fade(now)
	return r.grants / max(r.seconds, rateLeast.Seconds())
}

// retryAfter returns how long so many tickets take to be granted, in whole seconds from 1 to 60. If nothing was granted
// from a backlog yet, it is what the first of them has waited.
func (r *rate) retryAfter(waiting int, waited time.Duration, now time.Time) time.Duration {
	seconds := waited.Seconds()
	if perSecond := r.perSecond(now); perSecond > 0 {
		seconds = float64(waiting) / perSecond
	}
	seconds = math.Ceil(min(seconds, mostRetryAfter.Seconds()))
	return max(leastRetryAfter, time.Duration(seconds)*time.Second)
}

func (r *rate) fade(now time.Time) {
	if r.since.IsZero() || !now.After(r.since) {
		return
	}
	left := math.Exp(-now.Sub(r.since).Seconds() / rateMemory.Seconds())
	r.grants *= left
	r.seconds = r.seconds*left + rateMemory.Seconds()*(1-left)
	r.since = now
}

// retryAfter returns the waiting tickets over the drain rate; see rate.retryAfter.
func (c *Core[V]) retryAfter(now time.Time) time.Duration {
	var waited time.Duration
	if c.oldest != nil {
		waited = now.Sub(c.oldest.pushed)
	}
	return c.rate.retryAfter(c.kept, waited, now)
}
