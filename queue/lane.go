package queue

import "container/heap"

// maxLanes bounds the lanes besides the main line and the shared lane. A drain tries once in each lane; further tickets
// share one lane and block each other.
const maxLanes = 64

// lane holds tickets that block each other: the main line those for any worker, another lane those of one [Item.Lane].
// The main line always exists; another lane exists while it has tickets.
type lane[V any] struct {
	key    string    // shared for several values of Item.Lane
	lines  []line[V] // by class
	size   int       // its tickets, planned ones included
	held   bool      // its first ticket has to wait in this drain
	holder int       // that ticket's class

	kept      int   // tickets that count against Config.Limit
	keptBytes int64 // their bodies, against Config.Bytes
}

// shared is the key of the lane for tickets beyond maxLanes.
const shared = ""

func (c *Core[V]) main() *lane[V] { return c.lanes[0] }

// find returns the lane of t, nil if it does not exist yet.
func (c *Core[V]) find(t *Ticket[V]) *lane[V] {
	switch l := c.byKey[t.Lane]; {
	case t.Lane == "":
		return c.main()
	case l == nil && len(c.byKey) >= maxLanes:
		return c.byKey[shared]
	default:
		return l
	}
}

func (c *Core[V]) join(t *Ticket[V]) {
	l := c.find(t)
	if l == nil {
		l = &lane[V]{key: t.Lane, lines: make([]line[V], len(c.classes))}
		if len(c.byKey) >= maxLanes {
			l.key = shared
		}
		c.byKey[l.key] = l
		c.lanes = append(c.lanes, l)
	}
	t.lane = l
	l.size++
	heap.Push(&l.lines[t.Class], t)
	c.waiting++
	c.classes[t.Class].add(&t.Item, 1)
}

// quit removes t from its lane, and an empty lane.
func (c *Core[V]) quit(t *Ticket[V]) {
	l := t.lane
	if t.place <= aside {
		c.passed[aside-t.place] = nil
		t.place = unqueued
	} else {
		heap.Remove(&l.lines[t.Class], t.place)
	}
	c.waiting--
	if k := &c.classes[t.Class]; k.add(&t.Item, -1) == 0 {
		c.turns.empty(t.Class)
	}
	l.size--
	if t.kept {
		c.keep(t, -1)
	}
	if l.size > 0 || l == c.main() {
		return
	}
	delete(c.byKey, l.key)
	for i, o := range c.lanes {
		if o == l {
			last := len(c.lanes) - 1
			c.lanes[i], c.lanes[last] = c.lanes[last], nil
			c.lanes = c.lanes[:last]
			return
		}
	}
}

// keep counts waiting ticket t against the limits, or with −1 stops counting it.
func (c *Core[V]) keep(t *Ticket[V], sign int) {
	bytes, l, k := int64(sign)*t.Bytes, t.lane, &c.classes[t.Class]
	t.kept = sign > 0
	c.kept, c.keptBytes = c.kept+sign, c.keptBytes+bytes
	l.kept, l.keptBytes = l.kept+sign, l.keptBytes+bytes
	k.kept, k.keptBytes = k.kept+sign, k.keptBytes+bytes
}

// head returns the next ticket to try, or nil: the leading one of the first tickets of all lanes that are not blocked.
// What is behind the main line's first is blocked with it, since that ticket takes any room.
func (c *Core[V]) head() *Ticket[V] {
	var head *Ticket[V]
	if c.turns == nil {
		head = c.first(0)
	} else {
		for k := range c.heads {
			c.heads[k] = c.first(k)
		}
		head = c.leading()
	}
	if m := c.main(); head != nil && m.held && len(m.lines[m.holder]) > 0 && m.lines[m.holder][0].precedes(head) {
		return nil
	}
	return head
}

// first returns the class's first ticket of all lanes that are not blocked.
func (c *Core[V]) first(class int) (first *Ticket[V]) {
	for _, l := range c.lanes {
		if line := l.lines[class]; len(line) > 0 && !l.held && (first == nil || line[0].before(first)) {
			first = line[0]
		}
	}
	return first
}

// hold makes t, which next returned, wait: it blocks its lane until the drain ends or is resumed.
func (c *Core[V]) hold(t *Ticket[V]) {
	if c.queued(t) {
		t.lane.held, t.lane.holder = true, t.Class
		c.holding = true
	}
}

// pass makes t, which next returned, wait by this plan without holding up others. If no worker is free, all others of
// its lane would wait on too: only a drain that plans asks them.
func (c *Core[V]) pass(t *Ticket[V], p plan) {
	if !c.queued(t) {
		return
	}
	t.plan, c.plans = p, true
	c.charge(t, false)
	heap.Remove(&t.lane.lines[t.Class], t.place)
	t.place = aside - len(c.passed)
	if c.passed = append(c.passed, t); len(c.passed) >= maxPlanned || p.free > 0 && !c.planning {
		t.lane.held, t.lane.holder, c.holding = true, t.Class, true // a drain's cost stays bounded, however many wait
	}
}

// aside is the place of the first ticket that was passed in this drain; those behind it have smaller ones.
const aside = unqueued - 1

// resume lets the drain retry the tickets that it holds or passed: something changed since.
func (c *Core[V]) resume() {
	c.round++
	for _, t := range c.passed {
		if t != nil {
			heap.Push(&t.lane.lines[t.Class], t)
		}
	}
	clear(c.passed)
	c.passed = c.passed[:0]
	c.holding, c.yielding = false, false
	c.turns.restart()
	for _, l := range c.lanes {
		l.held = false
	}
}

// ahead returns the values for [Drain.Ahead] of t, valid until the next call.
func (c *Core[V]) ahead(t *Ticket[V]) []V {
	clear(c.before)
	c.before = c.before[:0]
	if c.holding {
		for _, l := range c.lanes {
			if !l.held || l == c.main() {
				continue
			}
			if line := l.lines[l.holder]; len(line) > 0 && line[0].precedes(t) {
				c.before = append(c.before, line[0].Value)
			}
		}
	}
	return c.before
}
