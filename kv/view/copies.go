package view

import (
	"encoding/binary"
	"math/bits"
	"slices"

	"github.com/tandem-pd/tandem/kv/wire"
)

// copies counts blocks that an engine holds several times in one place. vLLM computes some blocks that are cached:
// the last one of a prompt that is cached whole, and all that a hybrid model's window cannot reach. It stores such a
// block in another one of its pool, announces it again, and sends a removal for each (v1/core/block_pool.py of 0.32).
// Its offloading connector announces a block once a chunk. The block has gone with the last.
type copies map[spot]int

// spot is one block in one place: a tierSet of one, or a medium's bit.
type spot struct {
	hash  wire.Hash
	place uint64
}

// mostCopies bounds the counted further copies of a block; recordings of vLLM 0.32 have up to three. It bounds a block's
// size in a snapshot.
const mostCopies = 31

// add counts one copy more, and reports whether it did.
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

// take counts one copy less, and reports whether there was one.
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

// copied counts a block that is stored once more where it is.
func (v *View) copied(h wire.Hash, held tierSet) {
	if v.copies.add(h, uint64(held)) && held == onDevice {
		v.again++
	}
}

// Uncount has each block be held once. The caller does that while events are missing: an engine that then announces chains
// again, as they are asked for, holds no more of them.
func (v *View) Uncount() { v.copies, v.again = nil, 0 }

// recount uncounts if the engine's device has not as many blocks as there would be: it has announced what it had.
func (v *View) recount() {
	if b := &v.bound; b.registered > 0 && b.largest > 0 && v.known.device+v.again > b.registered*v.blockSize/b.largest {
		v.Uncount()
	}
}

// copiedBytes is what the copies of a block in one place take, encoded.
const copiedBytes = 8 + 1 + 1

func (c copies) append(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(c)))
	for at, n := range c {
		dst = append(binary.LittleEndian.AppendUint64(dst, uint64(at.hash)), byte(at.place), byte(n))
	}
	return dst
}

// restoreCopies counts what append wrote behind the number, as far as such blocks are known.
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
