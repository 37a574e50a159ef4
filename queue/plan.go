package queue

import (
	"time"
)

const (
	// maxPlanned is how many waiting requests a drain plans, the next ones first.
	maxPlanned = 128
	// maxTried is how many of them one drain tries before the order.
	maxTried = 2
	// planRate is how many drains a second plan before they grant, and planBurst how many may at once: planning takes up to
	// four looks at all that are planned.
	planRate, planBurst = 100, 16
)

// promotion is what a drain finds out about an order that makes requests late: it plans them in that order, puts one before
// it, plans them again, and keeps the better order. All workers count: who goes to another one then is planned there.
type promotion[V any] struct {
	drain  uint64     // its first round
	credit float64    // drains that may plan
	seen   time.Time  // when the latest drain began
	back   bool       // those have been put back that their promotion does not help
	late   int        // requests, by the best order so far
	try    *Ticket[V] // which is before the order to see what comes of it
	tries  int
}

// begin readies it for a drain that begins with this round.
func (p *promotion[V]) begin(round uint64, now time.Time) {
	*p = promotion[V]{drain: round, seen: now, credit: min(planBurst, p.credit+planRate*now.Sub(p.seen).Seconds())}
}

// plans reports whether this drain may plan, and counts it.
func (p *promotion[V]) plans() bool {
	if p.credit < 1 {
		return false
	}
	p.credit--
	return true
}

// promote looks at what has been planned, and reports whether it is to be planned once more, in another order. It
// puts one request first: one that would be done after its target, or within an eighth of it before that. With its
// worker free that one would be in time. It stays there if fewer are late for that, or none more where it was in time
// itself. One that was promoted earlier and is late all the same is put back.
func (c *Core[V]) promote(now time.Time) (again bool) {
	p := &c.promotion
	late := 0
	for _, t := range c.passed {
		if t == nil || !t.late(now, t.plan.starts) {
			continue
		}
		if late++; t.promoted && t != p.try && !p.back {
			t.promoted, again = false, true
		}
	}
	if p.back = true; again {
		return true
	}
	if t := p.try; t == nil || late < p.late || late == p.late && !t.wasLate {
		p.late = late
	} else {
		t.promoted = false
	}
	p.try = nil
	if p.tries == maxTried {
		return false
	}
	for _, t := range c.passed {
		if t == nil || t.promoted || t.tried == p.drain || t.late(now, 0) || !t.late(now, t.plan.starts+t.Target/8) {
			continue
		}
		t.tried, t.wasLate, t.promoted = p.drain, t.late(now, t.plan.starts), true
		p.try = t
		p.tries++
		return true
	}
	return false
}

// late reports whether t misses the target if its worker is free for it so long from now.
func (t *Ticket[V]) late(now time.Time, starts time.Duration) bool {
	return t.Target > 0 && now.Add(starts+t.plan.takes+t.plan.then).After(t.due)
}

// gatherFor bounds how long requests that arrive while others wait gather before the next drain.
const gatherFor = 5 * time.Millisecond

// gathering is what the latest drain predicts where requests wait by a plan.
type gathering struct {
	free     time.Time // when the first worker should be; until then none can be granted unless something changes; zero: none waits so
	gathered time.Time // when those that came since are to be drained for; zero: none came
}

// predict applies the plans of the drain that ends.
func (c *Core[V]) predict(now time.Time) {
	c.free = time.Time{}
	for _, t := range c.passed {
		if t != nil {
			c.free = earlier(c.free, now.Add(t.plan.free))
		}
	}
}

// Gathers reports whether t, pushed just now, needs no drain of its own, because others wait and no worker is free. The
// next drain, by a release or by [Core.NextDrain], looks at all that have arrived. A drain looks at each waiting ticket.
func (c *Core[V]) Gathers(t *Ticket[V], now time.Time) bool {
	if !now.Before(c.free) || t.Retry || t.Strict > 0 || t.Lane != "" || c.waiting >= c.cfg.Limit || !c.queued(t) {
		return false
	}
	c.gathered = earlier(c.gathered, earlier(now.Add(gatherFor), c.free))
	return true
}

// NextWake is when a ticket expires next or a drain is due for another reason, [Core.NextDrain]. It is zero when no ticket waits.
func (c *Core[V]) NextWake() time.Time {
	if c.oldest == nil {
		return time.Time{}
	}
	return earlier(c.deadline(c.oldest), c.NextDrain())
}

// NextDrain is when the queue is to be drained although nothing has happened: those that came lately have gathered for long
// enough, or room is no longer left to others. It is zero if there is no such time.
func (c *Core[V]) NextDrain() time.Time {
	if c.oldest == nil {
		return time.Time{}
	}
	if c.yields.IsZero() {
		return c.gathered
	}
	return earlier(c.gathered, c.yields.Add(yieldFor))
}

// earlier returns the earlier of two times; zero is none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
