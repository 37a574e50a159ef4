package queue

import (
	"slices"
	"time"

	"github.com/zeebo/xxh3"
)

// Strict priority holds across the queues of several gateways without a queue of all: each reports the first of its
// waiting requests that have one ([Core.Heads]), and the others leave room to it for a moment ([Core.UpdatePeerHeads]).
// What they leave is bounded in time alone: a gateway that reports wrongly, or takes nothing, delays a request by
// yieldFor, once in each distrust.
const (
	// headAge is how old a report of another gateway may be. Each repeats its own every 20 ms, so that one may be lost.
	headAge = 50 * time.Millisecond
	// yieldFor is how long drain after drain may leave room to others. It takes a release of the room, which is reported
	// within 5 ms, the grant elsewhere and its report.
	yieldFor = 20 * time.Millisecond
	// distrust is for how long a gateway's heads do not count after they took nothing of what was left to them for all of
	// yieldFor: they wait for something else, or it does not work.
	distrust = time.Second
)

// Head is the request of a strict priority above 0 that goes first in a lane.
type Head struct {
	Lane   uint64 // hash of [Item.Lane]; 0 of a request that takes any worker
	Retry  bool   // whether it goes before all that are no retries: see [Item.Retry]
	Strict uint32 // its strict priority
	Key    uint64 // which request of its queue it is
	Tokens int    // its prompt's
}

// peer is the heads of another gateway's queue.
type peer struct {
	name       string
	heads      []Head
	until      time.Time // they count so long
	distrusted time.Time // until then they do not
}

// laneID is a lane's name in a Head.
func laneID(lane string) uint64 {
	if lane == "" {
		return 0
	}
	return xxh3.HashString(lane)
}

// alike reports whether h and o are of one lane, and both retries or none.
func (h Head) alike(o Head) bool { return h.Lane == o.Lane && h.Retry == o.Retry }

// Heads returns the Head of each lane, and of its retries, in which a request with a strict priority waits; nil where
// there is none. It looks at every waiting request.
func (c *Core[V]) Heads() []Head {
	var all []Head
	var first []*Ticket[V] // of each
	for t := c.oldest; t != nil; t = t.newer {
		if t.Strict == 0 {
			continue
		}
		h := t.head()
		switch i := slices.IndexFunc(all, h.alike); {
		case i < 0:
			all, first = append(all, h), append(first, t)
		case t.precedes(first[i]) && !first[i].precedes(t):
			all[i], first[i] = h, t
		}
	}
	return all
}

// UpdatePeerHeads replaces the heads of another gateway's queue with a copy of heads. It reports whether a head has gone
// while room is left to it here: a drain is due.
func (c *Core[V]) UpdatePeerHeads(name string, heads []Head, now time.Time) (gone bool) {
	i := slices.IndexFunc(c.others, func(o peer) bool { return o.name == name })
	if i < 0 {
		i = len(c.others)
		c.others = append(c.others, peer{name: name})
	}
	o := &c.others[i]
	for _, was := range o.heads {
		gone = gone || !slices.ContainsFunc(heads, func(h Head) bool { return h.alike(was) && h.Key == was.Key })
	}
	o.heads, o.until = append(o.heads[:0], heads...), now.Add(headAge)
	c.others = slices.DeleteFunc(c.others, func(o peer) bool {
		return (len(o.heads) == 0 || !now.Before(o.until)) && !now.Before(o.distrusted)
	})
	return gone && !c.yields.IsZero()
}

// above is the length of the shortest prompt that goes before one as t is; 0 where none counts.
func (o *peer) above(t Head, now time.Time) (tokens int) {
	if !now.Before(o.until) || now.Before(o.distrusted) {
		return 0
	}
	for _, h := range o.heads {
		if h.Strict > t.Strict && (h.Retry || !t.Retry) && (h.Lane == 0 || h.Lane == t.Lane) && (tokens == 0 || h.Tokens < tokens) {
			tokens = max(1, h.Tokens)
		}
	}
	return tokens
}

// makeWay is the length in tokens of the shortest prompt at another gateway that goes before t; 0 where there is none, or
// room has been left to them for long enough.
func (c *Core[V]) makeWay(t *Ticket[V], now time.Time) (tokens int) {
	c.over = false
	if len(c.others) == 0 || c.planning {
		return 0
	}
	one := t.head()
	for i := range c.others {
		if n := c.others[i].above(one, now); n > 0 && (tokens == 0 || n < tokens) {
			tokens = n
		}
	}
	if c.over = tokens > 0 && !c.yields.IsZero() && now.Sub(c.yields) >= yieldFor; c.over {
		return 0
	}
	return tokens
}

// retake notes that t was granted what had been left to others for long enough. Where there is no room any more, they
// have taken it.
func (c *Core[V]) retake(t *Ticket[V], now time.Time) {
	for i, one := 0, t.head(); i < len(c.others); i++ {
		if c.others[i].above(one, now) > 0 {
			c.others[i].distrusted = now.Add(distrust)
			c.stats.YieldsUnusedTotal++
		}
	}
}

// head is t as published to other gateways.
func (t *Ticket[V]) head() Head { return Head{laneID(t.Lane), t.Retry, t.Strict, t.sequence, t.ISL} }

// yielded notes that t waits on because room is left to another gateway's request.
func (c *Core[V]) yielded(t *Ticket[V], now time.Time) {
	if !c.queued(t) {
		return
	}
	if !t.yielded {
		t.yielded = true
		c.stats.YieldedTotal++
	}
	if c.yielding = true; c.yields.IsZero() {
		c.yields = now
	}
}
