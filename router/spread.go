package router

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// choose returns the candidate that the request's session is bound to, or the policy's pick. If costs do not separate
// the candidates, the session or a draw decides.
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
		k.divide(c) // the peers own other workers
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

// price runs the policy and keeps each candidate's cost, NaN without costs.
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

// widest bounds the candidates of a draw, lowest cost first.
const widest = 64

// lot is a candidate in a draw.
type lot struct {
	index int
	cost  float64
	each  float64 // cost of one more booking
}

// fill draws a candidate by Tidal Water Filling (Goren, Vargaftik and Moses, "Distributed Dispatching in the Parallel
// Server Model", DISC 2020). The unseen bookings of the peers go to the candidates of the lowest costs, as water fills
// a vessel, up to one level; a candidate is drawn in proportion to what it lacks of that level:
//
//	Σ max(0, level − cost_i) / each_i = unseen,   p_i ∝ max(0, level − cost_i) / each_i
//
// each_i is the cost of one more booking, from a second run of the policy with the pool's mean booking on every
// candidate. fill is not ok where the policy has no costs or a booking changes none.
func (k *core) fill(c *scratch, unseen float64) (int, bool) {
	if len(c.costs) < 2 || math.IsNaN(c.costs[0]) {
		return 0, false
	}
	explain, tossed := c.why.Explain, c.pcg // the second run picks nothing
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

// lowest sorts the candidates of lowest cost.
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

// byLot orders by cost, then by index.
func byLot(a, b lot) int { return cmp.Or(cmp.Compare(a.cost, b.cost), cmp.Compare(a.index, b.index)) }
