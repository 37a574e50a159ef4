package queue

import "time"

// gatherFor is how long requests that come while others wait gather at most before the next drain.
const gatherFor = 5 * time.Millisecond

// gathering is what the latest drain predicts where requests wait by a plan.
type gathering struct {
	free     time.Time // when the first worker should be; until then none can be granted unless something changes; zero: none waits so
	gathered time.Time // when those that came since are to be drained for; zero: none came
}

// predict takes in the plans of the drain that ends.
func (c *Core[V]) predict(now time.Time) {
	c.free = time.Time{}
	for _, t := range c.passed {
		if t != nil {
			c.free = earlier(c.free, now.Add(t.plan.free))
		}
	}
}

// Gathers reports whether t, pushed just now, needs no drain of its own: others wait for workers of which none is free. What
// drains next, a release or [Core.NextDrain], then looks at all that have come. A drain costs a look at each that waits.
func (c *Core[V]) Gathers(t *Ticket[V], now time.Time) bool {
	if !now.Before(c.free) || t.Retry || t.Strict > 0 || t.Lane != "" || c.waiting >= c.cfg.Limit || !c.queued(t) {
		return false
	}
	c.gathered = earlier(c.gathered, earlier(now.Add(gatherFor), c.free))
	return true
}
