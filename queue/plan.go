package queue

import (
	"time"
)

const (
	// maxPlanned is how many waiting requests a drain plans, first ones first.
	maxPlanned = 128
	// maxTried is how many of them one drain tries to promote.
	maxTried = 2
	// planRate is how many drains per second plan before they grant, and planBurst their burst: planning visits all
	// planned requests up to four times.
	planRate, planBurst = 100, 16
)

// promotion improves an order that makes requests late: a drain plans the requests in that order, moves one to the front,
// plans again, and keeps the better order. All workers count: a request that moves to another worker is planned there.
type promotion[V any] struct {
	drain  uint64     // its first round
	credit float64    // drains that may plan
	seen   time.Time  // when the latest drain started
	back   bool       // useless promotions were undone
	late   int        // requests, in the best order so far
	try    *Ticket[V] // promoted on trial
	tries  int
}

// begin resets p for a drain that starts with this round.
func (p *promotion[V]) begin(round uint64, now time.Time) {
	*p = promotion[V]{drain: round, seen: now, credit: min(planBurst, p.credit+planRate*now.Sub(p.seen).Seconds())}
}

// plans reports whether this drain may plan, and takes a credit.
func (p *promotion[V]) plans() bool {
	if p.credit < 1 {
		return false
	}
	p.credit--
	return true
}

// promote examines the plan, and reports whether to plan once more in another order. It moves one request to the
// front. That request would be in time on a free worker, but misses its target or has less than an eighth to spare. The
// request stays there if fewer are late then, or no more if it was late itself. Earlier promotions that are late anyway
// are undone.
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

// late reports whether t misses its target if its prompt starts so long from now.
func (t *Ticket[V]) late(now time.Time, starts time.Duration) bool {
	return t.Target > 0 && now.Add(starts+t.plan.takes+t.plan.then).After(t.due)
}

// gatherFor bounds how long arriving requests gather before the next drain while others wait.
const gatherFor = 5 * time.Millisecond

// gathering is the prediction of the latest drain that planned requests.
type gathering struct {
	free     time.Time // when the first worker should be free: until then nothing can be granted; zero: nothing is planned
	gathered time.Time // when to drain for requests that arrived since; zero: none
}

// predict stores the prediction of the ending drain.
func (c *Core[V]) predict(now time.Time) {
	c.free = time.Time{}
	for _, t := range c.passed {
		if t != nil {
			c.free = earlier(c.free, now.Add(t.plan.free))
		}
	}
}

// Gathers reports whether t, just pushed, needs no drain of its own because others wait and no worker is free. The next
// drain, by a release or by [Core.NextDrain], tries all that have arrived.
func (c *Core[V]) Gathers(t *Ticket[V], now time.Time) bool {
	if !now.Before(c.free) || t.Retry || t.Strict > 0 || t.Lane != "" || c.waiting >= c.cfg.Limit || !c.queued(t) {
		return false
	}
	c.gathered = earlier(c.gathered, earlier(now.Add(gatherFor), c.free))
	return true
}

// NextWake returns when the next ticket expires or a drain is due by [Core.NextDrain]; zero if no ticket waits.
func (c *Core[V]) NextWake() time.Time {
	if c.oldest == nil {
		return time.Time{}
	}
	return earlier(c.deadline(c.oldest), c.NextDrain())
}

// NextDrain returns when to drain by time alone: gathered requests are due, or yielding ends. It is zero for never.
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
