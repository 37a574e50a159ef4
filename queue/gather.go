package queue

import "time"

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

// Gathers reports whether t, pushed just now, needs no drain of its own: others wait for workers of which none is free. What
// drains next, a release or [Core.NextDrain], then looks at all that have come. A drain costs a look at each that waits.
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
