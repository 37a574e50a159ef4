// Package index maps the blocks of prompts to the workers that hold them.
//
// A block is named by its sequence hash, which covers all tokens before it, so one hash names one whole prefix. The
// index maps each hash to its owners. [Index.Match] returns, for all owners in one pass over a prompt's hashes, how
// many leading blocks each holds.
//
// The index is advisory: events may be late or lost, and a wrong answer costs a recomputation, never a wrong token.
//
// Readers never wait. A hash stays in its slot until its shard is rebuilt next to the old one. Its holders are one
// atomic word, so a reader needs no lock. DESIGN.md has the reasons.
package index

import (
	"cmp"
	"sync"
	"sync/atomic"
)

// Config of an [Index]. Its zero value is good for any size.
type Config struct {
	// MaxBlocks bounds the (block, owner) pairs over all tiers, about 40 bytes each. Beyond it the least recent are
	// evicted. 0 means 2^26.
	MaxBlocks int

	shards int // a power of two, for tests; 0 means defaultShards
}

// defaultShards is the number of independently locked parts of a tier's table. More shards admit more concurrent
// writers and shorter rebuilds; fewer use caches and huge pages better. Each takes about 1 kB when empty.
const defaultShards = 16

// Index maps sequence hashes to owners. It is safe for concurrent use; writers never block Match. Calls for one owner
// apply in order: feed an owner from one goroutine.
type Index struct {
	shards int

	dir    atomic.Pointer[directory]    // never nil
	epoch  atomic.Uint64                // directory changes so far
	gaps   [Tiers]gaps                  // owners to follow block by block
	budget budget                       // how much there may be
	tables [Tiers]atomic.Pointer[table] // nil until the tier's first block
	mu     sync.RWMutex                 // guards what follows, and changes of dir and tables
	byName map[name]*owner              // the live owners
	ranks  map[string][]*owner          // and the same by worker
	free   []Owner                      // identities to reuse
}

// New returns an empty index.
func New(cfg Config) *Index {
	x := &Index{shards: cmp.Or(cfg.shards, defaultShards), byName: map[name]*owner{}, ranks: map[string][]*owner{}}
	x.dir.Store(&directory{})
	x.budget.init(cfg.MaxBlocks)
	return x
}

// Store records that o holds the blocks of chain, a prompt's sequence hashes from its first block, on tier t. Blocks it
// already holds only become recent. It does nothing for a dropped owner.
func (x *Index) Store(o Owner, t Tier, chain []uint64) { x.store(o, t, begins, 0, chain) }

// Extend is Store for a chain whose parent is given; o need not hold it.
func (x *Index) Extend(o Owner, t Tier, parent uint64, chain []uint64) {
	x.store(o, t, follows, parent, chain)
}

// Place is Store for a chain with an unknown parent: blocks that reach a further tier. If o holds the first on another
// tier, that parent is used. Otherwise Match follows o block by block on this tier until these blocks are removed or
// stored again.
func (x *Index) Place(o Owner, t Tier, chain []uint64) { x.store(o, t, loose, 0, chain) }

// origin is the kind of a chain's parent.
type origin uint8

const (
	begins  origin = iota // nothing: it begins a prompt
	follows               // a named block
	loose                 // unknown
)

// piece is how many blocks are changed under one hold of an owner's lock.
const piece = 4096

func (x *Index) store(o Owner, t Tier, from origin, parent uint64, chain []uint64) {
	w := x.owner(o)
	if w == nil || t >= Tiers {
		return
	}
	tab := x.table(t)
	for len(chain) > 0 {
		part := chain[:min(piece, len(chain))]
		chain = chain[len(part):]
		if !x.add(w, tab, t, from, parent, part) {
			return
		}
		from, parent = follows, part[len(part)-1]
		x.evict()
	}
}

// add stores a piece. It reports whether w still exists.
func (x *Index) add(w *owner, tab *table, t Tier, from origin, parent uint64, chain []uint64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.gone {
		return false
	}
	s := &w.held[t]
	before, stamp := s.n, x.budget.now()
	s.touch(tab, chain)
	behind, room := w.origin(t, from, parent, chain[0]), maxHeld-s.n
	for i, h := range chain {
		if i%batch == 0 && i > 0 {
			s.touch(tab, chain[i:])
		}
		if room == 0 {
			break // blocks beyond the owner's limit on a tier are ignored
		}
		at, fresh := s.add(h, behind, stamp)
		if behind = at; fresh {
			room--
			x.gapsBefore(w, t)
			tab.add(h, w.id.slot())
		}
	}
	x.updateGaps(w, t)
	w.came.Add(uint64(s.n - before))
	x.budget.count(s.n - before)
	return true
}

// Remove records that o no longer holds the blocks on tier t. It ignores others.
func (x *Index) Remove(o Owner, t Tier, hashes []uint64) {
	w := x.owner(o)
	if w == nil || t >= Tiers {
		return
	}
	tab := x.table(t)
	w.mu.Lock()
	defer w.mu.Unlock()
	s := &w.held[t]
	before := s.n
	for i, h := range hashes {
		if i%batch == 0 {
			s.touch(tab, hashes[i:])
		}
		if s.remove(h) {
			x.gapsBefore(w, t)
			tab.remove(h, w.id.slot())
		}
	}
	x.updateGaps(w, t)
	w.went.Add(uint64(before - s.n))
	x.budget.count(s.n - before)
}

// gapsBefore marks w's gaps on tier t for readers, after a change of w's blocks and before that of the table. The
// caller holds w.mu.
func (x *Index) gapsBefore(w *owner, t Tier) {
	if w.held[t].holes > 0 && !w.open[t] {
		w.open[t] = true
		x.gaps[t].set(w.id.slot())
	}
}

// updateGaps updates w's gaps on tier t for readers, after changes of the table. The caller holds w.mu.
func (x *Index) updateGaps(w *owner, t Tier) {
	w.blocks[t].Store(int64(w.held[t].n))
	if w.held[t].holes == 0 && w.open[t] {
		w.open[t] = false
		x.gaps[t].clear(w.id.slot())
	}
}

// Clear removes all blocks of o, in time proportional to their number. The owner stays.
func (x *Index) Clear(o Owner) {
	if w := x.owner(o); w != nil {
		w.mu.Lock()
		x.clear(w)
		w.mu.Unlock()
	}
}

// Drop removes a worker with all its ranks and blocks, in time proportional to them. Calls with its owners do nothing
// from then on, even after their slots are reused.
func (x *Index) Drop(worker string) {
	x.mu.Lock()
	gone := x.ranks[worker]
	delete(x.ranks, worker)
	for _, w := range gone {
		delete(x.byName, w.name)
	}
	if len(gone) > 0 {
		x.dir.Store(x.dir.Load().without(gone))
		x.epoch.Add(1)
	}
	x.mu.Unlock()

	for _, w := range gone {
		w.mu.Lock()
		w.gone = true
		x.clear(w)
		w.mu.Unlock()
	}

	x.mu.Lock()
	for _, w := range gone {
		x.free = append(x.free, w.id.next())
	}
	x.mu.Unlock()
}

// Blocks returns how many blocks o holds on Device; 0 for a void owner.
func (x *Index) Blocks(o Owner) int {
	w := x.owner(o)
	if w == nil {
		return 0
	}
	return int(w.blocks[Device].Load())
}

// Churn returns the blocks ever stored and removed for o over all tiers, 0 for a void owner.
func (x *Index) Churn(o Owner) (came, went uint64) {
	w := x.owner(o)
	if w == nil {
		return 0, 0
	}
	return w.came.Load(), w.went.Load()
}

// Stats describes an index's size.
type Stats struct {
	Owners  int    // live owners
	Blocks  int    // distinct blocks, each tier counted for itself
	Held    int    // pairs of block and owner, at most Config.MaxBlocks
	Holed   int    // (owner, tier) pairs that Match follows block by block
	Bytes   int    // memory of tables and owners' sets, rounded down to the arrays
	Evicted uint64 // pairs evicted by the budget, ever
}

// Add sums two indexes up.
func (s *Stats) Add(o Stats) {
	s.Owners, s.Blocks, s.Held, s.Holed = s.Owners+o.Owners, s.Blocks+o.Blocks, s.Held+o.Held, s.Holed+o.Holed
	s.Bytes, s.Evicted = s.Bytes+o.Bytes, s.Evicted+o.Evicted
}

// Stats counts the index's contents. It takes every lock in turn: use it for metrics, not per request.
func (x *Index) Stats() Stats {
	s := Stats{Evicted: x.budget.evicted.Load()}
	for _, w := range x.dir.Load().owners {
		if w == nil {
			continue
		}
		s.Owners++
		w.mu.Lock()
		for t := range w.held {
			s.Held += w.held[t].n
			s.Bytes += w.held[t].bytes()
			if w.held[t].holes > 0 {
				s.Holed++
			}
		}
		w.mu.Unlock()
	}
	for t := range x.tables {
		if tab := x.tables[t].Load(); tab != nil {
			blocks, bytes := tab.size()
			s.Blocks += blocks
			s.Bytes += bytes
		}
	}
	return s
}

// clear removes all of w's blocks from the tables. The caller holds w.mu.
func (x *Index) clear(w *owner) {
	var hashes [batch]uint64
	for t := range w.held {
		s := &w.held[t]
		if s.n == 0 {
			continue
		}
		s.holes++ // in any order
		x.gapsBefore(w, Tier(t))
		tab, n := x.table(Tier(t)), 0
		for i := unknown + 1; i <= len(s.entries); i++ {
			if i < len(s.entries) && s.entries[i].held() {
				hashes[n] = s.entries[i].hash
				n++
			}
			if n == batch || i == len(s.entries) {
				tab.touch(hashes[:n])
				for _, h := range hashes[:n] {
					tab.remove(h, w.id.slot())
				}
				n = 0
			}
		}
		w.went.Add(uint64(s.n))
		x.budget.count(-s.n)
		*s = held{}
		x.updateGaps(w, Tier(t))
	}
}

// table returns tier t's table, made on first use.
func (x *Index) table(t Tier) *table {
	if tab := x.tables[t].Load(); tab != nil {
		return tab
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if tab := x.tables[t].Load(); tab != nil {
		return tab
	}
	tab := newTable(x.shards)
	x.tables[t].Store(tab)
	return tab
}
