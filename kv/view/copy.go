package view

import (
	"encoding/binary"
	"errors"
	"maps"
	"slices"

	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/kv/wire"
)

// Copy is a [View] at one moment, for another process that follows the same rank. It is quick to take, so that the View
// is not held up while it is encoded.
//
// Its codec is written by hand for views of millions of blocks: a block takes 19 bytes, and checking it 43 ns and no
// memory. The codec that msgp generates for the same fields takes 24 bytes, 140 ns and 80 bytes of memory.
type Copy struct {
	known     known
	group     group
	copies    copies
	part      index.Part
	blockSize int
	largest   int
}

// Copy returns the view as it is now. It may be used while the View goes on.
func (v *View) Copy() *Copy {
	k := known{homes: v.known.homes, n: v.known.n, slots: slices.Clone(v.known.slots), marks: slices.Clone(v.known.marks)}
	k.seeds.of, k.odds.words = slices.Clone(v.known.seeds.of), slices.Clone(v.known.odds.words)
	return &Copy{k, v.group, maps.Clone(v.copies), v.part, v.blockSize, v.largest}
}

// A block's link names the parent of its first own hash in the index.
const (
	linkUnknown = iota
	linkFirst   // it begins a prompt
	linkFollows // a parent is named
	linkBefore  // the last own hash of the block before it in the encoding
)

type copied struct {
	at     int // in known
	link   byte
	parent uint64
	next   int // a block that follows on this one, so that chains stand together; -1 none
	behind bool
	done   bool
}

// Append encodes the copy: as varints the block sizes, the KV-cache group (one more than its number, 0 where no event
// named its kind) and the number of blocks. Then of each block its hash and sequence hash in eight bytes, its mark in
// two; its seed, own hashes, tail and link; then of each further copy the block's hash, its place and how many. What
// each block follows on is asked of the index, and is unknown of one that has gone since: the index is slower with
// those, and as right.
func (c *Copy) Append(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(c.blockSize))
	dst = binary.AppendUvarint(dst, uint64(c.largest))
	dst = binary.AppendUvarint(dst, c.group.number())
	dst = binary.AppendUvarint(dst, uint64(c.known.n))
	all := c.chains()
	w := copyWriter{copy: c, dst: dst}
	for _, whole := range []bool{false, true} { // the second time for what follows on itself, as only chance would have it
		for i := range all {
			for j, link := i, byte(linkUnknown); j >= 0 && !all[j].done && (whole || link == linkBefore || !all[j].behind); j = all[j].next {
				if link != linkBefore {
					link = all[j].link
				}
				w.add(&all[j], link)
				link, all[j].done = linkBefore, true
			}
		}
	}
	return c.copies.append(w.dst)
}

// chains are the copy's blocks, each with its link, and with one that follows on it.
func (c *Copy) chains() []copied {
	all, by := make([]copied, 0, c.known.n), make(map[uint64]int, c.known.n)
	for i, m := range c.known.marks {
		if m == 0 {
			continue
		}
		b := c.known.at(i)
		k := copied{at: i, next: -1}
		if run := c.own(i, &b); len(run) > 0 {
			k.link, k.parent = c.link(b.held, run)
			by[b.seq] = len(all)
		}
		all = append(all, k)
	}
	for i := range all {
		if all[i].link != linkFollows {
			continue
		}
		if before, ok := by[all[i].parent]; ok && all[before].next < 0 {
			all[before].next, all[i].behind = i, true
		}
	}
	return all
}

// own are the own hashes of the block at i.
func (c *Copy) own(i int, b *block) []uint64 {
	if b.own&ownMask == ownOne {
		return []uint64{b.seq}
	}
	return c.known.run(i)
}

// copyWriter encodes one block after another.
type copyWriter struct {
	copy *Copy
	dst  []byte
	seed uint64
	tail []uint32
}

func (w *copyWriter) add(k *copied, link byte) {
	known := &w.copy.known
	b := known.at(k.at)
	newSeed := byte(0)
	if b.seed != w.seed {
		newSeed = 1
	}
	w.word(uint64(unmix(known.slots[k.at].key)))
	w.word(b.seq)
	w.dst = append(w.dst, byte(markOf(b.held)), byte(b.own)|link<<4|newSeed<<6)
	if newSeed == 1 {
		w.seed = b.seed
		w.word(b.seed)
	}
	if link == linkFollows {
		w.word(k.parent)
	}
	if b.own&ownMask == ownMany {
		run := known.run(k.at)
		w.dst = binary.AppendUvarint(w.dst, uint64(len(run)))
		for _, h := range run[:len(run)-1] { // the last is seq
			w.word(h)
		}
	}
	w.tail = known.tail(w.tail[:0], k.at)
	w.dst = binary.AppendUvarint(w.dst, uint64(len(w.tail)))
	for _, id := range w.tail {
		w.dst = binary.AppendUvarint(w.dst, uint64(id))
	}
}

func (w *copyWriter) word(n uint64) { w.dst = binary.LittleEndian.AppendUint64(w.dst, n) }

// link returns the parent of own hashes, by the first place that has it.
func (c *Copy) link(held tierSet, run []uint64) (link byte, parent uint64) {
	for t := index.Device; t <= index.Shared; t++ {
		if held&(1<<t) == 0 {
			continue
		}
		switch parent, first, ok := c.part.Parent(t, run[0]); {
		case ok && first:
			return linkFirst, 0
		case ok:
			return linkFollows, parent
		}
	}
	return linkUnknown, 0
}

// unmix is the hash whose key mix makes.
func unmix(x uint64) wire.Hash {
	x ^= x >> 32
	x *= unmixB
	x ^= x>>29 ^ x>>58
	x *= unmixA
	return wire.Hash(x ^ x>>32)
}

var unmixA, unmixB = inverse(mixA), inverse(mixB)

// inverse is what an odd number is to be multiplied by for 1, modulo 2^64: Newton's iteration doubles the bits that are
// right.
func inverse(odd uint64) uint64 {
	x := odd // right in three bits
	for range 5 {
		x *= 2 - odd*x
	}
	return x
}

var (
	errCopy     = errors.New("the copy of a view is malformed")
	errCopySize = errors.New("the copy of a view is of another block size")
)

// ReadableCopy is an encoded [Copy] that [ReadCopy] has checked.
type ReadableCopy struct {
	data    []byte // of the blocks
	largest int
	group   uint64
	blocks  int
	copies  []byte
}

// ReadCopy checks what [Copy.Append] wrote, which may be anything. blockSize is the router's. It keeps data.
func ReadCopy(data []byte, blockSize int) (ReadableCopy, error) {
	size, data, ok1 := uvarint(data, 1<<16-1)
	largest, data, ok2 := uvarint(data, 1<<31-1)
	group, data, ok3 := uvarint(data, 1<<31)
	blocks, data, ok4 := uvarint(data, uint64(len(data)/leastCopied))
	switch {
	case !ok1 || !ok2 || !ok3 || !ok4:
		return ReadableCopy{}, errCopy
	case int(size) != blockSize:
		return ReadableCopy{}, errCopySize
	}
	c := ReadableCopy{data: data, largest: int(largest), group: group, blocks: int(blocks)}
	r := copyReader{data: data, blockSize: blockSize}
	for range c.blocks {
		if !r.next() {
			return ReadableCopy{}, errCopy
		}
	}
	further, data, ok := uvarint(r.data, uint64(c.blocks)*(index.Tiers+1))
	if !ok || len(data) != int(further)*copiedBytes {
		return ReadableCopy{}, errCopy
	}
	c.data, c.copies = c.data[:len(c.data)-len(r.data)], data
	return c, nil
}

// Restore makes an empty view what a copy shows, and its part of the index with it. It reports false, and the view stays
// empty, where the copy is of another block size or has more blocks than the rank may have.
func (v *View) Restore(c ReadableCopy) bool {
	v.Clear()
	v.bound.widen(c.largest, 1<<index.Device, v.blockSize)
	for r := v.reader(c); r.next(); {
		v.bound.widen(0, r.block.held, v.blockSize)
	}
	if c.blocks > v.bound.most {
		v.Clear()
		return false
	}
	v.largest = max(v.largest, c.largest)
	if c.group > 0 {
		v.group = group{idx: int64(c.group - 1), kind: "full_attention"}
	}
	coming := c.blocks
	var ends chained
	for r := v.reader(c); r.next(); coming-- {
		if _, ok := v.known.find(r.hash); ok { // of one that is named twice the first counts, in the index too: no removal would end the second
			v.chain(&ends)
			ends.held = 0
			continue
		}
		v.known.add(r.hash, r.block, r.run, r.tail, coming)
		v.ages.restored(r.hash, r.block.held, v.now)
		if len(r.run) == 0 {
			continue
		}
		if r.link != linkBefore || r.block.held != ends.held {
			v.chain(&ends)
			ends.held, ends.link, ends.parent = r.block.held, r.link, r.parent
		}
		ends.run = append(ends.run, r.run...)
	}
	v.chain(&ends)
	if v.outgrown() {
		v.Clear()
		return false
	}
	v.restoreCopies(c.copies)
	return true
}

// chained is blocks that follow on each other, in one place.
type chained struct {
	held   tierSet
	link   byte
	parent uint64
	run    []uint64
}

// chain puts blocks into the index, and empties c.
func (v *View) chain(c *chained) {
	for t := index.Device; t <= index.Shared && len(c.run) > 0; t++ {
		switch {
		case c.held&(1<<t) == 0:
		case c.link == linkFirst:
			v.part.Store(t, c.run)
		case c.link == linkUnknown:
			v.part.Place(t, c.run)
		default:
			v.part.Extend(t, c.parent, c.run)
		}
	}
	c.run = c.run[:0]
}

func (v *View) reader(c ReadableCopy) *copyReader {
	return &copyReader{data: c.data, blockSize: v.blockSize}
}

// leastCopied is what a block takes at least, in bytes.
const leastCopied = 8 + 8 + 2 + 1

// copyReader reads one block after another.
type copyReader struct {
	data      []byte
	blockSize int
	seed      uint64

	hash   wire.Hash
	block  block
	link   byte
	parent uint64   // of linkFollows and linkBefore
	run    []uint64 // own hashes
	tail   []uint32
}

// next reads a block; false where there is none, or none that a View could have.
func (r *copyReader) next() bool {
	if len(r.data) < leastCopied {
		return false
	}
	hash, seq, held, how := binary.LittleEndian.Uint64(r.data), binary.LittleEndian.Uint64(r.data[8:]), mark(r.data[16]), r.data[17]
	r.data = r.data[18:]
	ok := held != 0 && held <= heldMask && how>>7 == 0
	if how>>6&1 == 1 {
		r.seed, ok = r.word(ok)
	}
	r.hash, r.link = wire.Hash(hash), how>>4&3
	switch last := len(r.run) - 1; {
	case r.link == linkFollows:
		r.parent, ok = r.word(ok)
	case r.link == linkBefore && last < 0:
		return false
	case r.link == linkBefore:
		r.parent = r.run[last]
	}
	own := ownership(how & 15)
	r.run = r.run[:0]
	var n uint64
	switch own & ownMask {
	case ownNone:
		ok = ok && r.link == linkUnknown
	case ownOne:
		r.run = append(r.run, seq)
	case ownMany:
		var whole bool
		n, r.data, whole = uvarint(r.data, 1<<16-1)
		if !ok || !whole || n < 2 || len(r.data) < 8*int(n-1) {
			return false
		}
		for range n - 1 {
			var h uint64
			h, ok = r.word(ok)
			r.run = append(r.run, h)
		}
		r.run = append(r.run, seq)
	default:
		return false
	}
	n, r.data, _ = uvarint(r.data, 1<<16-1)
	r.tail = r.tail[:0]
	if !ok || r.data == nil || int(n) >= r.blockSize || int(n) > len(r.data) {
		return false
	}
	for range n {
		var id uint64
		if id, r.data, ok = uvarint(r.data, 1<<32-1); !ok {
			return false
		}
		r.tail = append(r.tail, uint32(id))
	}
	r.block = block{seq: seq, seed: r.seed, tail: uint16(n), own: own, held: held.held()}
	if own&lost != 0 {
		return own == lost && n == 0
	}
	return (own&hasSeq != 0) == (len(r.run) > 0 || own == hasSeq)
}

// word reads eight bytes.
func (r *copyReader) word(ok bool) (uint64, bool) {
	if !ok || len(r.data) < 8 {
		return 0, false
	}
	w := binary.LittleEndian.Uint64(r.data)
	r.data = r.data[8:]
	return w, true
}

// uvarint reads a number of at most most, and returns what follows it; never nil after a number.
func uvarint(data []byte, most uint64) (n uint64, rest []byte, ok bool) {
	n, size := binary.Uvarint(data)
	if size <= 0 || n > most {
		return 0, nil, false
	}
	return n, data[size:], true
}
