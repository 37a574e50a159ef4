package index

// Part is the slice of an [Index] that one worker's rank owns: what a writer of its blocks holds. It is safe for
// concurrent use.
type Part interface {
	// Store adds blocks that are held on a tier and begin a chain, Extend some that follow on parent, Place single blocks.
	Store(t Tier, chain []uint64)
	Extend(t Tier, parent uint64, chain []uint64)
	Place(t Tier, chain []uint64)
	Remove(t Tier, hashes []uint64)
	Clear()
	// Parent returns what a block that is held on a tier follows on; first, that it begins a chain. known is false if
	// the block is not held, or that is unknown.
	Parent(t Tier, hash uint64) (parent uint64, first, known bool)
}

// Part returns the part of a worker's rank, made an owner if needed.
func (x *Index) Part(worker string, rank int) Part { return part{x, x.Owner(worker, rank)} }

// Discard is a Part that stores nothing.
var Discard Part = part{New(Config{}), NoOwner}

type part struct {
	index *Index
	owner Owner
}

func (p part) Store(t Tier, chain []uint64) { p.index.Store(p.owner, t, chain) }

func (p part) Extend(t Tier, parent uint64, chain []uint64) {
	p.index.Extend(p.owner, t, parent, chain)
}

func (p part) Place(t Tier, chain []uint64) { p.index.Place(p.owner, t, chain) }

func (p part) Remove(t Tier, hashes []uint64) { p.index.Remove(p.owner, t, hashes) }

func (p part) Clear() { p.index.Clear(p.owner) }

func (p part) Parent(t Tier, hash uint64) (parent uint64, first, known bool) {
	w := p.index.owner(p.owner)
	if w == nil || t >= Tiers {
		return 0, false, false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.held[t].parentOf(hash)
}
