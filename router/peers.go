package router

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router/load"
)

// Peers is what a router asks about the other gateways that book on its pool's workers. Its methods are called under
// the router's lock, allocate nothing and answer at once.
type Peers interface {
	// Unseen is how many bookings the peers have probably made on workers of p that this gateway does not know of
	// yet: their rate times the delay of their messages. It is 0 where nothing is shared.
	Unseen(p *pools.Pool) float64
	// Delay is how long their messages take.
	Delay() time.Duration
	// Group is the gateways last known, this one among them; nil where they are not known yet. It is another pointer
	// after each change, and what it points to is never written to.
	Group() *Group
	// CutOff reports that there are peers and none can be heard.
	CutOff() bool
}

// fewUnseen is how many unseen bookings change no choice.
const fewUnseen = 0.5

// divide leaves a gateway that hears no peer the workers that it owns. Others stay where they hold more than half of
// the prompt, and all stay where no own one has room: nothing is refused because peers are silent.
func (k *core) divide(c *scratch) {
	owns, half := k.owns(c.view), c.query.blocks()/2
	if owns == nil || !c.any(func(w *candidate) bool {
		return owns[w.slot] && (float64(w.Load.PrefillTokens) <= c.view.slots[w.slot].busyAbove || c.query.late)
	}) {
		return
	}
	c.keep(func(w *candidate) bool { return w.Overlap > half || owns[w.slot] })
}

// unseen is how many bookings the peers have probably made that are not known here yet: their rate times the delay of their
// messages, or, where that is more, what this gateway itself has booked within the delay, for each of them. A burst that a
// balancer deals out comes to all of them in one moment, when their rate says nothing of it yet.
func (k *core) unseen(p *pools.Pool, now time.Time) float64 {
	burst := 0
	if group := k.cfg.Peers.Group(); group != nil {
		burst = (len(group.Names) - 1) * k.moments.since(now.Add(-k.cfg.Peers.Delay()))
	}
	return max(k.cfg.Peers.Unseen(p), float64(burst))
}

// moments are the times of the latest bookings.
type moments struct {
	at   [16]time.Time
	next int
}

func (m *moments) add(now time.Time) {
	m.at[m.next] = now
	m.next = (m.next + 1) % len(m.at)
}

// since counts those after a time, as far as they are known.
func (m *moments) since(t time.Time) int {
	n := 0
	for n < len(m.at) && m.at[(m.next-1-n+2*len(m.at))%len(m.at)].After(t) {
		n++
	}
	return n
}

// typical is the mean of a pool's bookings, the latest weighing most.
type typical struct {
	bookings float64 // counted, up to memory
	prefill  float64 // tokens
	blocks   float64
	takes    float64 // nanoseconds of prefill
}

// memory is over how many bookings the mean goes.
const memory = 64

// add counts a booking of so many blocks.
func (t *typical) add(e *load.Event, blocks int) {
	t.bookings = min(t.bookings+1, memory)
	part := 1 / t.bookings
	t.prefill += float64(part * (float64(e.PrefillTokens) - t.prefill))
	t.blocks += float64(part * (float64(blocks) - t.blocks))
	t.takes += float64(part * (float64(e.PrefillTime) - t.takes))
}

// put adds n typical bookings, or takes them off, to what the candidates are compared by.
func (t *typical) put(ws []candidate, n int) {
	prefill, blocks, takes := n*int(math.Round(t.prefill)), n*int(math.Round(t.blocks)), time.Duration(n)*time.Duration(math.Round(t.takes))
	for i := range ws {
		w := &ws[i]
		w.Load.PrefillTokens += prefill
		w.Load.ActiveBlocks += blocks
		w.Load.Requests += n
		w.Left += takes
	}
}

// reserve readies c for workers of which a part is their owner's to book, so that two gateways do not grant the last
// room twice: the blocks that the unseen bookings should take, and a tenth of the worker at most. A gateway that hears no
// peer keeps none: it would wait for room of which it cannot hear.
func (k *core) reserve(c *scratch) {
	if k.cfg.Peers == nil || k.cfg.Peers.CutOff() {
		return
	}
	if c.reserved = int(math.Ceil(float64(k.cfg.Peers.Unseen(c.view.pool) * k.typical.blocks))); c.reserved > 0 {
		c.owns = k.owns(c.view)
	}
}

// withheld reports whether slot i has a peer for its owner, and would have no more than its reserve left. An idle worker has
// no last room.
func (c *scratch) withheld(i, left int) bool {
	s := &c.view.slots[i]
	return left < min(c.reserved, s.blocks/10) && s.page.Requests > 0 && !c.owns[i]
}

// Group is the names of the gateways that share workers.
type Group struct {
	Names []string // each once
	Own   string   // one of them
}

// owned is which slots of a view belong to this gateway.
type owned struct {
	group *Group
	view  uint64
	slots []bool // nil: all of them
}

// owns returns which slots of v are this gateway's. Each worker has one owner, which every gateway of the group finds
// by itself: workers are dealt in the order of their hashes, each to the gateway that ranks first for it by rendezvous
// hashing of those whose share is not full. Shares differ by one worker at the most; by the hashes alone they would
// differ by so much that a division of the load along them overloads some.
func (k *core) owns(v *view) []bool {
	group := k.cfg.Peers.Group()
	if k.owned.group == group && k.owned.view == v.number {
		return k.owned.slots
	}
	k.owned = owned{group: group, view: v.number}
	if group != nil && len(group.Names) > 1 {
		owners := v.deal(group)
		k.owned.slots = make([]bool, len(owners))
		for i, owner := range owners {
			k.owned.slots[i] = owner == group.Own
		}
	}
	return k.owned.slots
}

// deal returns the owner of each slot.
func (v *view) deal(group *Group) []string {
	type dealt struct {
		key    uint64
		member int32
	}
	order := make([]dealt, len(v.pool.Members))
	for i := range v.pool.Members {
		order[i] = dealt{xxh3.HashString(v.pool.Members[i].Worker.ID), int32(i)}
	}
	slices.SortFunc(order, func(a, b dealt) int { return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.member, b.member)) })
	names := slices.Sorted(slices.Values(group.Names))
	share, extra := len(order)/len(names), len(order)%len(names)
	has, owner := make([]int, len(names)), make([]string, len(order))
	for _, d := range order {
		first, most := -1, uint64(0)
		for i, name := range names {
			full := has[i] > share || has[i] == share && extra == 0
			if rank := xxh3.HashStringSeed(name, d.key); !full && (first < 0 || rank > most) {
				first, most = i, rank
			}
		}
		if has[first]++; has[first] > share {
			extra--
		}
		owner[d.member] = names[first]
	}
	slots := make([]string, len(v.slots))
	for i := range v.slots {
		slots[i] = owner[v.slots[i].member]
	}
	return slots
}
