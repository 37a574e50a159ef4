package index

import "math/bits"

// held is the set of blocks that one owner holds on one tier, and their parents: the map from owner to blocks, where
// tables map from block to owners. It has no pointers.
//
// A parent that is not held has an entry too, as a missing one. Blocks with missing parents are counted: if there are
// none, an owner that holds a block holds all before it.
type held struct {
	entries []pair   // by number; the first two are root and unknown
	places  []uint32 // open addressing: distance from home, and entry number; 0 is empty
	free    uint32   // first free entry, linked by parent; 0 none
	n       int      // blocks held
	named   int      // entries in places: held or missing
	holes   int      // blocks held whose parent is missing
}

// pair is one block of one owner.
type pair struct {
	hash   uint64
	parent uint32 // entry number of the parent
	state  uint32 // inHand, a stamp of 7 bits, and the number of held children
}

const (
	root    = 0 // before the first block of a prompt; counts as held
	unknown = 1 // an unknown parent; counts as missing

	numberBits = 24
	numberMask = 1<<numberBits - 1
	farOff     = 255 // from home: so far or farther
	kidsMask   = numberMask
	stampBits  = 7
	stampMask  = 1<<stampBits - 1
	inHand     = 1 << 31

	maxHeld = 1<<(numberBits-1) - 2*piece // keeps the numbers of entries, missing ones included, in their bits
)

func (p *pair) held() bool     { return p.state&inHand != 0 }
func (p *pair) kids() int      { return int(p.state & kidsMask) }
func (p *pair) stamp() uint32  { return p.state >> numberBits & stampMask }
func (p *pair) touch(s uint32) { p.state = p.state&^(stampMask<<numberBits) | s&stampMask<<numberBits }

// bytes is the size of the arrays.
func (s *held) bytes() int { return 16*cap(s.entries) + 4*cap(s.places) }

// has reports whether the block of entry at is held.
func (s *held) has(at uint32) bool { return at == root || s.entries[at].held() }

// find returns the number of h's entry, 0 for none.
func (s *held) find(h uint64) uint32 {
	if s.named == 0 {
		return 0
	}
	i := place(h, len(s.places))
	for d := uint32(0); ; d++ {
		at := s.places[i]
		if at == 0 {
			return 0
		}
		// Only entries with the same home are as far from it here.
		if at>>numberBits == min(d, farOff) && s.entries[at&numberMask].hash == h {
			return at & numberMask
		}
		i = after(i, len(s.places))
	}
}

// touch prefetches what the searches for up to batch hashes read first, here and in the table, as [table.touch] does:
// in passes for homes, table slots and entries. No pass waits for its own loads.
func (s *held) touch(tab *table, hashes []uint64) (found int) {
	hashes = hashes[:min(batch, len(hashes))]
	if s.named == 0 {
		return tab.touch(hashes)
	}
	var at [batch]uint32
	for i, h := range hashes {
		at[i] = s.places[place(h, len(s.places))]
	}
	found = tab.touch(hashes)
	for i, h := range hashes {
		if at[i] == 0 || at[i]>>numberBits == 0 {
			continue // as most are
		}
		p := place(h, len(s.places))
		for d := uint32(0); at[i] != 0 && at[i]>>numberBits != d; d++ {
			p = after(p, len(s.places))
			at[i] = s.places[p]
		}
	}
	for i := range hashes {
		found += s.entries[at[i]&numberMask].kids()
	}
	return found + s.entries[s.free].kids() // the next new one
}

// parentOf returns the parent's hash of block h if known; first, if h begins a prompt.
func (s *held) parentOf(h uint64) (parent uint64, first, known bool) {
	at := s.find(h)
	if at == 0 || !s.entries[at].held() || s.entries[at].parent == unknown {
		return 0, false, false
	}
	if s.entries[at].parent == root {
		return 0, true, true
	}
	return s.entries[s.entries[at].parent].hash, false, true
}

// name returns the number of h's entry, making it if needed. The caller must hold the block or attach a child.
func (s *held) name(h uint64) uint32 {
	if at := s.find(h); at != 0 {
		return at
	}
	if (s.named+1)*5 > len(s.places)*4 {
		s.resize(s.named*3/2 + 16)
	}
	at := s.free
	if at != 0 {
		s.free = s.entries[at].parent
	} else {
		if len(s.entries) == 0 {
			s.entries = make([]pair, 2, 16)
		}
		if len(s.entries) == cap(s.entries) {
			wider := make([]pair, len(s.entries), len(s.entries)*9/8+16)
			copy(wider, s.entries)
			s.entries = wider
		}
		at = uint32(len(s.entries))
		s.entries = s.entries[:at+1]
	}
	s.entries[at] = pair{hash: h}
	s.insert(h, at)
	s.named++
	return at
}

// add holds block h with entry parent, and returns its number and whether it was new. A held block keeps its parent
// unless that was unknown.
func (s *held) add(h uint64, parent uint32, stamp uint32) (at uint32, fresh bool) {
	at = s.name(h)
	e := &s.entries[at]
	e.touch(stamp)
	if e.held() {
		if e.parent == unknown && parent != unknown && parent != at {
			s.leave(e.parent)
			s.follow(e, parent)
		}
		return at, false
	}
	s.holes -= e.kids()
	e.state |= inHand
	s.n++
	if parent == at {
		parent = unknown // a block is not its own parent
	}
	s.follow(e, parent)
	return at, true
}

func (s *held) follow(e *pair, parent uint32) {
	e.parent = parent
	s.entries[parent].state++
	if !s.has(parent) {
		s.holes++
	}
}

// leave undoes follow, and drops a missing block without children.
func (s *held) leave(parent uint32) {
	p := &s.entries[parent]
	p.state--
	if s.has(parent) {
		return
	}
	s.holes--
	if p.kids() == 0 && parent != unknown {
		s.forget(parent)
	}
}

// remove drops block h and reports whether it was held.
func (s *held) remove(h uint64) bool {
	at := s.find(h)
	if at == 0 || !s.entries[at].held() {
		return false
	}
	s.drop(at)
	s.shrink()
	return true
}

// drop drops the held block of entry at.
func (s *held) drop(at uint32) {
	e := &s.entries[at]
	e.state &^= inHand
	s.n--
	s.holes += e.kids()
	parent := e.parent
	if e.kids() == 0 {
		s.forget(at)
	}
	s.leave(parent)
}

// forget frees an entry.
func (s *held) forget(at uint32) {
	n := len(s.places)
	i := place(s.entries[at].hash, n)
	for s.places[i]&numberMask != at {
		i = after(i, n)
	}
	// Entries behind it that would no longer be found move up.
	gap := uint32(1) // from i to j
	for j := after(i, n); s.places[j] != 0; j = after(j, n) {
		if d := s.distance(j); d >= gap {
			s.places[i] = s.places[j]&numberMask | min(d-gap, farOff)<<numberBits
			i, gap = j, 0
		}
		gap++
	}
	s.places[i] = 0
	s.entries[at] = pair{parent: s.free}
	s.free = at
	s.named--
}

// distance returns how far from its home the entry at place i is.
func (s *held) distance(i int) uint32 {
	if d := s.places[i] >> numberBits; d < farOff {
		return d
	}
	d := i - place(s.entries[s.places[i]&numberMask].hash, len(s.places))
	if d < 0 {
		d += len(s.places)
	}
	return uint32(d)
}

// insert writes an entry to its slot.
func (s *held) insert(h uint64, at uint32) {
	i, d := place(h, len(s.places)), uint32(0)
	for s.places[i] != 0 {
		i = after(i, len(s.places))
		d++
	}
	s.places[i] = min(d, farOff)<<numberBits | at
}

// resize moves the places into an array of n.
func (s *held) resize(n int) {
	old := s.places
	s.places = make([]uint32, n)
	for _, at := range old {
		if at != 0 {
			s.insert(s.entries[at&numberMask].hash, at&numberMask)
		}
	}
}

// shrink returns unused memory. Entries are renumbered in the same order.
func (s *held) shrink() {
	if len(s.entries) < 64 || s.named*4 > len(s.entries) {
		return
	}
	moved := make([]uint32, len(s.entries))
	moved[unknown] = unknown
	next := uint32(2)
	for _, at := range s.places {
		if at != 0 {
			moved[at&numberMask] = 1
		}
	}
	for at := 2; at < len(moved); at++ {
		if moved[at] != 0 {
			moved[at] = next
			next++
		}
	}
	entries := make([]pair, next, int(next)*5/4+16)
	copy(entries, s.entries[:2])
	for at := 2; at < len(moved); at++ {
		if moved[at] != 0 {
			e := s.entries[at]
			e.parent = moved[e.parent]
			entries[moved[at]] = e
		}
	}
	s.entries, s.free = entries, 0
	s.places = make([]uint32, s.named*3/2+16)
	for at := uint32(2); at < next; at++ {
		s.insert(entries[at].hash, at)
	}
}

// place maps a hash to one of n places, in the order of the hashes, for any n.
func place(h uint64, n int) int {
	hi, _ := bits.Mul64(h, uint64(n))
	return int(hi)
}

// after is the place behind i, round the end.
func after(i, n int) int {
	if i++; i == n {
		return 0
	}
	return i
}
