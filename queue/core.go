package queue

import (
	"container/heap"
	"errors"
	"time"
)

// Core decides which ticket is next, which is refused and which has waited too long. Its clock is the argument now,
// which must not run backwards. It is not safe for concurrent use; see [Queue].
//
// A drain asks ticket after ticket whether there is room for it. One that takes any worker and has to wait holds up
// all behind it; one of a lane ([Item.Lane]) holds up that lane alone. A drain is due after a push, a cancel and an
// expiry: the first ticket may have been in the way of a smaller one.
type Core[V any] struct {
	cfg   Config
	ended func(t *Ticket[V], err error)

	classes []class
	turns   *turns       // nil without classes
	heads   []*Ticket[V] // memory for head, by class

	lanes    []*lane[V]          // the main line, then the others in no order
	byKey    map[string]*lane[V] // those others
	waiting  int                 // tickets in all of them
	holding  bool                // a lane is held
	before   []V                 // memory for Drain.Ahead
	lost     uint64              // first tickets of a lane that left without having been asked to
	oldest   *Ticket[V]          // by time of push; since all may wait equally long, by deadline as well
	newest   *Ticket[V]
	fresh    *Ticket[V] // the oldest that is not kept; all newer ones are not either
	sequence uint64
	draining bool
	aged     time.Time    // when all keys were computed last
	plans    bool         // requests have been passed: their workers are planned
	planning bool         // the drain plans, and grants nothing yet
	targets  bool         // requests have had a target
	round    uint64       // drains so far, and their resumptions
	passed   []*Ticket[V] // in this drain

	promotion promotion[V]
	gathering

	others   []peer    // that have something waiting, or had lately
	way      int       // Drain.Yield of the ticket that is asked
	over     bool      // that ticket need not leave room any longer
	yields   time.Time // since when each drain has left room to others; zero: the latest has not
	yielding bool      // this drain does

	kept      int   // tickets that count against Config.Limit
	keptBytes int64 // their bodies, against Config.Bytes
	stats     Stats
	rate      rate
}

// Stats are the figures of a queue.
type Stats struct {
	Waiting               int     // requests
	WaitingBytes          int64   // their bodies
	WaitingTokens         int64   // their prompts
	WaitingUncachedTokens int64   // the part of those to be computed
	GrantedPerSecond      float64 // while tickets wait, faded; 0 when none ever did

	GrantedTotal   uint64
	FailedTotal    uint64 // ended by an error of their reserve func
	RefusedTotal   uint64 // because the queue was full
	ExpiredTotal   uint64
	CancelledTotal uint64 // the caller left, or the queue was closed

	YieldedTotal      uint64 // that left room to another gateway's request for a moment; each once
	YieldsUnusedTotal uint64 // times when a request took after all what had been left to another gateway's

	Classes []ClassStats // in the order of Config.Classes; nil without
}

// NewCore returns an empty queue. cfg must be valid, and epoch about now. ended is called, within the call that
// causes it, once for every ticket that leaves the queue but is not cancelled: with nil if it was granted, else with
// ErrExpired, a [*FullError] or the error of reserve.
func NewCore[V any](cfg Config, epoch time.Time, ended func(t *Ticket[V], err error)) (*Core[V], error) {
	classes, turns, err := cfg.classes(epoch)
	if err != nil {
		return nil, err
	}
	return &Core[V]{
		cfg: cfg, ended: ended, classes: classes, turns: turns, heads: make([]*Ticket[V], len(classes)),
		lanes: []*lane[V]{{lines: make([]line[V], len(classes))}}, byKey: make(map[string]*lane[V]),
	}, nil
}

// Push puts t in the queue, or refuses it with a [*FullError]. During a drain, and while no ticket holds t up, limits
// are not checked: whether t has to wait is known when the drain ends, which refuses it then.
func (c *Core[V]) Push(t *Ticket[V], now time.Time) error {
	if t.Arrival.IsZero() {
		t.Arrival = now
	}
	t.place, t.kept, t.lane, t.older, t.newer = unqueued, false, nil, nil, nil
	if limit := c.met(t); limit != "" && c.waits(t) && !c.draining {
		return c.refuse(t, limit, now)
	}
	if t.Target <= 0 {
		t.Target = c.cfg.Target
	}
	c.targets = c.targets || t.Target > 0
	t.promoted, t.due = t.Promoted != nil && *t.Promoted, t.Arrival.Add(t.Target)
	c.sequence++
	t.sequence, t.pushed, t.key = c.sequence, now, c.classes[t.Class].order.Key(t.Item, now)
	c.join(t)
	c.link(t)
	return nil
}

// Drain grants from the front until all that are left have to wait, and returns how many were granted. reserve
// answers nil (granted), ErrWait, a [Later] or an error that ends the ticket; it must not call the Core.
func (c *Core[V]) Drain(now time.Time, reserve func(t *Ticket[V], d Drain[V]) error) (granted int) {
	for t := c.next(now); t != nil; t = c.next(now) {
		err := reserve(t, Drain[V]{c.ahead(t), c.round, c.planning, c.way})
		if c.waitsOn(t, err, now) {
			continue
		}
		if c.settle(t, err, now); err == nil {
			granted++
		}
	}
	c.stop(now)
	return granted
}

// waitsOn reports whether err has t wait on, and notes how.
func (c *Core[V]) waitsOn(t *Ticket[V], err error, now time.Time) bool {
	if c.way > 0 && errors.Is(err, ErrYield) {
		c.yielded(t, now)
	}
	if later, ok := errors.AsType[Later](err); ok {
		var p plan
		p.starts, p.takes, p.then, p.free = later.Later()
		c.pass(t, p)
		return true
	}
	if errors.Is(err, ErrWait) {
		c.hold(t)
		return true
	}
	return false
}

// next begins or continues a drain: it is the ticket to ask, nil when none is left. The ticket stays in the queue
// until it is settled.
func (c *Core[V]) next(now time.Time) *Ticket[V] {
	c.Expire(now)
	if !c.draining {
		c.round++
		c.gathered = time.Time{}
	}
	if !c.draining && (c.waiting <= maxPlanned || now.Sub(c.aged) >= ageing) {
		c.age(now)
	}
	if !c.draining {
		c.promotion.begin(c.round, now)
		c.planning = c.plans && c.targets && c.waiting > 1 && c.promotion.plans()
	}
	c.draining = true
	t := c.head()
	if t == nil && c.planning {
		c.planning = c.promote(now)
		c.resume()
		t = c.head()
	}
	if t != nil {
		c.way = c.makeWay(t, now)
	}
	return t
}

// ageing is how long the keys of an order that ages stand where more wait than a drain plans: a drain's cost would grow with
// the queue otherwise.
const ageing = 50 * time.Millisecond

// age computes the keys again that change with time.
func (c *Core[V]) age(now time.Time) {
	c.aged = now
	for k := range c.classes {
		order := c.classes[k].order
		if !order.Ages() {
			continue
		}
		for _, l := range c.lanes {
			for _, t := range l.lines[k] {
				t.key = order.Key(t.Item, now)
			}
			heap.Init(&l.lines[k])
		}
	}
}

// settle takes t out with the answer of its reserve func, not ErrWait. It reports false if t has left the queue while
// it was asked: the caller must release what was booked for it.
func (c *Core[V]) settle(t *Ticket[V], err error, now time.Time) bool {
	if !c.queued(t) {
		return false
	}
	if err != nil {
		c.stats.FailedTotal++
	} else {
		if t.Promoted != nil {
			*t.Promoted = t.promoted
		}
		c.stats.GrantedTotal++
		if c.over {
			c.retake(t, now)
		}
		c.classes[t.Class].granted(&t.Item)
		c.rate.grant(now)
		c.charge(t, true)
	}
	c.end(t, err, now)
	return true
}

// stop ends a drain. The tickets that came during it and have to wait are kept in the order in which they came, as
// far as the limits allow; the others are refused.
func (c *Core[V]) stop(now time.Time) {
	c.draining, c.planning = false, false
	c.predict(now)
	if !c.yielding {
		c.yields = time.Time{}
	}
	c.resume()
	for t := c.fresh; t != nil; t = c.fresh {
		if limit := c.met(t); limit != "" {
			c.end(t, c.refuse(t, limit, now), now)
			continue
		}
		c.keep(t, 1)
		c.fresh = t.newer
	}
	if c.waiting > 0 {
		c.rate.backlog(true, now)
	}
}

// cancel takes t out of the queue, because its caller leaves. It reports false if t is not in it.
func (c *Core[V]) cancel(t *Ticket[V], now time.Time) bool {
	if !c.queued(t) {
		return false
	}
	c.stats.CancelledTotal++
	c.lose(t)
	c.remove(t, now)
	return true
}

// Expire ends all that have waited for Config.Timeout.
func (c *Core[V]) Expire(now time.Time) {
	for t := c.oldest; t != nil && !now.Before(c.deadline(t)); t = c.oldest {
		c.stats.ExpiredTotal++
		c.lose(t)
		c.end(t, ErrExpired, now)
	}
}

// endAll ends all with err.
func (c *Core[V]) endAll(err error, now time.Time) {
	for t := c.oldest; t != nil; t = c.oldest {
		c.stats.CancelledTotal++
		c.end(t, err, now)
	}
}

// deadline is when t, which is or was in the queue, expires.
func (c *Core[V]) deadline(t *Ticket[V]) time.Time { return t.pushed.Add(c.cfg.Timeout) }

// queued reports whether t, once pushed, is still in the queue.
func (c *Core[V]) queued(t *Ticket[V]) bool { return t.place != unqueued }

// Len is how many are in the queue.
func (c *Core[V]) Len() int { return c.waiting }

// Stats is the present state and the totals.
func (c *Core[V]) Stats(now time.Time) Stats {
	s := c.stats
	s.Waiting = c.waiting
	s.GrantedPerSecond = c.rate.perSecond(now)
	if c.turns != nil {
		for i := range c.classes {
			s.Classes = append(s.Classes, c.classes[i].stats)
		}
	}
	return s
}

// met is the limit that keeping t would go over, or "". A lane has half of each limit at most, so that the others
// find a place however many wait in it; one ticket may always wait.
func (c *Core[V]) met(t *Ticket[V]) string {
	switch l, k := c.find(t), &c.classes[t.Class]; {
	case t.Retry:
		return ""
	case k.kept >= k.limit:
		return LimitRequests
	case t.Bytes > c.cfg.Bytes-c.keptBytes, k.kept > 0 && t.Bytes > k.bytes-k.keptBytes:
		return LimitBytes
	case t.Lane == "" || l == nil || l.kept == 0:
		return ""
	case l.kept >= (c.cfg.Limit+1)/2:
		return LimitRequests
	case t.Bytes > c.cfg.Bytes/2-l.keptBytes:
		return LimitBytes
	}
	return ""
}

// waits reports whether waiting tickets of its lane or of the main line hold t up.
func (c *Core[V]) waits(t *Ticket[V]) bool {
	l := c.find(t)
	return c.main().kept > 0 || l != nil && l.kept > 0
}

// lose counts t, which leaves without a grant, if it is the first of its lane.
func (c *Core[V]) lose(t *Ticket[V]) {
	if t.place == 0 {
		c.lost++
	}
}

// refuse counts t, which has met a limit, and is its error.
func (c *Core[V]) refuse(t *Ticket[V], limit string, now time.Time) error {
	k := &c.classes[t.Class]
	c.stats.RefusedTotal++
	k.stats.RefusedTotal++
	return &FullError{RetryAfter: c.retryAfter(now), Limit: limit, Class: k.stats.Name}
}

func (c *Core[V]) end(t *Ticket[V], err error, now time.Time) {
	c.remove(t, now)
	c.ended(t, err)
}

func (c *Core[V]) remove(t *Ticket[V], now time.Time) {
	c.quit(t)
	c.unlink(t)
	if c.waiting == 0 {
		c.rate.backlog(false, now)
		c.yields = time.Time{}
	}
}

// link makes t the newest.
func (c *Core[V]) link(t *Ticket[V]) {
	if t.older = c.newest; t.older != nil {
		t.older.newer = t
	} else {
		c.oldest = t
	}
	c.newest = t
	if c.fresh == nil {
		c.fresh = t
	}
	c.stats.add(&t.Item, 1)
}

func (c *Core[V]) unlink(t *Ticket[V]) {
	if c.fresh == t {
		c.fresh = t.newer
	}
	if t.older != nil {
		t.older.newer = t.newer
	} else {
		c.oldest = t.newer
	}
	if t.newer != nil {
		t.newer.older = t.older
	} else {
		c.newest = t.older
	}
	t.older, t.newer = nil, nil
	c.stats.add(&t.Item, -1)
}

func (s *Stats) add(it *Item, sign int64) {
	s.WaitingBytes += sign * it.Bytes
	s.WaitingTokens += sign * int64(it.ISL)
	s.WaitingUncachedTokens += sign * int64(it.Uncached)
}
