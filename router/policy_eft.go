package router

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router/load"
)

func init() {
	register("eft", "earliest predicted finish of the prompt; it waits for that worker, and holds up none behind it",
		func(c Config) policy {
			switch {
			case c.ignoresOverlap():
				return policies["kv"].make(c) // as with min-ttft: the blocks they hold decide
			}
			forecast := c.Forecast
			if c.TrackActiveBlocks {
				return byCost(func(q *query, c *candidate) float64 {
					return c.Left.Seconds() + float64(forecast.own(q, c).Seconds()*(1+float64(perAnswer*float64(c.Load.Requests))))
				})
			}
			return byCost(func(q *query, c *candidate) float64 {
				return (c.Left + forecast.own(q, c)).Seconds() + float64(perRest*c.Delays.Seconds())
			})
		})
}

// perAnswer is what delaying one running answer counts against delaying the prompt itself: where answers are generated
// too, a prompt's own time counts once more, in part, for each that waits. It is below 1 because an answer spreads the
// delay over all its tokens. perRest is the same of the rest of a prompt in slices, which takes long in any case.
const perAnswer, perRest = .3, .2

// own is how long the prompt should take a candidate, or occupy it, that has nothing else to do. Where nothing is known of it, a token
// takes a common one's time: any figure, as long as it is the same for all.
func (f Forecast) own(q *query, c *candidate) time.Duration {
	return f.takes(c.Worker, q.uncached(c), min(q.ISL, c.Overlap*q.BlockSize))
}

func (f Forecast) takes(w *pools.Worker, uncached, cached int) time.Duration {
	if f != nil {
		if d, ok := f(w, 0, uncached, cached); ok {
			return d
		}
	}
	return time.Duration(uncached) * 50 * time.Microsecond
}

// delays notes of each candidate how long the prompt and the rests that come back there delay each other.
func (k *core) delays(c *scratch, ws []candidate) {
	for i := range ws {
		w := &ws[i]
		if page := c.view.slots[w.slot].page; page.Awaits() {
			w.Delays = page.Delays(c.req.ID, k.cfg.Occupies.own(&c.query, w), c.req.Drain)
		}
	}
}

// plan is the load that the waiting requests of one drain will put on the workers that they wait for, so that later requests
// plan around it: each worker's queue forms in the gateway, and each drain chooses again.
type plan struct {
	drain uint64
	view  uint64
	takes []time.Duration // by slot
	given []bool          // by slot: the worker was free in this drain, and was given a prompt
	free  time.Duration   // see freeIn
	known bool
}

// begin readies the plan for a request of a drain in a view. A choice outside of a drain has none: it is nil.
func (p *plan) begin(drain uint64, v *view) []time.Duration {
	if p == nil || drain == 0 {
		return nil
	}
	if p.drain != drain || p.view != v.number {
		p.drain, p.view, p.known = drain, v.number, false
		if cap(p.takes) < len(v.slots) {
			p.takes, p.given = make([]time.Duration, len(v.slots)), make([]bool, len(v.slots))
		}
		p.takes, p.given = p.takes[:len(v.slots)], p.given[:len(v.slots)]
		clear(p.takes)
		clear(p.given)
	}
	return p.takes
}

// freeIn is how long the first worker of v that may be chosen still computes what it was given, without what is planned for it.
// It is looked up once in a drain.
func (p *plan) freeIn(v *view, now time.Time) time.Duration {
	if !p.known {
		p.known, p.free = true, math.MaxInt64
		for i := range v.slots {
			if s := &v.slots[i]; v.eligible(s, now) {
				p.free = min(p.free, s.page.Left(now))
			}
		}
	}
	return p.free
}

// together is up to how many tokens a worker that is free is given in several prompts of one drain. Its engine computes
// the first at once and the others in one step: up to some 300 tokens that takes as long as to read the weights (peak
// FLOPS over memory bandwidth: A100 156, H100 295, B200 281), and one after the other they would take as long each.
const together = 256

// joins reports whether the prompt goes to w with those that w was given in this drain.
func (k *core) joins(c *scratch, w *candidate) bool {
	return c.planned != nil && k.plan.given[w.slot] && c.planned[w.slot] == 0 && w.Load.PrefillTokens+c.query.uncached(w) <= together
}

// bind reports whether candidate i may be booked now: by prediction its worker has computed what it was given, or it
// was given others in this drain that the prompt joins. Otherwise the request is planned for it, and the error is a
// [*LaterError].
func (k *core) bind(c *scratch, i int, now time.Time) error {
	w := &c.ws[i]
	if !c.query.late {
		return nil
	}
	if (w.Left <= 0 || k.joins(c, w)) && !c.req.PlanOnly {
		if c.planned != nil {
			k.plan.given[w.slot] = true
		}
		return nil
	}
	own, free := k.cfg.Occupies.own(&c.query, w), time.Duration(0)
	if c.planned != nil {
		free = k.plan.freeIn(c.view, now)
		c.planned[w.slot] += own
		if rest := c.req.Done.rest; rest != nil {
			rest.Drain = c.req.Drain
		}
	}
	var then time.Duration
	if k.cfg.Transfer != nil {
		then = k.cfg.Transfer(w.Worker, c.req.ISL)
	}
	later := c.req.Later
	if later == nil {
		later = new(LaterError)
	}
	*later = LaterError{int(w.slot), w.Left, own, then, free, PoolError{c.view.pool.Model, c.view.pool.Role, errNotFree}}
	return later
}

// grantPrefill books candidate i for a prompt, or a slice, whose decode worker is chosen later.
func grantPrefill(prefill, decode *core, cp, cd *scratch, i int, now time.Time) (*Lease, error) {
	w, whole := &cp.ws[i], prefill.cfg.Occupies.own(&cp.query, &cp.ws[i])
	l := &Lease{Slice: prefill.cut(cp, i)}
	need := cd.query.blocks() + 1
	if l.Slice == 0 && !decode.keeps(cd.view, need, now) {
		return nil, cd.refuse(ErrNoRoom)
	}
	if err := prefill.grant(l, cp, i, now); err != nil {
		return nil, cp.refuse(err)
	}
	cp.req.Done.rest.End()
	if l.Slice == 0 {
		l.promise = decode.promise(need)
	} else {
		l.rest = &load.Rest{Request: cp.req.ID, Takes: max(0, whole-prefill.cfg.Occupies.own(&cp.query, w))}
		cp.view.slots[w.slot].page.Await(l.rest)
	}
	return l, nil
}

// cut limits the choice to the slice of the prompt that candidate i is to compute. It returns its end in tokens, 0 for
// the whole prompt. The last slice is up to 1.5 slices long.
func (k *core) cut(c *scratch, i int) int {
	q, slice := &c.query, k.cfg.Slice
	if !q.Sliced || slice == 0 || 2*q.uncached(&c.ws[i]) <= 3*slice || q.Done.Slices*slice >= q.ISL {
		return 0
	}
	blocks := c.ws[i].Overlap + max(1, slice/q.BlockSize)
	if blocks > len(q.Hashes) {
		return 0
	}
	c.req.ISL, c.req.Hashes = blocks*q.BlockSize, q.Hashes[:blocks]
	return c.req.ISL
}

// SliceTokens returns the length of a slice, 0 if prompts are not sliced.
func (r *Router) SliceTokens() int {
	if !r.core.cfg.BindsLate() {
		return 0
	}
	return r.core.cfg.Slice
}

// promise is room kept for a prompt while it is computed.
type promise struct {
	of     *atomic.Int64 // the pool's promised blocks
	blocks int64
}

func (k *core) promise(blocks int) promise {
	k.promised.Add(int64(blocks))
	return promise{&k.promised, int64(blocks)}
}

// end releases the room. It is called once.
func (p promise) end() {
	if p.of != nil {
		p.of.Add(-p.blocks)
	}
}

// keeps reports whether the workers of v have room for more blocks beyond the promised ones.
func (k *core) keeps(v *view, blocks int, now time.Time) bool {
	free := -k.promised.Load()
	for i := range v.slots {
		s := &v.slots[i]
		if s.blocks == math.MaxInt {
			return true
		}
		if v.eligible(s, now) {
			free += int64(max(0, s.blocks-s.page.ActiveBlocks))
		}
	}
	return int64(blocks) <= free
}
