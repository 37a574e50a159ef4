package index

import (
	"math/bits"
	"sync"
	"sync/atomic"
)

// table maps the hashes of one tier to the slots of their owners.
//
// A hash has a slot of 16 bytes: the hash and a holders' word, which has up to four owners or the number of a bitset in
// the shard's arena. Writers take the shard's lock, readers none: see [generation].
type table struct {
	now    []atomic.Pointer[generation] // by shard, never nil; dense, for readers
	shards []shard
}

// shard is the writers' state of one part of a table. Padding keeps locks of two shards off one cache line.
type shard struct {
	now *atomic.Pointer[generation]

	mu   sync.Mutex // guards what follows, and writes to the generation
	used int        // slots with a hash
	live int        // slots with a holder
	sets int        // bitsets given out

	_ [64]byte
}

// generation is one version of a shard's memory. Within it a slot goes from empty to one hash and keeps it, with or
// without holders; a bitset belongs to one slot. A reader that finds its hash can trust the word next to it. Slots and
// bitsets are only reused by the next generation, which is built aside and published; readers of the old one see its
// last state.
//
// Shared words are accessed with sync/atomic, except before publication.
type generation struct {
	slots  []uint64 // pairs: hash, word; a word of zero is an empty slot
	places int      // len(slots)/2
	stride int      // words in a bitset
	arena  atomic.Pointer[[]uint64]
}

// The holders' word: up to four owners as slot+1 in lanes of 15 bits, ascending from the lowest, so that equal sets are
// equal words; or, with bitOver, the number of a bitset. bitUsed distinguishes a slot without holders from an empty
// one. Readers set bitMet by compare-and-swap; it may be lost and does not count in comparisons.
const (
	bitOver  = 1 << 63
	bitUsed  = 1 << 62
	bitMet   = 1 << 61
	bitFlags = bitOver | bitUsed | bitMet
	lanes    = 4
	laneBits = slotBits
	laneMask = slotMask
	setMask  = 1<<32 - 1
)

const minPlaces = 32

func newTable(shards int) *table {
	t := &table{now: make([]atomic.Pointer[generation], shards), shards: make([]shard, shards)}
	for i := range t.shards {
		t.now[i].Store(newGeneration(minPlaces, 1, 0))
		t.shards[i].now = &t.now[i]
	}
	return t
}

func newGeneration(places, stride, sets int) *generation {
	g := &generation{slots: make([]uint64, 2*places), places: places, stride: stride}
	advise(g.slots)
	arena := make([]uint64, sets*stride)
	g.arena.Store(&arena)
	return g
}

// load returns the holders' word of hash h and its generation; the word is zero if h is unknown.
func (t *table) load(h uint64) (*generation, uint64) {
	g := t.generation(h)
	i, word := g.touch(h)
	return g, g.probe(h, i, word)
}

// touch prefetches the searches for up to batch hashes, so that a writer under locks does not wait for each cache line
// in turn.
func (t *table) touch(hashes []uint64) (used int) {
	for _, h := range hashes[:min(batch, len(hashes))] {
		g := t.generation(h)
		i, word := g.touch(h)
		next := atomic.LoadUint64(&g.slots[min(2*i+9, len(g.slots)-1)])
		used += int((word | next) >> 62 & 1)
	}
	return used
}

// ahead prefetches the first blocks that Match will leap to, while it waits for the first block.
func (t *table) ahead(hashes []uint64) {
	for at := batch; at < len(hashes)+batch-1 && at <= jumps*batch; at += batch {
		h := hashes[min(at, len(hashes)-1)]
		t.generation(h).touch(h)
	}
}

// generation returns the current one with h's slot.
func (t *table) generation(h uint64) *generation {
	return t.now[h&uint64(len(t.now)-1)].Load()
}

// touch returns the place where the search for h begins, and its word. Touching many hashes before probing waits once
// for many cache lines.
func (g *generation) touch(h uint64) (i int, word uint64) {
	i = place(h, g.places)
	return i, atomic.LoadUint64(&g.slots[2*i+1])
}

// probe continues from touch and returns h's word, or zero.
func (g *generation) probe(h uint64, i int, word uint64) uint64 {
	// The word is read before the hash and written after it, so a reader of the word sees the hash.
	for word != 0 && atomic.LoadUint64(&g.slots[2*i]) != h {
		i = after(i, g.places)
		word = atomic.LoadUint64(&g.slots[2*i+1])
	}
	return word
}

// bitset returns the bitset of an overflowing word. Access its words with sync/atomic.
func (g *generation) bitset(word uint64) []uint64 {
	arena := *g.arena.Load() // after the word: it is never older than its set
	i := int(word&setMask) * g.stride
	return arena[i : i+g.stride : i+g.stride]
}

// add makes slot a holder of h. It must not be one.
func (t *table) add(h uint64, slot int) {
	s := &t.shards[h&uint64(len(t.shards)-1)]
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.now.Load()
	if slot >= g.stride*64 {
		g = s.rebuild(slot) // every holder has a bit, should the word spill
	}
	i, word := g.find(h)
	if word == 0 {
		if (s.used+1)*4 > g.places*3 {
			g = s.rebuild(slot)
			i, _ = g.find(h)
		}
		atomic.StoreUint64(&g.slots[2*i], h)
		word = bitUsed
		s.used++
	}
	if g.vacant(word) {
		s.live++
	}
	if word&bitOver != 0 {
		set := g.bitset(word)
		atomic.StoreUint64(&set[slot/64], set[slot/64]|1<<(slot%64))
		return
	}
	next, ok := insert(word, slot)
	if !ok {
		next = s.spill(g, word, slot)
	}
	atomic.StoreUint64(&g.slots[2*i+1], next)
}

func (t *table) remove(h uint64, slot int) {
	s := &t.shards[h&uint64(len(t.shards)-1)]
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.now.Load()
	i, word := g.find(h)
	switch {
	case word == 0:
		return
	case word&bitOver != 0:
		set := g.bitset(word)
		atomic.StoreUint64(&set[slot/64], set[slot/64]&^(1<<(slot%64)))
	default:
		word = erase(word, slot)
		atomic.StoreUint64(&g.slots[2*i+1], word)
	}
	if !g.vacant(word) {
		return
	}
	s.live--
	if g.places > minPlaces && (s.used-s.live)*2 > g.places {
		s.rebuild(0)
	}
}

// meet records that a Match ended with block h. It may be lost.
func (t *table) meet(h uint64) {
	g := t.generation(h)
	i, word := g.touch(h)
	for word != 0 && atomic.LoadUint64(&g.slots[2*i]) != h {
		i = after(i, g.places)
		word = atomic.LoadUint64(&g.slots[2*i+1])
	}
	if word != 0 && word&bitMet == 0 {
		atomic.CompareAndSwapUint64(&g.slots[2*i+1], word, word|bitMet)
	}
}

// wasMet reports whether block h was met since the last call.
func (t *table) wasMet(h uint64) bool {
	s := &t.shards[h&uint64(len(t.shards)-1)]
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.now.Load()
	i, word := g.find(h)
	return word&bitMet != 0 && atomic.CompareAndSwapUint64(&g.slots[2*i+1], word, word&^bitMet)
}

// size returns the number of hashes with holders and the bytes of the arrays.
func (t *table) size() (blocks, bytes int) {
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		g := s.now.Load()
		blocks += s.live
		bytes += 8 * (len(g.slots) + len(*g.arena.Load()))
		s.mu.Unlock()
	}
	return blocks, bytes
}

// find returns h's place and word, or its empty place and zero. It is load for writers.
func (g *generation) find(h uint64) (int, uint64) {
	for i := place(h, g.places); ; i = after(i, g.places) {
		if w := atomic.LoadUint64(&g.slots[2*i+1]); w == 0 || g.slots[2*i] == h {
			return i, w
		}
	}
}

// vacant reports whether a word has no owner.
func (g *generation) vacant(word uint64) bool {
	if word&bitOver == 0 {
		return word&^bitFlags == 0
	}
	for _, b := range g.bitset(word) {
		if b != 0 {
			return false
		}
	}
	return true
}

// insert adds slot to a word's lanes; false if they are full.
func insert(word uint64, slot int) (uint64, bool) {
	if word>>((lanes-1)*laneBits)&laneMask != 0 {
		return word, false
	}
	lane := uint64(slot + 1)
	shift := 0
	for ; word>>shift&laneMask != 0 && word>>shift&laneMask < lane; shift += laneBits {
	}
	held := word &^ bitFlags
	low := held & (1<<shift - 1)
	high := held >> shift << (shift + laneBits)
	return high | lane<<shift | low | bitUsed, true
}

// erase removes slot from a word's lanes.
func erase(word uint64, slot int) uint64 {
	held := word &^ bitFlags
	for shift := 0; shift < lanes*laneBits; shift += laneBits {
		if held>>shift&laneMask == uint64(slot+1) {
			low := held & (1<<shift - 1)
			high := held >> (shift + laneBits) << shift
			return high | low | bitUsed
		}
	}
	return word
}

// spill moves a full word's holders and slot to a bitset, and returns its word. The caller holds s.mu.
func (s *shard) spill(g *generation, word uint64, slot int) uint64 {
	arena := *g.arena.Load()
	if end := (s.sets + 1) * g.stride; end > len(arena) {
		wider := make([]uint64, max(2*len(arena), 4*g.stride))
		copy(wider, arena)
		g.arena.Store(&wider)
	}
	next := uint64(s.sets) | bitOver | bitUsed
	s.sets++
	set := g.bitset(next)
	put := func(slot int) {
		atomic.StoreUint64(&set[slot/64], set[slot/64]|1<<(slot%64))
	}
	for w := word &^ bitFlags; w != 0; w >>= laneBits {
		put(int(w&laneMask) - 1)
	}
	put(slot)
	return next
}

// rebuild publishes a new generation of the slots with holders, with bitsets wide enough for slot. The caller holds
// s.mu.
//
// A rebuilt shard is 3/5 full, and is rebuilt at 3/4, so an insertion pays for moving about four others, in memory
// order.
func (s *shard) rebuild(slot int) *generation {
	old := s.now.Load()
	stride := old.stride
	for stride*64 <= slot {
		stride *= 2
	}
	g := newGeneration(max(minPlaces, (s.live+1)*5/3+1), stride, 0)
	s.used, s.sets = 0, 0
	for i := 0; i < len(old.slots); i += 2 {
		h, word := old.slots[i], atomic.LoadUint64(&old.slots[i+1])
		if old.vacant(word) {
			continue
		}
		j, _ := g.find(h)
		g.slots[2*j] = h
		g.slots[2*j+1] = s.carry(g, old, word)
		s.used++
	}
	join(g.slots)
	s.now.Store(g)
	return g
}

// carry returns the word in g for the holders of word in old.
func (s *shard) carry(g, old *generation, word uint64) uint64 {
	if word&bitOver == 0 {
		return word
	}
	next := uint64(bitUsed)
	for k, b := range old.bitset(word) {
		for ; b != 0; b &= b - 1 {
			slot := k*64 + bits.TrailingZeros64(b)
			if next&bitOver != 0 {
				g.bitset(next)[slot/64] |= 1 << (slot % 64)
				continue
			}
			wider, ok := insert(next, slot)
			if !ok {
				wider = s.spill(g, next, slot)
			}
			next = wider
		}
	}
	return next
}
