package queue

import "math"

// turns decides which class is next: deficit round robin (Shreedhar and Varghese, 1995), as Dynamo's router has it
// (lib/kv-router, scheduling/policy_queue.rs). The classes stand in a ring. One whose turn comes earns its quantum, and is
// served while its credit pays; one that cannot be served earns nothing meanwhile, and one without requests loses its
// credit. A cost far above all quanta takes no longer: the rounds in which no class could pay are added at once.
//
// A drain asks ahead: requests that it only plans are charged for the drain alone, so that those behind them are planned in
// the order in which they will be served. What is granted behind them is out of turn. It is charged as well, and the
// class has debts until its turns have paid them.
type turns struct {
	quanta []int64
	costs  []int64 // of each class's first request, or absent: what choose chooses from

	paid   credit // by what was granted
	drain  credit // and by what this drain plans
	chosen credit // and with the turn of the latest choice
	ahead  bool   // drain is ahead of paid
}

const (
	// absent is the cost of a class that is not to be chosen.
	absent = -1
	// maxDebt is how many turns' worth a class may be in debt for what it was granted out of turn.
	maxDebt = 16
)

// credit is an account of each class.
type credit struct {
	of     []int64 // tokens
	at     int     // whose turn it is
	earned bool    // that class has its quantum for this turn
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

// round passes the ring once, and stops at the class that can pay; below 0 if none can.
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

// pay charges the chosen class k: for good if it was granted.
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

// restart has the next choice start from what was granted.
func (d *turns) restart() {
	if d != nil {
		d.drain.copy(&d.paid)
		d.ahead = false
	}
}

// empty takes the credit, and the debts, of a class without requests.
func (d *turns) empty(k int) {
	if d != nil {
		d.paid.of[k], d.drain.of[k], d.chosen.of[k] = 0, 0, 0
	}
}

func (c *credit) copy(o *credit) {
	copy(c.of, o.of)
	c.at, c.earned = o.at, o.earned
}
