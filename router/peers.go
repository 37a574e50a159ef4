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

// Peers is a router's view of the other gateways. Its methods run under the router's lock, do not allocate and return
// at once.
type Peers interface {
	// Unseen estimates the peers' bookings on workers of p that have not arrived here yet: their rate times the message
	// delay. It is 0 without peers.
	Unseen(p *pools.Pool) float64
	// Delay returns the delay of their messages.
	Delay() time.Duration
	// Group returns the gateways last known, this one included; nil if unknown. A change returns a new pointer to an
	// immutable value.
	Group() *Group
	// CutOff reports that there are peers and none is reachable.
	CutOff() bool
}

// fewUnseen is the number of unseen bookings that affects no choice.
const fewUnseen = 0.5

// divide limits a gateway that is cut off to the workers that it owns. Workers with more than half of the prompt stay,
// and all stay if no owned one has room: silent peers refuse no request.
func (k *core) divide(c *scratch) {
	owns, half := k.owns(c.view), c.query.blocks()/2
	if owns == nil || !c.any(func(w *candidate) bool {
		return owns[w.slot] && (float64(w.Load.PrefillTokens) <= c.view.slots[w.slot].busyAbove || c.query.late)
	}) {
		return
	}
	c.keep(func(w *candidate) bool { return w.Overlap > half || owns[w.slot] })
}

// unseen estimates the peers' bookings that have not arrived: rate times delay, or this gateway's own bookings within
// the delay times the number of peers, if that is more. The latter covers a burst that a load balancer spreads over all
// gateways at once.
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

// since counts the bookings after a time.
func (m *moments) since(t time.Time) int {
	n := 0
	for n < len(m.at) && m.at[(m.next-1-n+2*len(m.at))%len(m.at)].After(t) {
		n++
	}
	return n
}

// typical is an exponential mean of a pool's bookings.
type typical struct {
	bookings float64 // counted, up to memory
	prefill  float64 // tokens
	blocks   float64
	takes    float64 // nanoseconds of prefill
}

// memory is the number of bookings in the mean.
const memory = 64

// add counts a booking of some blocks.
func (t *typical) add(e *load.Event, blocks int) {
	t.bookings = min(t.bookings+1, memory)
	part := 1 / t.bookings
	t.prefill += float64(part * (float64(e.PrefillTokens) - t.prefill))
	t.blocks += float64(part * (float64(blocks) - t.blocks))
	t.takes += float64(part * (float64(e.PrefillTime) - t.takes))
}

// put adds or removes n typical bookings in the compared loads.
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

// reserve keeps room for the owners of workers, so that two gateways do not grant the last room twice: the blocks of
// unseen bookings, at most a tenth of the worker. A gateway that is cut off keeps none: it would not learn of released
// room.
func (k *core) reserve(c *scratch) {
	if k.cfg.Peers == nil || k.cfg.Peers.CutOff() {
		return
	}
	if c.reserved = int(math.Ceil(float64(k.cfg.Peers.Unseen(c.view.pool) * k.typical.blocks))); c.reserved > 0 {
		c.owns = k.owns(c.view)
	}
}

// withheld reports whether slot i is owned by a peer and would have only its reserve left. An idle worker has no
// reserve.
func (c *scratch) withheld(i, left int) bool {
	s := &c.view.slots[i]
	return left < min(c.reserved, s.blocks/10) && s.page.Requests > 0 && !c.owns[i]
}

// Group names the gateways that share workers.
type Group struct {
	Names []string // unique
	Own   string   // one of them
}

// owned is the slots of a view that this gateway owns.
type owned struct {
	group *Group
	view  uint64
	slots []bool // nil: all of them
}

// owns returns the slots of v that this gateway owns. Each worker has one owner, on which all gateways agree: in the
// order of their hashes, workers go to the gateway that ranks first by rendezvous hashing and has a free share. Shares
// differ by one worker at most; plain hashing would overload some.
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

// Changes calls visit with this gateway's share of each account that changed since the last call. Room kept for prompts
// computed elsewhere is a share without a worker.
func (r *Router) Changes(now time.Time, visit func(load.Shared)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.core.book.Changes(now, visit)
	if promised := int(r.core.promised.Load() - r.core.peerPromises.blocks); promised != r.core.peerPromises.published {
		r.core.peerPromises.published = promised
		visit(load.Shared{Share: load.Share{Account: load.Account{ActiveBlocks: promised}}})
	}
}

// ApplyShares replaces another gateway's shares of the pool's accounts, and reports whether any fell. It holds the
// router's lock throughout: pass at most a few hundred.
func (r *Router) ApplyShares(peer string, shares []load.Shared, now time.Time) (fell bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range shares {
		if s := &shares[i]; s.Worker == "" {
			fell = r.core.applyPromised(peer, int64(s.ActiveBlocks)) || fell
		} else {
			fell = r.core.book.ApplyShare(peer, *s, now) || fell
		}
	}
	return fell
}

// Sent is a prompt sent to a worker, to predict its cache.
type Sent struct {
	Worker string
	Rank   int
	Text   bool     // see [Request.Text]
	Hashes []uint64 // of the prompt's full blocks, or its granules; read-only
}

// maxSent bounds the prompts that wait for [Router.Sends]. Others are not published.
const maxSent = 256

// noteSent keeps a prompt for [Router.Sends].
func (r *Router) noteSent(s Sent) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.core.sent) < maxSent {
		r.core.sent = append(r.core.sent, s)
	}
}

// Sends returns the prompts sent by this gateway's bookings since the last call, if they predict a cache.
func (r *Router) Sends() []Sent {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.core.sent
	r.core.sent = nil
	return all
}

// ApplySent predicts the effect of another gateway's sent prompt on p. It does not retain s.
func (r *Router) ApplySent(p *pools.Pool, s Sent, now time.Time) {
	if m, here := p.Member(s.Worker); here {
		r.see(p)
		r.sources.Sent(m.Worker, s.Rank, s.Hashes, s.Text, now)
	}
}

func (r *Router) booked(made bool) {
	if f := r.core.cfg.OnBooking; f != nil {
		f(made)
	}
}

// peerPromises is the part of a pool's promised blocks that other gateways promised.
type peerPromises struct {
	blocks    int64
	by        map[string]int64
	published int // this gateway's own, in the last [Router.Changes]
}

// applyPromised sets what another gateway promised, and reports whether it fell.
func (k *core) applyPromised(peer string, blocks int64) bool {
	h := &k.peerPromises
	more := blocks - h.by[peer]
	h.blocks += more
	k.promised.Add(more)
	if blocks == 0 {
		delete(h.by, peer)
	} else {
		if h.by == nil {
			h.by = map[string]int64{}
		}
		h.by[peer] = blocks
	}
	return more < 0
}
