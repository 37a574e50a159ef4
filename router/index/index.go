// Package index knows which worker holds which prefix of which prompt.
//
// A block of a prompt is named by its sequence hash, which covers every token
// before it as well, so that one hash names one whole prefix. The index maps
// each hash to the owners that hold it, and [Index.Match] answers, for all
// owners in one pass over a prompt's hashes, how many leading blocks each of
// them holds.
//
// The index is advisory: it is fed from events that may be late or lost, and a
// wrong answer costs a recomputation and never a wrong token.
//
// Readers never wait. A hash, once written to a slot, stays there until its
// shard is rebuilt beside the old one, and its holders are one atomic word, so
// a reader needs no lock and no second look. DESIGN.md has the reasons.
package index

import (
	"sync"
	"sync/atomic"
)

// Tier says where in a worker's memory hierarchy a block lies.
type Tier uint8

// The tiers, fastest first.
const (
	Device Tier = iota // the accelerator's own memory
	Host               // the host's memory
	Disk               // a local disk
	Shared             // storage that several workers reach

	tiers = iota
)

// Config of an [Index]. Its zero value is good for any size.
type Config struct {
	// Shards is the number of independently locked parts of each tier's table,
	// rounded up to a power of two; 0 means 64. More shards let more writers
	// proceed at once and cost about 1 kB each while the index is empty.
	Shards int
}

// Index maps sequence hashes to owners. It is safe for concurrent use; Match
// is never blocked by a writer. Calls for one owner take effect in the order
// they are made, which is why one goroutine should feed one owner.
type Index struct {
	shards int

	dir    atomic.Pointer[directory]    // never nil
	epoch  atomic.Uint64                // directory changes so far
	tables [tiers]atomic.Pointer[table] // nil until the tier's first block
	mu     sync.RWMutex                 // guards what follows, and changes of dir and tables
	byName map[name]*owner              // the live owners
	ranks  map[string][]*owner          // and the same by worker
	free   []Owner                      // identities ready to be given out again
}

// New returns an empty index.
func New(cfg Config) *Index {
	shards := 1
	for want := cfg.Shards; shards < want; {
		shards <<= 1
	}
	if cfg.Shards <= 0 {
		shards = 64
	}
	x := &Index{shards: shards, byName: map[name]*owner{}, ranks: map[string][]*owner{}}
	x.dir.Store(&directory{})
	return x
}

// Store records that o holds the blocks of chain on tier t. Blocks it already
// holds there are left as they are. An owner that was dropped holds nothing,
// and storing for it does nothing.
func (x *Index) Store(o Owner, t Tier, chain []uint64) {
	w := x.owner(o)
	if w == nil || t >= tiers {
		return
	}
	tab := x.table(t)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.gone {
		return
	}
	tab.touch(chain)
	for _, h := range chain {
		if w.held[t].add(h) {
			tab.add(h, o.slot())
		}
	}
	w.blocks[t].Store(int64(w.held[t].len()))
}

// Remove records that o no longer holds the named blocks on tier t. Blocks it
// did not hold are passed over.
func (x *Index) Remove(o Owner, t Tier, hashes []uint64) {
	w := x.owner(o)
	if w == nil || t >= tiers {
		return
	}
	tab := x.table(t)
	w.mu.Lock()
	defer w.mu.Unlock()
	tab.touch(hashes)
	for _, h := range hashes {
		if w.held[t].remove(h) {
			tab.remove(h, o.slot())
		}
	}
	w.blocks[t].Store(int64(w.held[t].len()))
}

// Clear records that o holds nothing on any tier, in time proportional to what
// it held. The owner itself stays.
func (x *Index) Clear(o Owner) {
	if w := x.owner(o); w != nil {
		w.mu.Lock()
		x.clear(w)
		w.mu.Unlock()
	}
}

// Drop forgets a worker, all its ranks and all they held, in time proportional
// to that. The worker's owners become void: calls that still carry them do
// nothing, even after their slots have gone to others.
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

// Stats describes an index's size.
type Stats struct {
	Owners int // live owners
	Blocks int // distinct blocks, each tier counted for itself
	Held   int // pairs of block and owner
	Bytes  int // memory of tables and owners' sets, rounded down to the arrays
}

// Stats counts what the index holds. It takes every shard's and owner's lock in
// turn and is meant for metrics, not for a request's way.
func (x *Index) Stats() Stats {
	var s Stats
	for _, w := range x.dir.Load().owners {
		if w == nil {
			continue
		}
		s.Owners++
		w.mu.Lock()
		for t := range w.held {
			s.Held += w.held[t].len()
			s.Bytes += w.held[t].bytes()
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
	for t := range w.held {
		if w.held[t].len() == 0 {
			continue
		}
		tab := x.table(Tier(t))
		w.held[t].each(func(h uint64) { tab.remove(h, w.id.slot()) })
		w.held[t] = hashSet{}
		w.blocks[t].Store(0)
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
