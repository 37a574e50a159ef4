package tokens

import (
	"encoding/binary"
	"math/bits"
)

// maxKey is the greatest length, in bytes, of a piece that fits a pieceKey.
const maxKey = 16

// pieceKey is a piece of 1 to maxKey bytes as two little-endian words, padded with zeros, and its length. Comparing
// and hashing it touches no memory.
type pieceKey struct {
	lo, hi uint64
	n      uint8
}

func keyOf(s string, i, end int) pieceKey {
	n := end - i
	if len(s)-i < maxKey {
		var b [maxKey]byte
		copy(b[:], s[i:end])
		return pieceKey{binary.LittleEndian.Uint64(b[:8]), binary.LittleEndian.Uint64(b[8:]), uint8(n)}
	}
	if n <= 8 {
		return pieceKey{lo: word64(s, i) & (^uint64(0) >> (64 - 8*n)), n: uint8(n)}
	}
	return pieceKey{word64(s, i), word64(s, i+8) & (^uint64(0) >> (128 - 8*n)), uint8(n)}
}

// word64 reads eight bytes of s, little-endian.
func word64(s string, i int) uint64 {
	b := s[i : i+8]
	return uint64(b[0]) | uint64(b[1])<<8 | uint64(b[2])<<16 | uint64(b[3])<<24 |
		uint64(b[4])<<32 | uint64(b[5])<<40 | uint64(b[6])<<48 | uint64(b[7])<<56
}

// hash spreads the key over 64 bits; its high bits are the good ones.
func (k pieceKey) hash() uint64 {
	h := k.lo*0x9e3779b97f4a7c15 ^ bits.RotateLeft64((k.hi+uint64(k.n))*0xc2b2ae3d27d4eb4f, 32)
	return (h ^ h>>32) * 0x9fb21c651e98df25
}

// vocab finds a token by its bytes. Short tokens are in a flat table with open addressing, at most half full; the few
// long ones in a map.
type vocab struct {
	short []vocabSlot
	shift uint8
	long  map[string]vocabEntry
	max   int // length in bytes of the longest token
}

type vocabSlot struct {
	lo, hi uint64
	vocabEntry
	n uint8 // 0: empty
}

type vocabEntry struct {
	id    uint32
	whole bool // a piece with these bytes is encoded as this one token
}

// newVocab returns an empty table with room for n tokens.
func newVocab(n int) *vocab {
	size := bits.Len(uint(2*n + 1))
	return &vocab{short: make([]vocabSlot, 1<<size), shift: uint8(64 - size), long: make(map[string]vocabEntry)}
}

// add enters a token of at least one byte, unless one with the same bytes is there.
func (v *vocab) add(token string, id uint32, whole bool) {
	v.max = max(v.max, len(token))
	e := vocabEntry{id, whole}
	if len(token) > maxKey {
		if _, taken := v.long[token]; !taken {
			v.long[token] = e
		}
		return
	}
	k := keyOf(token, 0, len(token))
	if s := v.find(k, k.hash()); s.n == 0 {
		*s = vocabSlot{k.lo, k.hi, e, k.n}
	}
}

// get finds the token with exactly these bytes.
func (v *vocab) get(token string) (vocabEntry, bool) {
	switch {
	case token == "":
		return vocabEntry{}, false
	case len(token) > maxKey:
		e, ok := v.long[token]
		return e, ok
	}
	k := keyOf(token, 0, len(token))
	s := v.find(k, k.hash())
	return s.vocabEntry, s.n != 0
}

// find returns the slot of the key with the given hash, or the empty slot where it belongs.
func (v *vocab) find(k pieceKey, hash uint64) *vocabSlot {
	mask := uint64(len(v.short) - 1)
	for at := hash >> v.shift; ; at++ {
		s := &v.short[at&mask]
		if s.lo == k.lo && s.hi == k.hi && s.n == k.n || s.n == 0 {
			return s
		}
	}
}
