package queue

import (
	"container/heap"
	"errors"
	"slices"
	"time"
)

// Core decides who is next, who is refused and who has waited too long. It has no clock: every call that needs one
// takes now, which must not run backwards. It is not safe for concurrent use; see [Queue].
//
// A drain asks ticket after ticket whether there is room for it. One that takes any worker and has to wait holds up
// all behind it; one of a lane ([Item.Lane]) holds up that lane alone (DESIGN.md). A drain is [Core.Drain], or, where
// asking must happen elsewhere, [Core.Next] and [Core.Settle] or [Core.Hold] for each and [Core.Stop] at the end. It
// is due after a push, and after a cancel or an expiry too: a first ticket may have been in the way of a smaller one.
type Core struct {
	cfg   Config
	order Order
	ended func(t *Ticket, err error)

	lanes    []*lane          // the main line, then the others in no order
	byKey    map[string]*lane // those others
	waiting  int              // tickets in all of them
	holding  bool             // a lane is held
	ahead    []any            // memory for Ahead
	lost     uint64           // first tickets of a lane that left without having been asked to
	oldest   *Ticket          // by time of push; since all may wait equally long, by deadline as well
	newest   *Ticket
	fresh    *Ticket // the oldest that is not kept; all newer ones are not either
	sequence uint64
	draining bool

	kept      int   // tickets that count against Config.Limit
	keptBytes int64 // their bodies, against Config.Bytes
	stats     Stats
	rate      rate
}

// Stats is what a queue has to say of itself.
type Stats struct {
	Waiting               int     // requests
	WaitingBytes          int64   // their bodies
	WaitingTokens         int64   // their prompts
	WaitingUncachedTokens int64   // the part of those that has to be computed
	GrantedPerSecond      float64 // while somebody waits, faded; 0 when nobody ever did

	GrantedTotal   uint64
	FailedTotal    uint64 // ended by an error of their reserve func
	RefusedTotal   uint64 // because the queue was full
	ExpiredTotal   uint64
	CancelledTotal uint64 // the caller left, or the queue was closed
}

// NewCore returns an empty queue. cfg must be valid, and epoch about now (see [Register]). ended is called, from
// within the call that brought it about, once for every ticket that leaves the queue other than by [Core.Cancel]:
// with nil when it was granted, else with ErrExpired, a [*FullError] or what reserve answered.
func NewCore(cfg Config, epoch time.Time, ended func(t *Ticket, err error)) (*Core, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	order, err := NewOrder(cfg.Policy, epoch)
	if err != nil {
		return nil, err
	}
	return &Core{cfg: cfg, order: order, ended: ended, lanes: []*lane{{}}, byKey: make(map[string]*lane)}, nil
}

// Push puts t in the queue. It refuses with a [*FullError] when those that were told to wait use up a limit. While
// none of them is in the main line or in t's lane, and in the midst of a drain, it takes t in without a look at the
// limits: whether t has to wait at all comes out when the drain ends, and t is refused then if it must.
func (c *Core) Push(t *Ticket, now time.Time) error {
	if t.Arrival.IsZero() {
		t.Arrival = now
	}
	t.place, t.kept, t.lane, t.older, t.newer = unqueued, false, nil, nil, nil
	if limit := c.met(t); limit != "" && c.waits(t) && !c.draining {
		c.stats.RefusedTotal++
		return c.full(limit, now)
	}
	c.sequence++
	t.sequence, t.pushed, t.key = c.sequence, now, c.order.Key(t.Item, now)
	c.join(t)
	c.link(t)
	return nil
}

// Drain grants from the front until all that are left have to wait. reserve is called for one ticket at a time and
// answers nil (granted), ErrWait or an error that ends the ticket; of the Core it must call nothing but [Core.Ahead].
// Drain returns how many were granted.
func (c *Core) Drain(now time.Time, reserve func(t *Ticket) error) (granted int) {
	for t := c.Next(now); t != nil; t = c.Next(now) {
		err := reserve(t)
		if errors.Is(err, ErrWait) {
			c.Hold(t)
			continue
		}
		if c.Settle(t, err, now); err == nil {
			granted++
		}
	}
	c.Stop(now)
	return granted
}

// Next is the ticket to ask, or nil when none is left that may be granted. It begins a drain, or goes on with it. The ticket stays in
// the queue until it is settled. Those that have waited too long are not asked any more.
func (c *Core) Next(now time.Time) *Ticket {
	c.Expire(now)
	if !c.draining && c.order.Ages() {
		for _, l := range c.lanes {
			for _, t := range l.line {
				t.key = c.order.Key(t.Item, now)
			}
			heap.Init(&l.line)
		}
	}
	c.draining = true
	return c.Head()
}

// Settle takes t out with what its reserve func answered, nil or an error that is not ErrWait. It reports false,
// and does nothing, when t has left the queue while it was asked: what was booked for it is the caller's to release.
func (c *Core) Settle(t *Ticket, err error, now time.Time) bool {
	if !c.Queued(t) {
		return false
	}
	if err != nil {
		c.stats.FailedTotal++
	} else {
		c.stats.GrantedTotal++
		c.rate.grant(now)
	}
	c.end(t, err, now)
	return true
}

// Stop ends a drain. Who came while it went on, and now turns out to have to wait, is kept as far as the limits
// allow, in the order in which they came; the others are refused.
func (c *Core) Stop(now time.Time) {
	c.draining = false
	c.Resume()
	for t := c.fresh; t != nil; t = c.fresh {
		if limit := c.met(t); limit != "" {
			c.stats.RefusedTotal++
			c.end(t, c.full(limit, now), now)
			continue
		}
		t.kept = true
		c.kept++
		c.keptBytes += t.Bytes
		t.lane.kept++
		t.lane.keptBytes += t.Bytes
		c.fresh = t.newer
	}
	if c.waiting > 0 {
		c.rate.backlog(true, now)
	}
}

// Cancel takes t out of the queue, because its caller leaves. It reports false when t is not in it. Its place is
// free at once.
func (c *Core) Cancel(t *Ticket, now time.Time) bool {
	if !c.Queued(t) {
		return false
	}
	c.stats.CancelledTotal++
	c.lose(t)
	c.remove(t, now)
	return true
}

// Expire ends all that have waited for Config.Timeout.
func (c *Core) Expire(now time.Time) {
	for t := c.oldest; t != nil && !now.Before(c.Deadline(t)); t = c.oldest {
		c.stats.ExpiredTotal++
		c.lose(t)
		c.end(t, ErrExpired, now)
	}
}

// End ends all with err.
func (c *Core) End(err error, now time.Time) {
	for t := c.oldest; t != nil; t = c.oldest {
		c.stats.CancelledTotal++
		c.end(t, err, now)
	}
}

// NextWake is when [Core.Expire] has something to do next; zero when nobody waits.
func (c *Core) NextWake() time.Time {
	if c.oldest == nil {
		return time.Time{}
	}
	return c.Deadline(c.oldest)
}

// Deadline is when t, which is or was in the queue, expires.
func (c *Core) Deadline(t *Ticket) time.Time { return t.pushed.Add(c.cfg.Timeout) }

// Queued reports whether t, once pushed, is still in the queue.
func (c *Core) Queued(t *Ticket) bool { return t.place != unqueued }

// Len is how many are in the queue.
func (c *Core) Len() int { return c.waiting }

// Waiting is all tickets in the queue, the next one first. It sorts a copy, for whoever looks in.
func (c *Core) Waiting() []*Ticket {
	var all []*Ticket
	for _, l := range c.lanes {
		all = append(all, l.line...)
	}
	slices.SortFunc(all, func(a, b *Ticket) int {
		if a.before(b) {
			return -1
		}
		return 1
	})
	return all
}

// Stats is the present state and the totals.
func (c *Core) Stats(now time.Time) Stats {
	s := c.stats
	s.Waiting = c.waiting
	s.GrantedPerSecond = c.rate.perSecond(now)
	return s
}

// RetryAfter is when a request that is refused now should come again: those that wait over the observed drain
// rate, in whole seconds from 1 to 60. The rate is that of the last ten seconds or so in which somebody waited.
// Where nothing was granted yet, it is as long again as the oldest has waited in vain.
func (c *Core) RetryAfter(now time.Time) time.Duration {
	var waited time.Duration
	if c.oldest != nil {
		waited = now.Sub(c.oldest.pushed)
	}
	return c.rate.retryAfter(c.kept, waited, now)
}

// met is the limit that keeping t would go over, or "". A lane has half of each limit at most, so that the others
// find a place however many wait in it; one ticket may always wait.
func (c *Core) met(t *Ticket) string {
	switch l := c.find(t); {
	case t.Retry:
		return ""
	case c.kept >= c.cfg.Limit:
		return "queue-limit"
	case t.Bytes > c.cfg.Bytes-c.keptBytes:
		return "queue-bytes"
	case t.Lane == "" || l == nil || l.kept == 0:
		return ""
	case l.kept >= (c.cfg.Limit+1)/2:
		return "queue-limit"
	case t.Bytes > c.cfg.Bytes/2-l.keptBytes:
		return "queue-bytes"
	}
	return ""
}

// waits reports whether t would stand with tickets that were told to wait, which hold it up.
func (c *Core) waits(t *Ticket) bool {
	l := c.find(t)
	return c.main().kept > 0 || l != nil && l.kept > 0
}

// lose counts t, which leaves without a grant, if it is the first of its lane.
func (c *Core) lose(t *Ticket) {
	if t.place == 0 {
		c.lost++
	}
}

func (c *Core) full(limit string, now time.Time) error {
	return &FullError{RetryAfter: c.RetryAfter(now), Limit: limit}
}

func (c *Core) end(t *Ticket, err error, now time.Time) {
	c.remove(t, now)
	c.ended(t, err)
}

func (c *Core) remove(t *Ticket, now time.Time) {
	c.quit(t)
	c.unlink(t)
	if c.waiting == 0 {
		c.rate.backlog(false, now)
	}
	if t.kept {
		c.kept--
		c.keptBytes -= t.Bytes
	}
}

// link makes t the newest.
func (c *Core) link(t *Ticket) {
	if t.older = c.newest; t.older != nil {
		t.older.newer = t
	} else {
		c.oldest = t
	}
	c.newest = t
	if c.fresh == nil {
		c.fresh = t
	}
	c.stats.add(t, 1)
}

func (c *Core) unlink(t *Ticket) {
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
	c.stats.add(t, -1)
}

func (s *Stats) add(t *Ticket, sign int64) {
	s.WaitingBytes += sign * t.Bytes
	s.WaitingTokens += sign * int64(t.ISL)
	s.WaitingUncachedTokens += sign * int64(t.Uncached)
}
