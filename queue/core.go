package queue

import (
	"container/heap"
	"errors"
	"time"
)

// Core decides which ticket is next, which is refused and which expires. Its clock is the argument now, which must not
// run backwards. It is not safe for concurrent use; see [Queue].
//
// A drain tries to reserve for one ticket after another. A ticket for any worker that has to wait blocks all behind it;
// one of a lane ([Item.Lane]) blocks only that lane. A drain is due after a push, a cancel and an expiry: the first
// ticket may have blocked a smaller one.
type Core[V any] struct {
	cfg   Config
	ended func(t *Ticket[V], err error)

	classes []class
	turns   *turns       // nil without classes
	heads   []*Ticket[V] // memory for head, by class

	lanes    []*lane[V]          // the main line, then the others, unordered
	byKey    map[string]*lane[V] // the others
	waiting  int                 // tickets in all of them
	holding  bool                // a lane is held
	before   []V                 // memory for Drain.Ahead
	lost     uint64              // first tickets of a lane that left without a grant
	oldest   *Ticket[V]          // by time of push, and so by deadline
	newest   *Ticket[V]
	fresh    *Ticket[V] // the oldest ticket not counted yet; newer ones are not either
	sequence uint64
	draining bool
	aged     time.Time    // when all keys were last computed
	plans    bool         // requests were planned before
	planning bool         // the drain only plans
	targets  bool         // requests had a target before
	round    uint64       // drains so far, resumed ones counted again
	passed   []*Ticket[V] // in this drain

	promotion promotion[V]
	gathering

	peers    []peer    // with waiting requests, now or recently
	way      int       // Drain.Yield of the ticket being tried
	over     bool      // that ticket need not yield any longer
	yields   time.Time // since when each drain has yielded; zero: the latest has not
	yielding bool      // this drain yields

	kept      int   // tickets that count against Config.Limit
	keptBytes int64 // their bodies, against Config.Bytes
	stats     Stats
	rate      rate
}

// Stats are the figures of a queue.
type Stats struct {
	Waiting               int           // requests
	Oldest                time.Duration // the longest wait so far
	WaitingBytes          int64         // their bodies
	WaitingTokens         int64         // their prompts
	WaitingUncachedTokens int64         // the part of those to be computed
	GrantedPerSecond      float64       // while tickets wait, decayed; 0 if none ever did

	GrantedTotal   uint64
	FailedTotal    uint64 // ended by an error of their reserve func
	RefusedTotal   uint64 // because the queue was full
	ExpiredTotal   uint64
	CancelledTotal uint64 // the caller left, or the queue was closed

	YieldedTotal      uint64 // requests that yielded to another gateway's; each once
	YieldsUnusedTotal uint64 // grants of room that another gateway did not take

	Classes []ClassStats // in the order of Config.Classes; nil without
}

// NewCore returns an empty queue. cfg must be valid, and epoch about now. ended is called once for every ticket that
// leaves the queue without being cancelled: with nil if it was granted, else with ErrExpired, a [*FullError] or
// reserve's error.
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

// Push adds t to the queue, or refuses it with a [*FullError]. During a drain, and while no ticket blocks t, limits are
// not checked: only the end of the drain shows whether t has to wait, and refuses it then.
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

// Drain grants from the front until all remaining tickets have to wait, and returns how many it granted. reserve
// returns nil for a grant, ErrWait, a [Later] or an error that ends the ticket; it must not call the Core.
func (c *Core[V]) Drain(now time.Time, reserve func(t *Ticket[V], d Drain[V]) error) (granted int) {
	for t := c.next(now); t != nil; t = c.next(now) {
		err := reserve(t, Drain[V]{c.ahead(t), c.round, c.planning, c.way})
		if c.waitsOn(t, err, now) {
			continue
		}
		if c.finish(t, err, now); err == nil {
			granted++
		}
	}
	c.stop(now)
	return granted
}

// waitsOn reports whether t keeps waiting after err, and records how.
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

// next starts or continues a drain and returns the ticket to try, nil if none is left. The ticket stays in the queue
// until finish.
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

// ageing is the interval between updates of an ageing order's keys if more tickets wait than a drain plans: otherwise a
// drain's cost would grow with the queue.
const ageing = 50 * time.Millisecond

// age updates the keys that change with time.
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

// finish removes t with the result of its reserve func, which is not ErrWait. It reports false if t left the queue
// meanwhile: the caller must release its booking.
func (c *Core[V]) finish(t *Ticket[V], err error, now time.Time) bool {
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

// stop ends a drain. Tickets that arrived during it and have to wait are kept, oldest first, within the limits; the
// others are refused.
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

// cancel removes t, whose caller leaves. It reports false if t is not in the queue.
func (c *Core[V]) cancel(t *Ticket[V], now time.Time) bool {
	if !c.queued(t) {
		return false
	}
	c.stats.CancelledTotal++
	c.lose(t)
	c.remove(t, now)
	return true
}

// Expire ends all tickets that have waited for Config.Timeout.
func (c *Core[V]) Expire(now time.Time) {
	for t := c.oldest; t != nil && !now.Before(c.deadline(t)); t = c.oldest {
		c.stats.ExpiredTotal++
		c.lose(t)
		c.end(t, ErrExpired, now)
	}
}

// endAll ends all tickets with err.
func (c *Core[V]) endAll(err error, now time.Time) {
	for t := c.oldest; t != nil; t = c.oldest {
		c.stats.CancelledTotal++
		c.end(t, err, now)
	}
}

// deadline returns when t expires.
func (c *Core[V]) deadline(t *Ticket[V]) time.Time { return t.pushed.Add(c.cfg.Timeout) }

// queued reports whether t, once pushed, is still in the queue.
func (c *Core[V]) queued(t *Ticket[V]) bool { return t.place != unqueued }

// Len returns the number of tickets in the queue.
func (c *Core[V]) Len() int { return c.waiting }

// Stats returns the current state and the totals.
func (c *Core[V]) Stats(now time.Time) Stats {
	s := c.stats
	s.Waiting = c.waiting
	if c.oldest != nil {
		s.Oldest = now.Sub(c.oldest.pushed)
	}
	s.GrantedPerSecond = c.rate.perSecond(now)
	if c.turns != nil {
		for i := range c.classes {
			s.Classes = append(s.Classes, c.classes[i].stats)
		}
	}
	return s
}

// met returns the limit that t would exceed, or "". A lane may use half of each limit, so that it cannot crowd out
// others; one ticket may always wait.
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

// waits reports whether waiting tickets of its lane or of the main line block t.
func (c *Core[V]) waits(t *Ticket[V]) bool {
	l := c.find(t)
	return c.main().kept > 0 || l != nil && l.kept > 0
}

// lose counts t, which leaves without a grant, if it is first in its lane.
func (c *Core[V]) lose(t *Ticket[V]) {
	if t.place == 0 {
		c.lost++
	}
}

// refuse counts t, which exceeds a limit, and returns its error.
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

// link adds t as the newest.
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
