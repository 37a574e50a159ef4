package index

import (
	"math"
	"sync"
	"sync/atomic"
)

// Owner identifies one (worker, rank) in one [Index]. Its low bits are a dense slot, reused after the worker was
// dropped; its high bits count the reuses, so an old Owner never refers to a new worker.
type Owner uint32

const (
	slotBits = 15
	slotMask = 1<<slotBits - 1

	maxOwners       = slotMask       // how many owners can be live at once
	NoOwner   Owner = math.MaxUint32 // no owner: it holds nothing and stores nothing
)

func (o Owner) slot() int   { return int(o & slotMask) }
func (o Owner) next() Owner { return o + 1<<slotBits }

// name is an owner's worker and rank.
type name struct {
	worker string
	rank   int
}

// owner is one (worker, rank) and the blocks it holds.
type owner struct {
	id   Owner
	name name

	blocks     [Tiers]atomic.Int64 // held[t].n, for lock-free reads
	came, went atomic.Uint64       // blocks, ever, over all tiers

	mu   sync.Mutex  // guards what follows, and orders the owner's writes
	held [Tiers]held // its blocks
	open [Tiers]bool // its bit in the index's gaps is set
	gone bool        // dropped: stores are ignored
}

// origin returns the parent's entry on tier t of a chain that begins with block h. The caller holds w.mu and adds h
// next.
func (w *owner) origin(t Tier, from origin, parent uint64, h uint64) uint32 {
	s := &w.held[t]
	if _, _, known := s.parentOf(h); known {
		return root // it keeps its parent
	}
	for u := Device; from == loose && u < Tiers; u++ {
		if p, first, known := w.held[u].parentOf(h); known && first {
			from = begins
		} else if known {
			from, parent = follows, p
		}
	}
	switch {
	case from == begins:
		return root
	case from == follows && parent != h:
		return s.name(parent)
	}
	return unknown
}

// directory is an immutable list of the live owners by slot.
type directory struct {
	owners []*owner // nil: a free slot
	ids    []Owner  // owners[i].id, or NoOwner
}

// with returns a directory that holds w as well.
func (d *directory) with(w *owner) *directory {
	n := max(len(d.owners), w.id.slot()+1)
	next := &directory{owners: make([]*owner, n), ids: make([]Owner, n)}
	copy(next.owners, d.owners)
	copy(next.ids, d.ids)
	next.owners[w.id.slot()], next.ids[w.id.slot()] = w, w.id
	return next
}

// without returns a directory that no longer holds the given owners.
func (d *directory) without(gone []*owner) *directory {
	next := &directory{owners: append([]*owner(nil), d.owners...), ids: append([]Owner(nil), d.ids...)}
	for _, w := range gone {
		next.owners[w.id.slot()], next.ids[w.id.slot()] = nil, NoOwner
	}
	return next
}

func (d *directory) has(o Owner) bool {
	if d == nil {
		return false
	}
	s := o.slot()
	return s < len(d.ids) && d.ids[s] == o && o != NoOwner
}

// Owner returns the owner of a worker's rank, made if there is none. It returns [NoOwner] while [maxOwners] are live.
func (x *Index) Owner(worker string, rank int) Owner {
	if o, ok := x.Lookup(worker, rank); ok {
		return o
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	n := name{worker, rank}
	if w, ok := x.byName[n]; ok {
		return w.id
	}
	var id Owner
	dir := x.dir.Load()
	switch last := len(x.free) - 1; {
	case last >= 0:
		id, x.free = x.free[last], x.free[:last]
	case len(dir.owners) < maxOwners:
		id = Owner(len(dir.owners))
	default:
		return NoOwner
	}
	w := &owner{id: id, name: n}
	x.byName[n] = w
	x.ranks[worker] = append(x.ranks[worker], w)
	x.dir.Store(dir.with(w))
	x.epoch.Add(1)
	return id
}

// Lookup returns the owner of a worker's rank, if there is one.
func (x *Index) Lookup(worker string, rank int) (Owner, bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	w, ok := x.byName[name{worker, rank}]
	if !ok {
		return NoOwner, false
	}
	return w.id, true
}

// Epoch changes when an owner is made or dropped: look up kept Owners again then.
func (x *Index) Epoch() uint64 { return x.epoch.Load() }

// owner returns the live owner named o, or nil.
func (x *Index) owner(o Owner) *owner {
	if dir := x.dir.Load(); dir.has(o) {
		return dir.owners[o.slot()]
	}
	return nil
}
