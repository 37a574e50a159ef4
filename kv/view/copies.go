package view

import (
	"encoding/binary"
	"math/bits"
	"slices"

	"github.com/tandem-pd/tandem/kv/wire"
)

// copies counts blocks that an engine holds several times in one place. vLLM computes some cached blocks again: the
// last one of a fully cached prompt, and all outside of a hybrid model's window. It stores the copy in another block of
// its pool, announces it again, and sends a removal for each (v1/core/block_pool.py of 0.32). Its offloading connector
// announces a block once per chunk. The block is gone with its last copy.
type copies map[spot]int

// spot is one block in one place: a tierSet of one, or a medium's bit.
type spot struct {
	hash  wire.Hash
	place uint64
}

// mostCopies bounds the counted copies of a block besides the first, and so its size in a snapshot; recordings of vLLM
// 0.32 have up to three.
const mostCopies = 31

// add counts another copy, and reports whether it did.
func (c *copies) add(h wire.Hash, place uint64) bool {
	if *c == nil {
		*c = copies{}
	}
	at := spot{h, place}
	if (*c)[at] == mostCopies {
		return false
	}
	(*c)[at]++
	return true
}

// take removes a copy, and reports whether there was one.
func (c copies) take(h wire.Hash, place uint64) bool {
	at := spot{h, place}
	n := c[at]
	if n > 1 {
		c[at] = n - 1
	} else {
		delete(c, at)
	}
	return n > 0
}

// copied counts a block stored again in one place.
func (v *View) copied(h wire.Hash, held tierSet) {
	if v.copies.add(h, uint64(held)) && held == onDevice {
		v.again++
	}
}

// Uncount drops all copies. The caller does that while events are missing: chains that an engine re-announces then are no
// copies.
func (v *View) Uncount() { v.copies, v.again = nil, 0 }

// recount drops all copies if there would be more blocks than the device has: the engine re-announced its blocks.
func (v *View) recount() {
	if b := &v.bound; b.registered > 0 && b.largest > 0 && v.known.device+v.again > b.registered*v.blockSize/b.largest {
		v.Uncount()
	}
}

// copiedBytes is the encoded size of a block's copies in one place.
const copiedBytes = 8 + 1 + 1

func (c copies) append(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(c)))
	for at, n := range c {
		dst = append(binary.LittleEndian.AppendUint64(dst, uint64(at.hash)), byte(at.place), byte(n))
	}
	return dst
}

// restoreCopies reads what append wrote after the number, for known blocks.
func (v *View) restoreCopies(data []byte) {
	for of := range slices.Chunk(data, copiedBytes) {
		h, place := wire.Hash(binary.LittleEndian.Uint64(of)), of[8]
		at, ok := v.known.find(h)
		if !ok || bits.OnesCount8(place) != 1 || v.known.at(at).held&tierSet(place) == 0 {
			continue
		}
		for range of[9] {
			v.copied(h, tierSet(place))
			v.ages.restored(h, tierSet(place), v.now)
		}
	}
	v.recount()
}
