package queue

import "time"

const (
	// maxPlanned is how many of the waiting requests a promotion looks at, the next ones first.
	maxPlanned = 128
	// maxPromoted is how many of them one drain promotes.
	maxPromoted = 4
)

// promote puts requests before the order that it would make late, where none is made late by that. A drain has planned
// them: a request that is to be done after its target, and would be in time were it the first at its worker, is promoted
// as long as those that it overtakes there stay in time who are. One that has become late all the same is put back.
func (c *Core[V]) promote(now time.Time) {
	planned := c.passed[:min(len(c.passed), maxPlanned)]
	done := 0
	for j, t := range planned {
		if t == nil {
			continue
		}
		late := t.late(now, t.plan.Starts)
		if t.promoted {
			t.promoted = !late
			continue
		}
		if !late || done == maxPromoted {
			continue
		}
		starts, spoilt := t.plan.Starts, false
		for _, o := range planned[:j] {
			if !t.overtakes(o) {
				continue
			}
			starts = min(starts, o.plan.Starts)
			spoilt = spoilt || !o.late(now, o.plan.Starts) && o.late(now, o.plan.Starts+t.plan.Takes)
		}
		if spoilt || t.late(now, starts) {
			continue
		}
		for _, o := range planned[:j] {
			if t.overtakes(o) {
				o.plan.Starts += t.plan.Takes
			}
		}
		t.promoted, t.plan.Starts = true, starts
		done++
	}
}

// overtakes reports whether t, promoted, goes before o at the worker that both wait for; o may have left.
func (t *Ticket[V]) overtakes(o *Ticket[V]) bool {
	return o != nil && o.plan.Worker == t.plan.Worker && !o.promoted && o.Retry == t.Retry && o.Strict == t.Strict
}

// late reports whether t misses the target if its worker is free for it so long from now.
func (t *Ticket[V]) late(now time.Time, starts time.Duration) bool {
	return now.Add(starts + t.plan.Takes).After(t.due)
}
