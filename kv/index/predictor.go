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
	MaxBlocks  int     `default:"65536" range:"1..1073741824"`
	PruneRatio float64 `default:"0.8" range:"0.01..1"`
	// LRU predicts a block without an end in time, until its owner has been given
	// more since than it can hold: see [Predictor.Bound].
	LRU bool `flag:"router-approximate-cache-policy" default:"ttl" oneof:"ttl=after router-ttl-secs|lru=when the rank's KV blocks are full, least recent first" help:"When a predicted block is dropped, without KV events."`
}

// Validate returns every setting that is out of range.
func (c PredictorConfig) Validate() error { return setting.Check(&c) }

// Predictor predicts, in an [Index], the caches of workers that do not report them, by the prompts sent to them, in
// granules. Call Insert for each sent prompt. Blocks not inserted again within the TTL expire, and the least recent are
// pruned when there are too many.
//
// A block never expires before its children, so a prefix remains. That requires chains from the prompt's first block.
//
// With [PredictorConfig.LRU] nothing expires by age: an owner with a bound keeps that many blocks, the others share
// MaxBlocks each.
//
// It is a core for one caller at a time; the index may be matched concurrently. Work is amortised O(1) per block, and a
// steady state allocates nothing.
type Predictor struct {
	idx   *Index
	ttl   int64 // nanoseconds
	lru   bool
	each  int     // blocks for an owner without a bound
	ratio float64 // the share that pruning keeps

	entries []entry  // the first is the head of the shared list
	free    int32    // first free entry, linked by next; 0 none
	shared  recency  // of owners without a bound
	sharers int      // their number
	n       int      // blocks
	holders []holder // by the owner's slot
	serial  uint32   // insertions so far
	now     int64    // the latest time given, in nanoseconds since began: the system's clock may be set
	began   time.Time

	gone []uint64 // for use within one call
}

// recency is a list of entries in LRU order.
type recency struct {
	ends    int32 // its head: next is the newest, prev the oldest
	n       int   // blocks
	limit   int   // blocks above which pruning begins
	target  int   // blocks at which it ends
	pruning bool
}

// entry is one granule predicted for one owner. Lists are ordered by recency, which is also that of expiry: all have
// the same TTL.
type entry struct {
	hash       uint64
	seen       int64 // when last inserted, in [Predictor]'s now
	owner      Owner
	blocks     uint32 // that it has
	serial     uint32 // of the last insertion that named it
	prev, next int32  // newer and older
}

// Prediction is what one Insert added, for [Predictor.Invalidate].
type Prediction struct {
	serial uint32
	from   int32 // the chain's earlier blocks were predicted already
	to     int32
}

// sweep is the minimum number of expired entries that a call may drop. It bounds the cost of one request after a quiet
// hour.
const sweep = 1024

// NewPredictor returns a predictor that writes to idx, as the only writer of its owners. The settings must be valid.
func NewPredictor(idx *Index, cfg PredictorConfig) *Predictor {
	p := &Predictor{
		idx: idx, ttl: int64(cfg.TTL), lru: cfg.LRU, each: cfg.MaxBlocks, ratio: cfg.PruneRatio, entries: make([]entry, 1, 64),
	}
	if p.lru {
		p.ttl = math.MaxInt64
	}
	return p
}

// Bound sets how many blocks o can hold, 0 unknown. It only matters with [PredictorConfig.LRU].
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
		p.sweep(&p.shared, sweep) // the others share less
	}
}

// move moves an owner's entries to the front of another list, in order.
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

// share adds or removes sharing owners, and sets the list's limit.
func (p *Predictor) share(owners int) {
	p.sharers += owners
	p.shared.limit = p.each * p.sharers
	p.shared.target = max(1, int(float64(p.shared.limit)*p.ratio))
}

// Insert predicts that o holds the granules of chain, a prompt's from its first, from now on. Each counts as its blocks
// ([GranuleBlocks]). Beyond the owner's bound or MaxBlocks, the rest of the chain is ignored. An earlier time than the
// latest counts as the latest.
func (p *Predictor) Insert(o Owner, chain []uint64, now time.Time) Prediction {
	if p.idx.owner(o) == nil || len(chain) == 0 {
		return Prediction{}
	}
	p.advance(now)
	if p.serial++; p.serial == 0 {
		p.serial = 1
	}
	h := p.holder(o)
	limit := p.each
	if h.list != &p.shared {
		limit = h.list.limit
	}
	chain = chain[:min(len(chain), GranulesWithin(limit))]
	// The last block first, so that each is more recent than its children. For the same reason known blocks are a
	// prefix of the chain.
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

// Invalidate takes back what an insertion of chain for o added, unless a later one named it: the worker did not compute
// it.
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

// Expire drops the oldest expired blocks at now, in bounded work per call, and returns their number.
func (p *Predictor) Expire(now time.Time) int {
	p.advance(now)
	return p.sweep(&p.shared, sweep)
}

// Drop removes a worker's predictions, in time proportional to them; its owners become void.
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

// Len returns the number of predicted (block, owner) pairs.
func (p *Predictor) Len() int { return p.n }

// Blocks returns the number of blocks predicted for o.
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

// advance moves the time forward. It never goes back: the order of recency is that of the times.
func (p *Predictor) advance(now time.Time) {
	if p.began.IsZero() {
		p.began = now
	}
	p.now = max(p.now, int64(now.Sub(p.began)))
}

// sweep drops up to most of a list's oldest blocks that are expired or too many.
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

// flush removes the dropped blocks from the index.
func (p *Predictor) flush(o Owner) {
	if len(p.gone) == 0 {
		return
	}
	p.idx.Remove(o, Device, p.gone)
	p.gone = p.gone[:0]
}

// drop removes an entry; the caller updates the index.
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

// release frees an entry that is in no list.
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

// holder returns the holder of a live owner, made on first use.
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
