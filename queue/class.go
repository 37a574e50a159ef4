package queue

import (
	"math"
	"time"
)

// class is the state of a policy class. Without configured classes all requests are in one without a name.
type class struct {
	order Order
	stats ClassStats

	limit, kept      int   // its share of Config.Limit, and the tickets in it
	bytes, keptBytes int64 // the same for Config.Bytes
}

// ClassStats are the figures of one policy class.
type ClassStats struct {
	Name                  string
	Waiting               int   // requests
	WaitingTokens         int64 // their prompts
	WaitingUncachedTokens int64 // the part of those to be computed
	GrantedTotal          uint64
	GrantedTokensTotal    uint64 // computed for grants: what the class paid
	RefusedTotal          uint64 // because the class's share of a limit was used up
}

// classes returns cfg's classes and their turns; nil turns for one class.
func (c *Config) classes(epoch time.Time) ([]class, *turns, error) {
	list := []PolicyClass{{Quantum: 1}}
	if c.Classes != nil {
		list = c.Classes.List
	}
	all, quanta, sum := make([]class, len(list)), make([]int64, len(list)), 0
	for i, p := range list {
		quanta[i] = int64(p.Quantum)
		sum += p.Quantum
	}
	for i, p := range list {
		order, err := newOrder(p.policy(c), epoch)
		if err != nil {
			return nil, nil, err
		}
		all[i] = class{order: order, stats: ClassStats{Name: p.Name}, limit: share(c.Limit, p.Quantum, sum),
			bytes: int64(share(int(c.Bytes), p.Quantum, sum))}
	}
	if c.Classes == nil {
		return all, nil, nil
	}
	return all, newTurns(quanta), nil
}

// share returns quantum's part of a limit, rounded up.
func share(limit, quantum, sum int) int {
	return min(limit, int(math.Ceil(float64(limit)*float64(quantum)/float64(sum))))
}

// add counts an arriving ticket, or with −1 a leaving one, and returns the number in the queue.
func (k *class) add(it *Item, sign int) int {
	k.stats.Waiting += sign
	k.stats.WaitingTokens += int64(sign * it.ISL)
	k.stats.WaitingUncachedTokens += int64(sign * it.Uncached)
	return k.stats.Waiting
}

func (k *class) granted(it *Item) {
	k.stats.GrantedTotal++
	k.stats.GrantedTokensTotal += uint64(it.cost())
}

// leading returns the next ticket of heads, the first ones of each class; nil if all are nil. Retries go first, by
// arrival: their classes have paid. Then the highest strict priority goes first, and among several classes the one
// whose turn it is.
func (c *Core[V]) leading() *Ticket[V] {
	var top *Ticket[V]
	for _, t := range c.heads {
		if t != nil && (top == nil || t.tier(top) < 0 || t.Retry && top.Retry && t.Strict == top.Strict && t.earlier(top)) {
			top = t
		}
	}
	if top == nil || top.Retry {
		return top
	}
	for k, t := range c.heads {
		c.turns.costs[k] = absent
		if t != nil && t.tier(top) == 0 {
			c.turns.costs[k] = t.cost()
		}
	}
	return c.heads[c.turns.choose()]
}

// charge makes t's class pay for it: the ticket last returned by [Core.head] was granted or, if not, planned.
func (c *Core[V]) charge(t *Ticket[V], granted bool) {
	if c.turns != nil && !t.Retry {
		c.turns.pay(t.Class, t.cost(), granted)
	}
}

// tier is below 0 if t goes before o whatever their classes, 0 if their classes decide.
func (t *Ticket[V]) tier(o *Ticket[V]) int {
	switch {
	case t.Retry != o.Retry && t.Retry, t.Retry == o.Retry && t.Strict > o.Strict:
		return -1
	case t.Retry != o.Retry || t.Strict != o.Strict:
		return 1
	}
	return 0
}

func (t *Ticket[V]) earlier(o *Ticket[V]) bool {
	if !t.Arrival.Equal(o.Arrival) {
		return t.Arrival.Before(o.Arrival)
	}
	return t.sequence < o.sequence
}

// precedes reports whether t, which was tried, goes before o.
func (t *Ticket[V]) precedes(o *Ticket[V]) bool {
	if t.Class == o.Class {
		return t.before(o)
	}
	return t.tier(o) <= 0
}

// policy returns the name of the class's order.
func (p *PolicyClass) policy(c *Config) string {
	if p.Policy != "" {
		return p.Policy
	}
	return c.Policy
}
