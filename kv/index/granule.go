package index

import "math/bits"

// Predicted caches name a prompt by granules: runs of whole blocks that grow with their position, so a long prompt has
// few hashes. Boundaries depend on the position only, so prompts share all granules before they differ; that is less
// than 1/32 and a block short of the common prefix.
//
// Each power of two blocks, from perOctave on, has perOctave granules of one length; before it a granule is one block.
const (
	perOctave  = 32
	octaveBits = 5
)

// GranuleBlocks returns how many blocks the first n granules have, n at least 0.
func GranuleBlocks(n int) int {
	if n < perOctave {
		return n
	}
	return (perOctave + n%perOctave) << (n/perOctave - 1)
}

// GranulesWithin returns how many granules the first so many blocks, at least 0, have in full.
func GranulesWithin(blocks int) int {
	if blocks < perOctave {
		return blocks
	}
	octave := bits.Len(uint(blocks)) - octaveBits - 1
	return perOctave*octave + blocks>>octave
}

// AppendGranules appends the hashes of a prompt's granules to dst: each is the hash of the granule's last block.
func AppendGranules(dst, hashes []uint64) []uint64 {
	single := min(len(hashes), 2*perOctave)
	dst = append(dst, hashes[:single]...)
	for i := range max(0, GranulesWithin(len(hashes))-single) {
		dst = append(dst, hashes[GranuleBlocks(single+i+1)-1])
	}
	return dst
}

// Unit is what a chain's hashes name.
type Unit bool

// The units: blocks of tokens, and granules of text.
const (
	UnitBlock Unit = false
	UnitText  Unit = true
)

// Blocks returns how many blocks the first n hashes name.
func (u Unit) Blocks(n int) int {
	if u == UnitText {
		return GranuleBlocks(n)
	}
	return n
}

// Within returns how many hashes name only blocks within the first blocks.
func (u Unit) Within(blocks int) int {
	if u == UnitText {
		return GranulesWithin(blocks)
	}
	return blocks
}
