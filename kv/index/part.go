package index

// Part is one owner's part of an [Index]: what a writer needs that knows no other owner. It is safe for concurrent use,
// as the index is.
type Part struct {
	index *Index
	owner Owner
}

// Part returns the part of a worker's rank, which becomes an owner if it is not one yet.
func (x *Index) Part(worker string, rank int) Part { return Part{x, x.Owner(worker, rank)} }

// Store is [Index.Store] for the part's owner, and so are the other methods.
func (p Part) Store(t Tier, chain []uint64) { p.index.Store(p.owner, t, chain) }

func (p Part) Extend(t Tier, parent uint64, chain []uint64) {
	p.index.Extend(p.owner, t, parent, chain)
}

func (p Part) Place(t Tier, chain []uint64) { p.index.Place(p.owner, t, chain) }

func (p Part) Remove(t Tier, hashes []uint64) { p.index.Remove(p.owner, t, hashes) }

func (p Part) Clear() { p.index.Clear(p.owner) }

// Parent is what a block that the owner holds on a tier follows on: first, that it begins a prompt. known is false where
// the owner does not hold it there, or that is unknown.
func (p Part) Parent(t Tier, hash uint64) (parent uint64, first, known bool) {
	w := p.index.owner(p.owner)
	if w == nil || t >= Tiers {
		return 0, false, false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.held[t].parentOf(hash)
}
