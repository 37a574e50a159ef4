package index

// Block is one block that an owner holds, and what it follows on.
type Block struct {
	Hash   uint64
	Parent uint64 // where Follows is set
	// First: it begins a prompt. Follows: it follows on Parent. With neither, it is unknown.
	First, Follows bool
}

// Each calls yield with the blocks that o holds on tier t, in no order, until it returns false. It looks at some
// thousands of them at a time: of what changes meanwhile it yields the one or the other, and a block that moves in
// the owner's set may be missed or come twice.
func (x *Index) Each(o Owner, t Tier, yield func(Block) bool) {
	w := x.owner(o)
	if w == nil || t >= tiers {
		return
	}
	part := make([]Block, 0, 64)
	for at := unknown + 1; ; {
		part = part[:0]
		w.mu.Lock()
		s := &w.held[t]
		for end := min(at+piece, len(s.entries)); at < end; at++ {
			if e := &s.entries[at]; e.held() {
				b := Block{Hash: e.hash, First: e.parent == root, Follows: e.parent > unknown}
				if b.Follows {
					b.Parent = s.entries[e.parent].hash
				}
				part = append(part, b)
			}
		}
		done := at >= len(s.entries)
		w.mu.Unlock()
		for _, b := range part {
			if !yield(b) {
				return
			}
		}
		if done {
			return
		}
	}
}
