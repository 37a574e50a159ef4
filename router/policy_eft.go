package router

import (
	"slices"
	"time"
)

func init() {
	register("eft", "earliest predicted finish of the prompt, bound late: it waits in the queue until that worker is free, and holds up none behind it",
		func(c Config) policy {
			if c.ignoresOverlap() {
				return policies["kv"].make(c) // as with min-ttft: the blocks they hold decide
			}
			forecast := c.Forecast
			return byCost(func(q *query, c *candidate) float64 { return (c.Left + forecast.own(q, c)).Seconds() })
		})
}

// own is how long the prompt should take a candidate that has nothing else to do. Where nothing is known of it, a token
// takes a common one's time: any figure, as long as it is the same for all.
func (f Forecast) own(q *query, c *candidate) time.Duration {
	if f != nil {
		if d, ok := f(c.Worker, 0, q.uncached(c), min(q.ISL, c.Overlap*q.BlockSize)); ok {
			return d
		}
	}
	return time.Duration(q.uncached(c)) * 50 * time.Microsecond
}

// plan is what the requests of one drain that go on waiting will put on the workers that they wait for, so that those
// behind them plan around it: each worker's queue forms in the gateway, and the choice is made again at each drain.
type plan struct {
	drain uint64
	view  uint64
	takes []time.Duration // by slot
}

// begin readies the plan for a request of a drain in a view. A choice outside of a drain has none: it is nil.
func (p *plan) begin(drain uint64, v *view) []time.Duration {
	if p == nil || drain == 0 {
		return nil
	}
	if p.drain != drain || p.view != v.number {
		p.drain, p.view = drain, v.number
		if cap(p.takes) < len(v.slots) {
			p.takes = make([]time.Duration, len(v.slots))
		}
		p.takes = p.takes[:len(v.slots)]
		clear(p.takes)
	}
	return p.takes
}

// bind reports whether candidate i may be booked now: its worker has computed what it was given, by what was predicted
// of that. Otherwise the request is planned for it, and the error is a [*LaterError].
func (k *core) bind(c *scratch, i int) error {
	w := &c.ws[i]
	if k.plan == nil || w.Left <= 0 {
		return nil
	}
	own := k.cfg.Forecast.own(&c.query, w)
	slot := slices.IndexFunc(c.view.slots, func(s slot) bool { return s.worker == w.Worker && int(s.rank) == w.Rank })
	if c.planned != nil {
		c.planned[slot] += own
	}
	return &LaterError{slot, w.Left, own}
}
