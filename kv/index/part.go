package index

// Part is one owner's part of an [Index], for writers. It is safe for concurrent use.
type Part struct {
	index *Index
	owner Owner
}

// Part returns the part of a worker's rank, made an owner if needed.
func (x *Index) Part(worker string, rank int) Part { return Part{x, x.Owner(worker, rank)} }

// Store is [Index.Store] for the part's owner, and so are the other methods.
func (p Part) Store(t Tier, chain []uint64) { p.index.Store(p.owner, t, chain) }

func (p Part) Extend(t Tier, parent uint64, chain []uint64) {
	p.index.Extend(p.owner, t, parent, chain)
}

func (p Part) Place(t Tier, chain []uint64) { p.index.Place(p.owner, t, chain) }

func (p Part) Remove(t Tier, hashes []uint64) { p.index.Remove(p.owner, t, hashes) }

func (p Part) Clear() { p.index.Clear(p.owner) }

// Parent returns the parent of a block held on a tier; first, if it begins a prompt. known is false if the block is not
// held or its parent unknown.
func (p Part) Parent(t Tier, hash uint64) (parent uint64, first, known bool) {
	w := p.index.owner(p.owner)
	if w == nil || t >= Tiers {
		return 0, false, false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.held[t].parentOf(hash)
}
