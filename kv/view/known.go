package view

import (
	"hash/maphash"
	"math/bits"

	"github.com/tandem-pd/tandem/kv/wire"
)

// known stores the engine's blocks of a [View] by the engine's hash. It has no pointers beyond its arrays. It takes
// 20.6 to 22.5 bytes a block of the usual kind, one that is also one of the router's.
//
// It is open addressing in the order of the keys. A hash is mixed, one to one, into its key; the key's share of 2^64 is
// its home's share of the table; a key whose home is taken stands behind it, the keys ascending. So the table is sorted
// but for empty slots, a search ends at the first greater key, and growing is one pass in the order of memory. Removing
// moves back the keys behind their homes, and leaves no tombstones.
type known struct {
	slots  []slot
	marks  []mark // parallel to slots; zero is an empty slot, and the last one is always empty
	homes  int    // slots that are a home; the few behind them take what is pushed over the end
	n      int    // blocks
	device int    // of these, on the device
	seeds  seeds
	odds   odds
}

// slot is a block's key, and its sequence hash; or the number of its record in odds.
type slot struct{ key, value uint64 }

// mark is all else: from the lowest bit on four tiers, elsewhere, four bits of ownership, whether the block is an odd
// one, and the number of its seed.
type mark uint16

const (
	markOwn       = 5
	markOdd  mark = 1 << 9
	markSeed      = 10
	maxSeeds      = 1 << (16 - markSeed)

	tierMask      = elsewhere>>3 - 1
	elsewhereMark = 3 // bits that elsewhere stands lower in a mark

	// behind is how many slots there are behind the last home, the empty one included.
	behind = 32
	// reads is how many blocks are read ahead before the first is used, so that the processor waits for many lines of
	// memory at once.
	reads = 32
)

func (m mark) own() ownership { return ownership(m >> markOwn & 15) }

func (m mark) held() tierSet {
	return tierSet(m)&tierMask | tierSet(m)<<elsewhereMark&elsewhere
}

func markOf(held tierSet) mark { return mark(held&tierMask | held&elsewhere>>elsewhereMark) }

// heldMask are the bits of a mark for a block's places.
const heldMask = mark(1)<<markOwn - 1

// The multipliers of mix are odd and drawn per process, so that no client can choose names that share a home. A View's
// results do not depend on them.
var mixA, mixB = func() (a, b uint64) {
	seed := maphash.MakeSeed()
	return maphash.String(seed, "a") | 1, maphash.String(seed, "b") | 1
}()

// mix makes a hash a key: a bijection, whose high bits depend on all bits.
func mix(h wire.Hash) uint64 {
	x := uint64(h)
	x = (x ^ x>>32) * mixA
	x = (x ^ x>>29) * mixB
	return x ^ x>>32
}

// home is where the search for a key begins.
func home(key uint64, homes int) int {
	hi, _ := bits.Mul64(key, uint64(homes))
	return int(hi)
}

// clear forgets all blocks.
func (k *known) clear() { *k = known{} }

// touch reads what the searches for the first of hashes will read, and returns how many homes are taken.
func (k *known) touch(hashes []wire.Hash) (taken int) {
	if k.n == 0 {
		return 0
	}
	for _, h := range hashes[:min(reads, len(hashes))] {
		key := mix(h)
		if i := home(key, k.homes); k.slots[i].key <= key && k.marks[i] != 0 {
			taken++
		}
	}
	return taken
}

// find returns where block h is. It holds until a block is added or dropped.
func (k *known) find(h wire.Hash) (at int, ok bool) {
	if k.n == 0 {
		return 0, false
	}
	return k.search(mix(h))
}

// search returns where a key is, or belongs.
func (k *known) search(key uint64) (at int, ok bool) {
	i := home(key, k.homes)
	for k.marks[i] != 0 && k.slots[i].key < key {
		i++
	}
	return i, k.marks[i] != 0 && k.slots[i].key == key
}

// at returns the block there.
func (k *known) at(i int) block {
	m, value := k.marks[i], k.slots[i].value
	b := block{seq: value, own: m.own(), held: m.held()}
	if m&markOdd != 0 {
		b.seq, b.seed, b.tail = k.odds.read(value)
	} else {
		b.seed = k.seeds.of[m>>markSeed].seed
	}
	return b
}

// run returns the own hashes of the block there, if it has more than one, and tail appends the tokens of its tail. What
// run returns is to be used at once.
func (k *known) run(i int) []uint64 {
	if k.marks[i]&markOdd == 0 {
		return nil
	}
	return k.odds.run(k.slots[i].value)
}

func (k *known) tail(into []uint32, i int) []uint32 {
	if k.marks[i]&markOdd == 0 {
		return into
	}
	return k.odds.tail(into, k.slots[i].value)
}

// place sets where the block at a slot is now.
func (k *known) place(i int, held tierSet) {
	k.device += int(held&onDevice) - int(k.marks[i].held()&onDevice)
	k.marks[i] = k.marks[i]&^heldMask | markOf(held)
}

// add adds an unknown block. run are its own hashes if it has more than one. coming is how many blocks, this one
// included, may be added next.
func (k *known) add(h wire.Hash, b block, run []uint64, tail []uint32, coming int) {
	if (k.n+1)*8 > k.homes*7 {
		k.resize(coming)
	}
	if b.own&ownMask != ownMany {
		run = nil
	}
	key, s, m := mix(h), slot{value: b.seq}, markOf(b.held)|mark(b.own)<<markOwn
	s.key = key
	number, interned := -1, false
	if len(run)+len(tail) == 0 {
		number, interned = k.seeds.use(b.seed)
	}
	if interned {
		m |= mark(number) << markSeed
	} else {
		m |= markOdd
		s.value = k.odds.add(b.seq, b.seed, run, tail)
	}
	for {
		i, _ := k.search(key)
		end := i
		for k.marks[end] != 0 {
			end++
		}
		if end == len(k.marks)-1 {
			k.resize(coming) // chance has filled what is behind the last home
			continue
		}
		copy(k.slots[i+1:end+1], k.slots[i:end])
		copy(k.marks[i+1:end+1], k.marks[i:end])
		k.slots[i], k.marks[i] = s, m
		k.n++
		k.device += int(b.held & onDevice)
		return
	}
}

// drop forgets the block there.
func (k *known) drop(i int) {
	k.device -= int(k.marks[i].held() & onDevice)
	if m := k.marks[i]; m&markOdd != 0 {
		k.odds.drop(k.slots[i].value)
	} else {
		k.seeds.of[m>>markSeed].uses--
	}
	end := i + 1
	for k.marks[end] != 0 && home(k.slots[end].key, k.homes) < end {
		end++
	}
	copy(k.slots[i:], k.slots[i+1:end])
	copy(k.marks[i:], k.marks[i+1:end])
	k.marks[end-1] = 0
	k.n--
	switch {
	case k.n == 0:
		k.clear()
	case k.homes > 2*behind && k.n*2 < k.homes:
		k.resize(0)
	case k.odds.spare > 512 && k.odds.spare*2 > len(k.odds.words): // packing pays
		k.pack()
	}
}

// resize moves the blocks into arrays that are full to four fifths with those that are coming. As they are rebuilt at
// seven eighths, a block that comes alone pays for moving eleven.
func (k *known) resize(coming int) {
	old, oldMarks := k.slots, k.marks
	for k.homes = max((k.n+coming)*5/4+1, 8); !k.refill(old, oldMarks); k.homes += k.homes/8 + 1 {
	}
}

// refill moves the blocks of old into new arrays, unless they would run over the end.
func (k *known) refill(old []slot, oldMarks []mark) bool {
	k.slots, k.marks = make([]slot, k.homes+behind), make([]mark, k.homes+behind)
	next := 0
	for i, m := range oldMarks {
		if m == 0 {
			continue
		}
		next = max(next, home(old[i].key, k.homes))
		if next >= len(k.marks)-2 {
			return false
		}
		k.slots[next], k.marks[next] = old[i], m
		next++
	}
	return true
}

// pack moves the odd blocks' records together.
func (k *known) pack() {
	packed := odds{words: make([]uint64, 0, len(k.odds.words)-k.odds.spare+recordWords)}
	for i, m := range k.marks {
		if m&markOdd != 0 {
			k.slots[i].value = packed.move(&k.odds, k.slots[i].value)
		}
	}
	k.odds = packed
}

// seeds are the few seeds that most chains begin with, each once, so that a block's mark can name its own.
type seeds struct {
	of   []seedUse
	last int // the one used last
}

type seedUse struct {
	seed uint64
	uses int // blocks
}

// use returns the number of a seed for one block more; false when others have taken all numbers.
func (s *seeds) use(seed uint64) (number int, ok bool) {
	if s.last >= len(s.of) || s.of[s.last].seed != seed {
		free := -1
		s.last = -1
		for i := range s.of {
			switch {
			case s.of[i].seed == seed && s.of[i].uses > 0:
				s.last = i
			case s.of[i].uses == 0:
				free = i
			}
		}
		switch {
		case s.last >= 0:
		case free >= 0:
			s.last = free
		case len(s.of) < maxSeeds:
			s.last = len(s.of)
			s.of = append(s.of, seedUse{})
		default:
			s.last = 0
			return 0, false
		}
		s.of[s.last].seed = seed
	}
	s.of[s.last].uses++
	return s.last, true
}
