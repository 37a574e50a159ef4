package index

import (
	"sync"
	"sync/atomic"
)

// budget bounds the (block, owner) pairs of an index over all tiers. It evicts the pairs least recently stored or
// matched, and a block before its parents, so that a prefix remains.
//
// A clock hand goes round the owners' blocks from the youngest entry to the oldest, and so meets a chain's end before
// its beginning. If it finds too few old entries it takes any: the bound is strict, the order approximately LRU.
// strict, the order is near to that of recency.
type budget struct {
	limit   int64
	grain   int64        // pairs stored while the clock ticks once
	total   atomic.Int64 // pairs held
	stored  atomic.Int64 // pairs stored ever
	evicted atomic.Uint64

	mu   sync.Mutex // guards what follows; taken before an owner's
	slot int
	tier Tier
	at   int // entries of slot and tier still to visit
}

const (
	defaultMaxBlocks = 1 << 26 // about 2.5 GB when all of it is used

	// A clock of stampBits bits ticks ticksRound times per budget of stored pairs. Pairs at least ticksOld ticks old
	// may be evicted.
	ticksRound = 32
	ticksOld   = 16

	look = 1024 // entries visited under one hold of an owner's lock
)

func (b *budget) init(limit int) {
	if limit <= 0 {
		limit = defaultMaxBlocks
	}
	b.limit = int64(limit)
	b.grain = max(1, b.limit/ticksRound)
}

// now is the clock's time.
func (b *budget) now() uint32 { return uint32(b.stored.Load()/b.grain) & stampMask }

// pressed reports whether evictions are near, so that recency matters.
func (b *budget) pressed() bool { return b.total.Load() > b.limit/2 }

// count records a change of the held pairs.
func (b *budget) count(change int) {
	if change != 0 {
		b.total.Add(int64(change))
	}
	if change > 0 {
		b.stored.Add(int64(change))
	}
}

type hand struct {
	patience int  // entries that it may still visit while choosy
	rounds   int  // unsuccessful rounds since it stopped being choosy
	choosy   bool // takes only what is old
	any      bool // takes blocks with children too
}

// evict brings the index back within its budget. The caller holds no lock.
func (x *Index) evict() {
	b := &x.budget
	if b.total.Load() <= b.limit {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	h := hand{patience: look + 16*int(max(0, b.total.Load()-b.limit)), choosy: true}
	for b.total.Load() > b.limit {
		owners := x.dir.Load().owners
		if b.slot >= len(owners) {
			b.slot, b.tier, b.at = 0, 0, numberMask
			if !h.choosy {
				h.rounds++
				h.any = h.rounds > 1
			}
			if len(owners) == 0 || h.rounds > 3 {
				return // those that hold something are being dropped
			}
			h.patience -= len(owners)
			h.choosy = h.choosy && h.patience > 0
		}
		if b.slot >= len(owners) || owners[b.slot] == nil || !x.sweep(owners[b.slot], &h) {
			if b.at, b.tier = numberMask, b.tier+1; b.tier == Tiers || b.slot < len(owners) && owners[b.slot] == nil {
				b.slot, b.tier = b.slot+1, 0
			}
		}
	}
}

// sweep moves the hand through one owner's blocks and reports whether more remain on this tier.
func (x *Index) sweep(w *owner, h *hand) bool {
	b, t := &x.budget, x.budget.tier
	w.mu.Lock()
	defer w.mu.Unlock()
	s := &w.held[t]
	if w.gone || s.n == 0 {
		return false
	}
	b.at = min(b.at, len(s.entries))
	tab, now, before := x.table(t), b.now(), s.n
	most := b.total.Load() - b.limit
	for met := 0; met < look && b.at > unknown+1 && int64(before-s.n) < most; met++ {
		b.at--
		h.patience--
		h.choosy = h.choosy && h.patience > 0
		e := &s.entries[b.at]
		if !e.held() || e.kids() > 0 && !h.any {
			continue
		}
		if h.choosy && (now-e.stamp())&stampMask < ticksOld {
			continue
		}
		if h.choosy && tab.wasMet(e.hash) {
			e.touch(now)
			continue
		}
		hash := e.hash
		s.drop(uint32(b.at))
		x.gapsBefore(w, t)
		tab.remove(hash, w.id.slot())
		h.rounds = 0
	}
	gone := before - s.n
	b.evicted.Add(uint64(gone))
	w.went.Add(uint64(gone))
	b.count(-gone)
	s.shrink()
	x.updateGaps(w, t)
	return b.at > unknown+1
}
