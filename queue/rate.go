package queue

import (
	"math"
	"time"
)

const (
	// rateMemory is how much backlogged time the drain rate remembers: what is older counts for less than a third.
	rateMemory = 10 * time.Second
	// rateLeast is the least backlogged time that a rate is divided by, such as for two grants a microsecond apart
	// nothing of a second.
	rateLeast = 100 * time.Millisecond

	leastRetryAfter = time.Second
	mostRetryAfter  = 60 * time.Second
)

// rate is how fast the queue drains: grants per second of backlogged time, in which a request waited. Idle time and
// grants without a wait show the demand, not the capacity: neither counts. Both sums fade with backlogged time.
type rate struct {
	grants  float64   // faded
	seconds float64   // faded, backlogged
	since   time.Time // backlogged since the sums were last brought up to date; zero: no request waits
}

// backlog notes whether a request waits from now on.
func (r *rate) backlog(waiting bool, now time.Time) {
	r.fade(now)
	r.since = time.Time{}
	if waiting {
		r.since = now
	}
}

// grant counts a grant.
func (r *rate) grant(now time.Time) {
	if r.fade(now); !r.since.IsZero() {
		r.grants++
	}
}

// perSecond is the rate at now; 0 when nothing was granted from a backlog.
func (r *rate) perSecond(now time.Time) float64 {
	r.fade(now)
	return r.grants / max(r.seconds, rateLeast.Seconds())
}

// retryAfter is how long so many take to be granted, in whole seconds from 1 to 60. When nothing was ever granted
// from a backlog, it is as long again as the first of them has waited.
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

// retryAfter is the kept tickets over the drain rate; see rate.retryAfter.
func (c *Core[V]) retryAfter(now time.Time) time.Duration {
	var waited time.Duration
	if c.oldest != nil {
		waited = now.Sub(c.oldest.pushed)
	}
	return c.rate.retryAfter(c.kept, waited, now)
}
