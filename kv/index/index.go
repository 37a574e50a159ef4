// Package index maps the blocks of prompts to the workers that hold them.
//
// A block of a prompt is named by its sequence hash, which covers every token before it as well, so that one hash
// names one whole prefix. The index maps each hash to the owners that hold it, and [Index.Match] answers, for all
// owners in one pass over a prompt's hashes, how many leading blocks each of them holds.
//
// The index is advisory: it is fed from events that may be late or lost, and a
// wrong answer costs a recomputation and never a wrong token.
//
// Readers never wait. A hash, once written to a slot, stays there until its shard is rebuilt next to the old one, and
// its holders are one atomic word, so a reader needs no lock and no second look. DESIGN.md has the reasons.
package index

import (
	"cmp"
	"sync"
	"sync/atomic"
)

// Config of an [Index]. Its zero value is good for any size.
type Config struct {
	// MaxBlocks bounds the pairs of block and owner, counting each tier, and with them the memory, about 40 bytes each.
	// Beyond it the least recent ones go, whether the owner still holds them or not. 0 means 2^26.
	MaxBlocks int

	shards int // a power of two, for tests; 0 means defaultShards
}

// defaultShards is the number of independently locked parts of each tier's table. More let more writers proceed at once
// and shorten the pauses in which a writer rebuilds one; larger ones lie better in the processor's caches and on large
// pages. Each costs about 1 kB while the index is empty.
const defaultShards = 16

// Index maps sequence hashes to owners. It is safe for concurrent use; Match is never blocked by a writer. Calls for
// one owner take effect in the order they are made, which is why one goroutine should feed one owner.
type Index struct {
	shards int

	dir    atomic.Pointer[directory]    // never nil
	epoch  atomic.Uint64                // directory changes so far
	gaps   [Tiers]gaps                  // who must be followed block by block
	budget budget                       // how much there may be
	tables [Tiers]atomic.Pointer[table] // nil until the tier's first block
	mu     sync.RWMutex                 // guards what follows, and changes of dir and tables
	byName map[name]*owner              // the live owners
	ranks  map[string][]*owner          // and the same by worker
	free   []Owner                      // identities ready to be given out again
}

// New returns an empty index.
func New(cfg Config) *Index {
	x := &Index{shards: cmp.Or(cfg.shards, defaultShards), byName: map[name]*owner{}, ranks: map[string][]*owner{}}
	x.dir.Store(&directory{})
	x.budget.init(cfg.MaxBlocks)
	return x
}

// Store records that o holds the blocks of chain on tier t, a prompt's sequence hashes from its first block. Blocks
// it already holds there are left as they are, but for their recency. An owner that was dropped holds nothing, and
// storing for it does nothing.
func (x *Index) Store(o Owner, t Tier, chain []uint64) { x.store(o, t, begins, 0, chain) }

// Extend is Store for a chain whose first block follows on parent, which o may hold or not.
func (x *Index) Extend(o Owner, t Tier, parent uint64, chain []uint64) {
	x.store(o, t, follows, parent, chain)
}

// Place is Store for a chain of which it is unknown what it follows on: blocks that come to a further tier. Where o
// holds the first of them on another tier, it follows on the same here. Where not, Match must look at every block for
// o on this tier, until these have gone or were stored again by Store or Extend.
func (x *Index) Place(o Owner, t Tier, chain []uint64) { x.store(o, t, loose, 0, chain) }

// origin says what a chain follows on.
type origin uint8

const (
	begins  origin = iota // nothing: it begins a prompt
	follows               // a named block
	loose                 // unknown
)

// piece is how many blocks are stored or removed under one hold of an owner's lock.
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

// add is store for a piece. It reports whether w is still there.
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
			break // what an owner holds beyond its tier's limit is not seen
		}
		at, fresh := s.add(h, behind, stamp)
		if behind = at; fresh {
			room--
			x.gapsBefore(w, t)
			tab.add(h, w.id.slot())
		}
	}
	x.settled(w, t)
	w.came.Add(uint64(s.n - before))
	x.budget.count(s.n - before)
	return true
}

// Remove records that o no longer holds the named blocks on tier t. Blocks it did not hold are passed over.
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
	x.settled(w, t)
	w.went.Add(uint64(before - s.n))
	x.budget.count(s.n - before)
}

// gapsBefore tells readers that w may have gaps on tier t, if it has. It comes after each change of w's own blocks
// and before the same change of the table. The caller holds w.mu.
func (x *Index) gapsBefore(w *owner, t Tier) {
	if w.held[t].holes > 0 && !w.open[t] {
		w.open[t] = true
		x.gaps[t].set(w.id.slot())
	}
}

// settled tells readers what has become of w on tier t, after changes of the table. The caller holds w.mu.
func (x *Index) settled(w *owner, t Tier) {
	w.blocks[t].Store(int64(w.held[t].n))
	if w.held[t].holes == 0 && w.open[t] {
		w.open[t] = false
		x.gaps[t].clear(w.id.slot())
	}
}

// Clear records that o holds nothing on any tier, in time proportional to what it held. The owner itself stays.
func (x *Index) Clear(o Owner) {
	if w := x.owner(o); w != nil {
		w.mu.Lock()
		x.clear(w)
		w.mu.Unlock()
	}
}

// Drop forgets a worker, all its ranks and all they held, in time proportional to that. The worker's owners become
// void: calls that still carry them do nothing, even after their slots have gone to others.
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

// Churn returns how many blocks have come to o and gone from it since it was made, each tier counted for itself; 0
// for a void owner. Of two looks the difference is what happened between them.
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
	Holed   int    // pairs of owner and tier for which Match looks at every block
	Bytes   int    // memory of tables and owners' sets, rounded down to the arrays
	Evicted uint64 // pairs that the budget has had no room for, ever
}

// Add sums two indexes up.
func (s *Stats) Add(o Stats) {
	s.Owners, s.Blocks, s.Held, s.Holed = s.Owners+o.Owners, s.Blocks+o.Blocks, s.Held+o.Held, s.Holed+o.Holed
	s.Bytes, s.Evicted = s.Bytes+o.Bytes, s.Evicted+o.Evicted
}

// Stats counts what the index holds. It takes every shard's and owner's lock in
// turn and is meant for metrics, not for a request's way.
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

// clear takes all of w's blocks out of the tables. The caller holds w.mu.
func (x *Index) clear(w *owner) {
	var hashes [batch]uint64
	for t := range w.held {
		s := &w.held[t]
		if s.n == 0 {
			continue
		}
		s.holes++ // whatever order they go in
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
		x.settled(w, Tier(t))
	}
}

// table returns tier t's table, made at its first use.
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
