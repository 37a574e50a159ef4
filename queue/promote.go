package queue

import (
	"slices"
	"time"
)

const (
	// maxPlanned is how many waiting requests a drain plans, the next ones first.
	maxPlanned = 128
	// maxPromoted is how many of them one drain promotes.
	maxPromoted = 4
)

// promote puts requests before the order that it would make late, where none is made late by that. A drain has planned
// them: a request that is to be done after its target, and would be in time were it the first at its worker, is promoted
// as long as those that it overtakes there stay in time who are. One that has become late all the same is put back.
func (c *Core[V]) promote(now time.Time) {
	planned := c.passed
	done := 0
	for j, t := range planned {
		if t == nil {
			continue
		}
		if t.promoted {
			t.promoted = !t.late(now, t.plan.starts)
			continue
		}
		if !t.late(now, t.plan.starts+c.cfg.Target/8) || done == maxPromoted {
			continue
		}
		first := slices.IndexFunc(planned[:j], t.overtakes)
		if first < 0 || t.late(now, planned[first].plan.starts) {
			continue
		}
		starts, spoilt, delayed := planned[first].plan.starts, false, planned[first:j]
		for _, o := range delayed {
			spoilt = spoilt || t.delays(o) && !o.late(now, o.plan.starts) && o.late(now, o.plan.starts+t.plan.takes)
		}
		if spoilt {
			continue
		}
		for _, o := range delayed {
			if t.delays(o) {
				o.plan.starts += t.plan.takes
			}
		}
		t.promoted, t.plan.starts = true, starts
		done++
	}
}

// overtakes reports whether t, promoted, goes before o of its class at the worker that both wait for; o may have left.
func (t *Ticket[V]) overtakes(o *Ticket[V]) bool {
	return t.delays(o) && o.Class == t.Class && !o.promoted && o.Retry == t.Retry && o.Strict == t.Strict
}

// delays reports whether o, planned behind the first that t overtakes, waits for the same worker.
func (t *Ticket[V]) delays(o *Ticket[V]) bool {
	return o != nil && o.plan.worker == t.plan.worker
}

// late reports whether t misses the target if its worker is free for it so long from now.
func (t *Ticket[V]) late(now time.Time, starts time.Duration) bool {
	return now.Add(starts + t.plan.takes + t.plan.then).After(t.due)
}
