package index

import "math/bits"

// Predicted caches name a prompt by granules: runs of whole blocks that grow with their place, so that a long prompt has few
// hashes. Where granules end depends on their place alone, so two prompts that begin alike share all granules before they part.
// That falls short of their common beginning by less than one granule: less than 1/32 of it and a block.
//
// Each power of two blocks, from perOctave on, is cut into perOctave granules of one length; before it a granule is
// one block.
const (
	perOctave  = 32
	octaveBits = 5
)

// Blocks returns how many blocks the first n granules have, n at least 0.
func GranuleBlocks(n int) int {
	if n < perOctave {
		return n
	}
	return (perOctave + n%perOctave) << (n/perOctave - 1)
}

// Within returns how many granules the first so many blocks, at least 0, have in full.
func GranulesWithin(blocks int) int {
	if blocks < perOctave {
		return blocks
	}
	octave := bits.Len(uint(blocks)) - octaveBits - 1
	return perOctave*octave + blocks>>octave
}

// Append appends to dst the granules of a prompt whose blocks have the given sequence hashes: a granule's hash is that
// of its last block, which names all before it.
func AppendGranules(dst, hashes []uint64) []uint64 {
	single := min(len(hashes), 2*perOctave)
	dst = append(dst, hashes[:single]...)
	for i := range max(0, GranulesWithin(len(hashes))-single) {
		dst = append(dst, hashes[GranuleBlocks(single+i+1)-1])
	}
	return dst
}

// Unit is what a chain of hashes names.
type Unit bool

// The units: blocks of tokens, and granules of text.
const (
	UnitBlock Unit = false
	UnitText  Unit = true
)

// Blocks returns how many blocks the first n of a chain's hashes name.
func (u Unit) Blocks(n int) int {
	if u == UnitText {
		return GranuleBlocks(n)
	}
	return n
}

// Within returns how many of a chain's hashes name blocks that are all among the first so many.
func (u Unit) Within(blocks int) int {
	if u == UnitText {
		return GranulesWithin(blocks)
	}
	return blocks
}
