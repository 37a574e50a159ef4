package queue

import (
	"slices"
	"time"

	"github.com/zeebo/xxh3"
)

// Strict priority holds across the queues of several gateways without a common queue: each publishes the first of its
// waiting requests that have one ([Core.Heads]), and the others yield to it briefly ([Core.UpdatePeerHeads]). A gateway
// that publishes wrong heads, or takes nothing, delays a request by yieldFor at most, once per distrust.
const (
	// headAge is how long a peer's heads are valid. Peers repeat them every 20 ms, so that one message may be lost.
	headAge = 50 * time.Millisecond
	// yieldFor is how long consecutive drains may yield. It covers a release, published within 5 ms, the grant at the
	// peer and its message.
	yieldFor = 20 * time.Millisecond
	// distrust is how long a peer's heads are ignored after they did not take what was left to them for yieldFor.
	distrust = time.Second
)

// Head is a lane's first request with a strict priority above 0.
type Head struct {
	Lane   uint64 // hash of [Item.Lane]; 0 for a request that takes any worker
	Retry  bool   // see [Item.Retry]
	Strict uint32 // its strict priority
	Key    uint64 // which request of its queue it is
	Tokens int    // its prompt's
}

// peer is the heads of another gateway's queue.
type peer struct {
	name       string
	heads      []Head
	until      time.Time // they are valid until then
	distrusted time.Time // they are ignored until then
}

func laneID(lane string) uint64 {
	if lane == "" {
		return 0
	}
	return xxh3.HashString(lane)
}

// alike reports whether h and o are of one lane, and both retries or none.
func (h Head) alike(o Head) bool { return h.Lane == o.Lane && h.Retry == o.Retry }

// Heads returns the Head of each lane and of its retries with a strict priority; nil for none. It visits every waiting
// request.
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

// UpdatePeerHeads replaces the heads of another gateway's queue with a copy of heads. It reports whether a drain is due,
// because a head is gone that this queue yields to.
func (c *Core[V]) UpdatePeerHeads(name string, heads []Head, now time.Time) (gone bool) {
	i := slices.IndexFunc(c.peers, func(o peer) bool { return o.name == name })
	if i < 0 {
		i = len(c.peers)
		c.peers = append(c.peers, peer{name: name})
	}
	o := &c.peers[i]
	for _, was := range o.heads {
		gone = gone || !slices.ContainsFunc(heads, func(h Head) bool { return h.alike(was) && h.Key == was.Key })
	}
	o.heads, o.until = append(o.heads[:0], heads...), now.Add(headAge)
	c.peers = slices.DeleteFunc(c.peers, func(o peer) bool {
		return (len(o.heads) == 0 || !now.Before(o.until)) && !now.Before(o.distrusted)
	})
	return gone && !c.yields.IsZero()
}

// above returns the length of the shortest prompt that goes before t, 0 for none.
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

// makeWay returns the length in tokens of the shortest prompt at another gateway that goes before t; 0 if there is
// none, or if yielding has lasted long enough.
func (c *Core[V]) makeWay(t *Ticket[V], now time.Time) (tokens int) {
	c.over = false
	if len(c.peers) == 0 || c.planning {
		return 0
	}
	one := t.head()
	for i := range c.peers {
		if n := c.peers[i].above(one, now); n > 0 && (tokens == 0 || n < tokens) {
			tokens = n
		}
	}
	if c.over = tokens > 0 && !c.yields.IsZero() && now.Sub(c.yields) >= yieldFor; c.over {
		return 0
	}
	return tokens
}

// retake distrusts the peers that did not take the room which t was granted now.
func (c *Core[V]) retake(t *Ticket[V], now time.Time) {
	for i, one := 0, t.head(); i < len(c.peers); i++ {
		if c.peers[i].above(one, now) > 0 {
			c.peers[i].distrusted = now.Add(distrust)
			c.stats.YieldsUnusedTotal++
		}
	}
}

// head returns t as published to other gateways.
func (t *Ticket[V]) head() Head { return Head{laneID(t.Lane), t.Retry, t.Strict, t.sequence, t.ISL} }

// yielded records that t yields to another gateway's request.
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
