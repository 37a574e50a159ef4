package queue

import "time"

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

// promote looks at what has been planned, and reports whether it is to be planned once more, in another order: one request is
// put before it that is to be done after its target, or within an eighth of it before that, and would be in time were its
// worker free. It stays there if fewer are late for that, or none more where it was in time itself. One that was promoted
// earlier and is late all the same is put back.
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
