package index

import (
	"math"
	"slices"
	"time"

	"github.com/tandem-pd/tandem/internal/setting"
)

// PredictorConfig of a [Predictor].
type PredictorConfig struct {
	// TTL is how long a block is predicted after it was last sent.
	TTL time.Duration `flag:"router-ttl-secs,router-ttl" default:"120" unit:"s" range:"0.001..31536000" help:"Seconds for which a sent prompt counts as cached on a worker without KV events."`
	// MaxBlocks times the owners bounds the pairs of block and owner. Above it the least recently
	// predicted ones go, down to PruneRatio of it.
	MaxBlocks  int     `flag:"router-max-tree-size" default:"65536" range:"1..1073741824" help:"Most predicted blocks for a rank, on average over a pool; the least recent are dropped. 65536 take up to 7 MB."`
	PruneRatio float64 `flag:"router-prune-target-ratio" default:"0.8" range:"0.01..1" help:"Share of router-max-tree-size that pruning keeps."`
	// LRU predicts a block without an end in time, until its owner has been given
	// more since than it can hold: see [Predictor.Bound].
	LRU bool `flag:"router-approximate-cache-policy" default:"ttl" oneof:"ttl=after router-ttl-secs|lru=when the rank's KV blocks are full, least recent first" help:"When a predicted block is dropped, without KV events."`
}

// Validate returns every setting that is out of range.
func (c PredictorConfig) Validate() error { return setting.Check(&c) }

// Predictor keeps in an [Index] what workers should hold that do not report it: the prompts that were sent to them a
// while ago, in granules. Call Insert for each prompt that is sent to a worker; what was not inserted again within the TTL goes,
// and the least recent first when there is too much.
//
// A block never goes before one that follows on it, so that what is left of a prompt is a prefix of it. That takes
// chains that begin with the prompt's first block, which is what sequence hashes are.
//
// With [PredictorConfig.LRU] nothing goes because of its age: each owner that has
// a bound keeps as many blocks as that, the others share MaxBlocks for each of them.
//
// It is a core, without goroutine or clock, and for one caller at a time; the index may be matched meanwhile. Work is
// O(1) a block, amortised, and nothing is allocated while the blocks that go make room for those that come.
type Predictor struct {
	idx   *Index
	ttl   int64 // nanoseconds
	lru   bool
	each  int     // blocks for an owner without a bound
	ratio float64 // of them that pruning leaves

	entries []entry  // the first is the ends of the list that owners share
	free    int32    // the first of the entries to use again, by next; 0 none
	shared  recency  // of the owners that have no bound of their own
	sharers int      // so many
	n       int      // blocks
	holders []holder // by the owner's slot
	serial  uint32   // insertions so far
	now     int64    // the latest time given, in nanoseconds since began: the system's clock may be set meanwhile
	began   time.Time

	gone []uint64 // for use within one call
}

// recency is a list of entries, the least recent of which go first.
type recency struct {
	ends    int32 // the entry that is its ends: next the newest, prev the oldest
	n       int   // blocks
	limit   int   // blocks above which pruning begins
	target  int   // blocks at which it ends
	pruning bool
}

// entry is one granule predicted for one owner. They form a list by recency, which
// is that of their ends as well, because all have the same TTL.
type entry struct {
	hash       uint64
	seen       int64 // when it was inserted last, as [Predictor]'s now
	owner      Owner
	blocks     uint32 // that it has
	serial     uint32 // of the insertion that was last to name it
	prev, next int32  // newer and older
}

// Prediction is what one Insert added, for [Predictor.Invalidate]. Its zero value added nothing.
type Prediction struct {
	serial uint32
	from   int32 // the chain's blocks before it were predicted already
	to     int32
}

// sweep is the fewest entries that a call may drop when their time is over. It
// bounds what one request pays after a quiet hour, and is more than most bring.
const sweep = 1024

// NewPredictor returns a predictor that writes to idx, and must be the only one
// that writes for its owners. The settings must be valid.
func NewPredictor(idx *Index, cfg PredictorConfig) *Predictor {
	p := &Predictor{
		idx: idx, ttl: int64(cfg.TTL), lru: cfg.LRU, each: cfg.MaxBlocks, ratio: cfg.PruneRatio, entries: make([]entry, 1, 64),
	}
	if p.lru {
		p.ttl = math.MaxInt64
	}
	return p
}

// Bound says how many blocks o can hold, 0 unknown. With [PredictorConfig.LRU] so
// many are predicted for it at most; else it does nothing.
func (p *Predictor) Bound(o Owner, blocks int) {
	if !p.lru || p.idx.owner(o) == nil {
		return
	}
	h := p.holder(o)
	alone := h.list != &p.shared
	switch {
	case blocks > 0 && alone:
		h.list.limit, h.list.target = blocks, blocks
	case blocks > 0:
		at := p.take()
		p.entries[at].prev, p.entries[at].next = at, at
		own := &recency{ends: at, limit: blocks, target: blocks}
		p.move(h, own)
	case alone:
		own := h.list
		p.move(h, &p.shared)
		p.release(own.ends)
	default:
		return
	}
	p.sweep(h.list, sweep)
	if h.list != &p.shared {
		p.sweep(&p.shared, sweep) // those that are left share less
	}
}

// move puts an owner's entries into another list, where they are the newest, in their order.
func (p *Predictor) move(h *holder, to *recency) {
	from := h.list
	if to == &p.shared {
		p.share(1)
	} else {
		p.share(-1)
	}
	for at := p.entries[from.ends].prev; at != from.ends; {
		newer := p.entries[at].prev
		if p.entries[at].owner == h.id {
			p.unlink(at)
			p.link(to, at)
			from.n -= int(p.entries[at].blocks)
			to.n += int(p.entries[at].blocks)
		}
		at = newer
	}
	h.list = to
}

// share counts owners that come to share a list, and sets its limit.
func (p *Predictor) share(owners int) {
	p.sharers += owners
	p.shared.limit = p.each * p.sharers
	p.shared.target = max(1, int(float64(p.shared.limit)*p.ratio))
}

// Insert predicts that o holds the granules of chain from now on, a prompt's from its first. Each counts for its
// blocks ([GranuleBlocks]). Of a chain longer than the owner's bound, or MaxBlocks, the granules within the first so
// many blocks count. A time before the latest one counts as that.
func (p *Predictor) Insert(o Owner, chain []uint64, now time.Time) Prediction {
	if p.idx.owner(o) == nil || len(chain) == 0 {
		return Prediction{}
	}
	p.tell(now)
	if p.serial++; p.serial == 0 {
		p.serial = 1
	}
	h := p.holder(o)
	limit := p.each
	if h.list != &p.shared {
		limit = h.list.limit
	}
	chain = chain[:min(len(chain), GranulesWithin(limit))]
	// The last block first, so that each is more recent than those that follow
	// on it. For the same reason those known already are the chain's first ones.
	from, end := len(chain), GranuleBlocks(len(chain))
	all := end
	for i := len(chain) - 1; i >= 0; i-- {
		at, begin := h.find(p.entries, chain[i]), GranuleBlocks(i)
		if at == 0 {
			at = p.take()
			p.entries[at] = entry{hash: chain[i], owner: o, blocks: uint32(end - begin)}
			h.put(p.entries, at)
			p.count(h, end-begin)
			from = i
		} else {
			p.unlink(at)
		}
		p.entries[at].seen, p.entries[at].serial = p.now, p.serial
		p.link(h.list, at)
		end = begin
	}
	switch {
	case from == 0:
		p.idx.Store(o, Device, chain)
	case from < len(chain):
		p.idx.Extend(o, Device, chain[from-1], chain[from:])
	}
	p.sweep(h.list, max(sweep, 2*(all-GranuleBlocks(from))))
	return Prediction{serial: p.serial, from: int32(from), to: int32(len(chain))}
}

// Invalidate takes back what an insertion of chain for o added, as far as none
// since has named it: the worker did not get to compute it after all.
func (p *Predictor) Invalidate(o Owner, chain []uint64, made Prediction) {
	h := p.held(o)
	if h == nil || int(made.to) > len(chain) || made.serial == 0 {
		return
	}
	// The last block first, as above, so that the index never sees a gap.
	for _, hash := range slices.Backward(chain[made.from:made.to]) {
		if at := h.find(p.entries, hash); at != 0 && p.entries[at].serial == made.serial {
			p.drop(at)
			p.gone = append(p.gone, hash)
		}
	}
	p.flush(o)
}

// Expire drops the oldest of the blocks whose time is over at now, so many of them that the rest is dropped by as
// many later calls as brought them, and returns their number.
func (p *Predictor) Expire(now time.Time) int {
	p.tell(now)
	return p.sweep(&p.shared, sweep)
}

// Drop forgets a worker and what was predicted for it, in time proportional to that; its owners become void.
func (p *Predictor) Drop(worker string) {
	p.idx.mu.RLock()
	ranks := p.idx.ranks[worker]
	p.idx.mu.RUnlock()
	for _, w := range ranks {
		h := p.held(w.id)
		if h == nil {
			continue
		}
		for _, at := range h.places {
			if at != 0 {
				p.unlink(at)
				p.release(at)
			}
		}
		p.count(h, -h.blocks)
		if h.list != &p.shared {
			p.release(h.list.ends)
		} else {
			p.share(-1)
		}
		*h = holder{id: NoOwner}
	}
	p.idx.Drop(worker)
	p.sweep(&p.shared, sweep) // those that are left share less
}

// Len is how many pairs of block and owner are predicted.
func (p *Predictor) Len() int { return p.n }

// Blocks is how many blocks are predicted for o.
func (p *Predictor) Blocks(o Owner) int {
	if h := p.held(o); h != nil {
		return h.blocks
	}
	return 0
}

// count adds blocks to those of an owner.
func (p *Predictor) count(h *holder, blocks int) {
	h.blocks += blocks
	h.list.n += blocks
	p.n += blocks
}

// tell moves the time on. It never goes back: the order of recency is that of the times.
func (p *Predictor) tell(now time.Time) {
	if p.began.IsZero() {
		p.began = now
	}
	p.now = max(p.now, int64(now.Sub(p.began)))
}

// sweep drops from a list up to most of the oldest blocks that are over, or too many.
func (p *Predictor) sweep(l *recency, most int) int {
	l.pruning = l.pruning || l.n > l.limit
	dropped := 0
	owner := NoOwner
	for dropped < most {
		at := p.entries[l.ends].prev
		l.pruning = l.pruning && l.n > l.target
		if at == l.ends || !l.pruning && p.now-p.entries[at].seen < p.ttl {
			break
		}
		if e := &p.entries[at]; e.owner != owner {
			p.flush(owner)
			owner = e.owner
		}
		p.gone = append(p.gone, p.entries[at].hash)
		p.drop(at)
		dropped++
	}
	p.flush(owner)
	return dropped
}

// flush takes the blocks that are gone out of the index.
func (p *Predictor) flush(o Owner) {
	if len(p.gone) == 0 {
		return
	}
	p.idx.Remove(o, Device, p.gone)
	p.gone = p.gone[:0]
}

// drop forgets an entry; the index is the caller's.
func (p *Predictor) drop(at int32) {
	p.unlink(at)
	h := p.held(p.entries[at].owner)
	h.cut(p.entries, at)
	p.count(h, -int(p.entries[at].blocks))
	p.release(at)
}

// take returns an entry to use.
func (p *Predictor) take() int32 {
	at := p.free
	if at == 0 {
		p.entries = append(p.entries, entry{})
		return int32(len(p.entries) - 1)
	}
	p.free = p.entries[at].next
	return at
}

// release gives an entry back that is in no list.
func (p *Predictor) release(at int32) {
	p.entries[at] = entry{next: p.free}
	p.free = at
}

// link makes an entry a list's newest.
func (p *Predictor) link(l *recency, at int32) {
	ends := &p.entries[l.ends]
	e := &p.entries[at]
	e.prev, e.next = l.ends, ends.next
	p.entries[ends.next].prev = at
	ends.next = at
}

func (p *Predictor) unlink(at int32) {
	e := &p.entries[at]
	p.entries[e.prev].next = e.next
	p.entries[e.next].prev = e.prev
}

// holder returns the holder of a live owner, made at its first use.
func (p *Predictor) holder(o Owner) *holder {
	for o.slot() >= len(p.holders) {
		p.holders = append(p.holders, holder{id: NoOwner})
	}
	h := &p.holders[o.slot()]
	if h.id != o {
		*h = holder{id: o, list: &p.shared}
		p.share(1)
	}
	return h
}

// held returns o's holder, or nil.
func (p *Predictor) held(o Owner) *holder {
	if o == NoOwner || o.slot() >= len(p.holders) || p.holders[o.slot()].id != o {
		return nil
	}
	return &p.holders[o.slot()]
}
