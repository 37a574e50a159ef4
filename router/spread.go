package router

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// choose has the policy pick among the candidates, unless the request's session is bound to one of them; or, where their
// costs do not say which of them is best, the request's session or a draw.
func (k *core) choose(c *scratch, now time.Time) (int, float64, bool) {
	if i := k.bound(c, now); i >= 0 {
		_, cost, ok := c.price(k.policy, &c.costs)
		if ok && !math.IsNaN(c.costs[0]) {
			cost = c.costs[i]
		}
		return i, cost, ok
	}
	unseen := 0.0
	switch {
	case k.cfg.Peers == nil:
	case k.cfg.Peers.CutOff():
		k.divide(c) // the peers have workers of their own
	default:
		unseen = k.unseen(c.view.pool, now)
	}
	homed := c.query.Session != "" && !k.cfg.ignoresOverlap() && alike(c.ws)
	if unseen < fewUnseen && !homed {
		return k.policy(&c.query, c.ws)
	}
	i, cost, ok := c.price(k.policy, &c.costs)
	switch {
	case !ok:
	case homed:
		i = c.home()
		cost = c.costs[i]
	default:
		if drawn, ok := k.fill(c, unseen); ok {
			c.drawn = true
			return drawn, c.costs[drawn], true
		}
	}
	return i, cost, ok
}

// price has the policy pick and keeps what it computes of each candidate, NaN where it has no costs.
func (c *scratch) price(pick policy, costs *[]float64) (int, float64, bool) {
	*costs = slices.Grow((*costs)[:0], len(c.ws))[:len(c.ws)]
	if len(c.ws) > 0 {
		(*costs)[0] = math.NaN()
	}
	c.query.costs = *costs
	i, cost, ok := pick(&c.query, c.ws)
	c.query.costs = nil
	return i, cost, ok
}

// widest is among how many candidates at the most a draw is made, those of the lowest cost.
const widest = 64

// lot is a candidate in a draw.
type lot struct {
	index int
	cost  float64
	each  float64 // what a booking more adds to the cost
}

// fill draws a candidate by Tidal Water Filling (Goren, Vargaftik and Moses, "Distributed Dispatching in the Parallel
// Server Model", DISC 2020). The unseen bookings of the peers go to the candidates of the lowest costs, as water fills
// a vessel, up to one level; a candidate is drawn in proportion to what it lacks of that level:
//
//	Σ max(0, level − cost_i) / each_i = unseen,   p_i ∝ max(0, level − cost_i) / each_i
//
// each_i is what a booking more would add to the candidate's cost, in the policy's own unit: the policy is asked again
// with the pool's mean booking on every candidate. fill is not ok where the policy has no costs, or a booking changes
// none.
func (k *core) fill(c *scratch, unseen float64) (int, bool) {
	if len(c.costs) < 2 || math.IsNaN(c.costs[0]) {
		return 0, false
	}
	explain, tossed := c.why.Explain, c.pcg // nothing is picked by the second asking
	c.why.Explain = false
	k.typical.put(c.ws, 1)
	_, _, ok := c.price(k.policy, &c.raised)
	k.typical.put(c.ws, -1)
	c.why.Explain, c.pcg = explain, tossed
	if !ok {
		return 0, false
	}
	lots := c.lowest()
	var weight, sum float64 // Σ 1/each, Σ cost/each of the lots below the level
	level, n := 0.0, 0
	for ; n < len(lots) && (n == 0 || lots[n].cost < level); n++ {
		l := &lots[n]
		if l.each = c.raised[l.index] - l.cost; !(l.each > 0) {
			return 0, false
		}
		weight, sum = weight+1/l.each, sum+l.cost/l.each
		level = (unseen + sum) / weight
	}
	left := c.rng.Float64() * unseen
	for _, l := range lots[:n] {
		if left -= max(0, level-l.cost) / l.each; left < 0 {
			return l.index, true
		}
	}
	return lots[0].index, true
}

// lowest sorts the candidates of the lowest costs.
func (c *scratch) lowest() []lot {
	lots := c.lots[:0]
	for i, cost := range c.costs {
		if len(lots) < widest {
			if lots = append(lots, lot{index: i, cost: cost}); len(lots) == widest {
				slices.SortFunc(lots, byLot)
			}
			continue
		}
		if cost >= lots[widest-1].cost {
			continue
		}
		at, _ := slices.BinarySearchFunc(lots, cost, func(l lot, cost float64) int { return cmp.Compare(l.cost, cost) })
		copy(lots[at+1:], lots[at:widest-1])
		lots[at] = lot{index: i, cost: cost}
	}
	if len(lots) < widest {
		slices.SortFunc(lots, byLot)
	}
	c.lots = lots
	return lots
}

// byLot orders by cost, equal ones as they came.
func byLot(a, b lot) int { return cmp.Or(cmp.Compare(a.cost, b.cost), cmp.Compare(a.index, b.index)) }
