package queue

import "math"

// turns decides which class is next by deficit round robin (Shreedhar and Varghese, 1995), as Dynamo's router does
// (lib/kv-router, scheduling/policy_queue.rs). On its turn a class earns its quantum, and is served while its credit
// lasts; one that is blocked earns nothing, and one without requests loses its credit. Rounds in which no class could
// pay are added at once, so that a large cost takes no longer.
//
// Requests that a drain only plans are charged within that drain, so that those behind them are planned in the order in
// which they will be served. A grant behind them is out of turn: it is charged too, and the class is in debt until its
// turns have paid for it.
type turns struct {
	quanta []int64
	costs  []int64 // of each class's first request, or absent; the input of choose

	paid   credit // after grants
	drain  credit // and after this drain's plans
	chosen credit // and after the latest choice
	ahead  bool   // drain is ahead of paid
}

const (
	// absent is the cost of a class that must not be chosen.
	absent = -1
	// maxDebt is how many turns' worth of grants out of turn a class may owe.
	maxDebt = 16
)

// credit is an account of each class.
type credit struct {
	of     []int64 // tokens
	at     int     // whose turn it is
	earned bool    // that class has received its quantum
}

func newTurns(quanta []int64) *turns {
	d := &turns{quanta: quanta, costs: make([]int64, len(quanta))}
	for _, c := range []*credit{&d.paid, &d.drain, &d.chosen} {
		c.of = make([]int64, len(quanta))
	}
	return d
}

// choose returns the class to serve; one must not be absent. Nothing changes until [turns.pay].
func (d *turns) choose() int {
	c := &d.chosen
	c.copy(&d.drain)
	if k := c.round(d.quanta, d.costs); k >= 0 {
		return k
	}
	rounds := int64(math.MaxInt64)
	for k, cost := range d.costs {
		if cost != absent {
			rounds = min(rounds, (cost-c.of[k]-1)/d.quanta[k])
		}
	}
	for k, cost := range d.costs {
		if cost != absent {
			c.of[k] += rounds * d.quanta[k]
		}
	}
	return c.round(d.quanta, d.costs)
}

// round goes around the ring once and returns the first class that can pay, below 0 if none can.
func (c *credit) round(quanta, costs []int64) int {
	for range costs {
		k := c.at
		if costs[k] != absent {
			if c.of[k] < costs[k] && !c.earned {
				c.of[k] += quanta[k]
				c.earned = true
			}
			if c.of[k] >= costs[k] {
				return k
			}
		}
		c.at, c.earned = (k+1)%len(costs), false
	}
	return -1
}

// pay charges the chosen class k, beyond this drain only if granted.
func (d *turns) pay(k int, cost int64, granted bool) {
	d.chosen.of[k] -= cost
	d.drain.copy(&d.chosen)
	switch {
	case !granted:
		d.ahead = true
	case d.ahead:
		d.paid.of[k] = max(d.paid.of[k]-cost, -maxDebt*max(cost, d.quanta[k]))
	default:
		d.paid.copy(&d.chosen)
	}
}

// restart drops what was charged for plans.
func (d *turns) restart() {
	if d != nil {
		d.drain.copy(&d.paid)
		d.ahead = false
	}
}

// empty clears the credit and debt of a class without requests.
func (d *turns) empty(k int) {
	if d != nil {
		d.paid.of[k], d.drain.of[k], d.chosen.of[k] = 0, 0, 0
	}
}

func (c *credit) copy(o *credit) {
	copy(c.of, o.of)
	c.at, c.earned = o.at, o.earned
}
