package router

import "time"

func init() {
	register("eft", "earliest predicted finish, bound late: a prompt waits in the queue until its worker is about to be free",
		func(c Config) policy {
			if c.ignoresOverlap() {
				return policies["kv"].make(c) // as with min-ttft: the blocks they hold decide
			}
			return eft(c.Forecast)
		})
}

// eft is the choice of the worker that would be done with the prompt first: what its prompts still take, what those take
// that wait for it ahead of this one, and the prompt's own time there. Its cost is in seconds.
func eft(forecast Forecast) policy {
	cost := func(q *query, c *candidate) float64 { return (c.Left + takes(forecast, q, c)).Seconds() }
	return func(q *query, ws []candidate) (int, float64, bool) { return q.cheapest(ws, cost) }
}

// takes is how long the prompt should take a candidate that has nothing else to do.
func takes(forecast Forecast, q *query, c *candidate) time.Duration {
	if forecast != nil {
		if d, ok := forecast(c.Worker, 0, q.uncached(c), min(q.ISL, c.Overlap*q.BlockSize)); ok {
			return d
		}
	}
	return time.Duration(q.uncached(c)) * unknownTake
}

// unknownTake is the time of a token where nothing is known of a worker.
const unknownTake = 50 * time.Microsecond

// plan is what the requests of one drain that go on waiting will put on the workers that they wait for, so that those
// behind them plan around it.
type plan struct {
	drain uint64
	view  uint64
	takes []time.Duration // by slot
}

// begin readies the plan for a request of a drain.
func (p *plan) begin(drain uint64, v *view) {
	if p.drain != drain || p.view != v.number || drain == 0 {
		p.drain, p.view = drain, v.number
		p.takes = append(p.takes[:0], make([]time.Duration, len(v.slots))...)
	}
}

func (p *plan) of(slot int) time.Duration { return p.takes[slot] }

// bind reports whether candidate i may be booked now. If it is not free within slack, the request is planned for it.
func (k *core) bind(c *scratch, i int) error {
	w := &c.ws[i]
	if k.plan == nil || w.Left <= slack {
		return nil
	}
	own := takes(k.cfg.Forecast, &c.query, w)
	k.plan.takes[w.slot] += own
	return &LaterError{int(w.slot), w.Left, own}
}

// slack is how much work a worker may have left when it is given its next prompt.
const slack = 0
