// Package granule says into how long pieces a prompt is cut for what is predicted of it: granules of whole blocks,
// which grow with their place in the prompt. So a long prompt is named by few hashes.
//
// Where granules end depends on nothing but their place. Two prompts that begin alike have the same granules up to
// where they part, however long each of them is. What granules name of a common beginning falls short of it by less
// than one granule: less than 1/32 of it and a block.
package granule

import "math/bits"

// Each power of two blocks, from perOctave on, is cut into perOctave granules of one length; before it a granule is
// one block.
const (
	perOctave  = 32
	octaveBits = 5
)

// Blocks returns how many blocks the first n granules have, n at least 0.
func Blocks(n int) int {
	if n < perOctave {
		return n
	}
	return (perOctave + n%perOctave) << (n/perOctave - 1)
}

// Within returns how many granules the first so many blocks, at least 0, have in full.
func Within(blocks int) int {
	if blocks < perOctave {
		return blocks
	}
	octave := bits.Len(uint(blocks)) - octaveBits - 1
	return perOctave*octave + blocks>>octave
}

// Append appends to dst the granules of a prompt whose blocks have the given sequence hashes: a granule's hash is that
// of its last block, which names all before it.
func Append(dst, hashes []uint64) []uint64 {
	single := min(len(hashes), 2*perOctave)
	dst = append(dst, hashes[:single]...)
	for i := range max(0, Within(len(hashes))-single) {
		dst = append(dst, hashes[Blocks(single+i+1)-1])
	}
	return dst
}

// Unit is what a chain of hashes names.
type Unit bool

// The units: blocks of tokens, and granules of text.
const (
	Block Unit = false
	Text  Unit = true
)

// Blocks returns how many blocks the first n of a chain's hashes name.
func (u Unit) Blocks(n int) int {
	if u == Text {
		return Blocks(n)
	}
	return n
}

// Within returns how many of a chain's hashes name blocks that are all among the first so many.
func (u Unit) Within(blocks int) int {
	if u == Text {
		return Within(blocks)
	}
	return blocks
}
