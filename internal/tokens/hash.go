package tokens

import (
	"encoding/binary"
	"math/bits"
	"slices"
	"unsafe"

	"github.com/zeebo/xxh3"
)

// hashSeed is the seed of block hashes without LoRA and salt, and of the hashes that chain blocks, as in Dynamo's
// lib/tokens and lib/kv-router.
const hashSeed = 1337

// Seed returns the seed of the local hashes of a prompt for the given LoRA adapter and cache salt, each of which may
// be empty:
//
//	1337 + xxh3(lora, seed 0) + xxh3(salt, seed 1)   (modulo 2⁶⁴)
//
// where an empty one adds nothing (Dynamo, lib/kv-router, protocols).
func Seed(lora, salt string) uint64 {
	seed := uint64(hashSeed)
	if lora != "" {
		seed += xxh3.HashStringSeed(lora, 0)
	}
	if salt != "" {
		seed += xxh3.HashStringSeed(salt, 1)
	}
	return seed
}

// LocalHashes appends to dst the hash of each full block of blockSize ids, as little-endian 32-bit words: XXH3-64 with
// the seed. An incomplete block has none, and a blockSize below 1 makes no block. It allocates nothing if dst has room.
func LocalHashes(dst []uint64, ids []uint32, blockSize int, seed uint64) []uint64 {
	if blockSize < 1 {
		return dst
	}
	dst = slices.Grow(dst, len(ids)/blockSize)
	for ; len(ids) >= blockSize; ids = ids[blockSize:] {
		dst = append(dst, xxh3.HashSeed(bytesOf(ids[:blockSize]), seed))
	}
	return dst
}

// SequenceHashes appends to dst the sequence hash of each full block of ids, which names the block and all before it:
// the first block's local hash, and from there on Chain of the hash before and the block's own local one.
func SequenceHashes(dst []uint64, ids []uint32, blockSize int, seed uint64) []uint64 {
	if blockSize < 1 || len(ids) < blockSize {
		return dst
	}
	// Chained on the way: a block is hashed while the chain, a sequence of dependent steps, lags behind.
	dst = slices.Grow(dst, len(ids)/blockSize)
	last := xxh3.HashSeed(bytesOf(ids[:blockSize]), seed)
	dst = append(dst, last)
	for ids = ids[blockSize:]; len(ids) >= blockSize; ids = ids[blockSize:] {
		last = Chain(last, xxh3.HashSeed(bytesOf(ids[:blockSize]), seed))
		dst = append(dst, last)
	}
	return dst
}

// Chain returns the sequence hash of a block with the given local hash after a block with the given sequence hash:
// XXH3-64, seed 1337, of both as little-endian words. The first block of a sequence is not chained.
//
// It is XXH3's case of 9 to 16 bytes (xxHash specification, section XXH3) for this one length and seed: chaining is
// the part of hashing a prompt in which nothing overlaps, and a call with the words in memory takes twice as long.
func Chain(parent, local uint64) uint64 {
	const length = 16
	low, high := parent^chainLow, local^chainHigh
	productHigh, productLow := bits.Mul64(low, high)
	h := length + bits.ReverseBytes64(low) + high + (productHigh ^ productLow)
	h ^= h >> 37
	h *= 0x165667919e3779f9
	return h ^ h>>32
}

// Four words of XXH3's secret, paired and moved by the seed.
const (
	chainLow  = (0x1f67b3b7a4a44072 ^ 0x78e5c0cc4ee679cb) + hashSeed
	chainHigh = (0x2172ffcc7dd05a82 ^ 0x8e2443f7744608b8) - hashSeed
)

var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

// bytesOf returns one or more ids as little-endian 32-bit words: their memory, except on big-endian machines.
func bytesOf(ids []uint32) []byte {
	if littleEndian {
		return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(ids))), 4*len(ids))
	}
	words := make([]byte, 0, 4*len(ids))
	for _, id := range ids {
		words = binary.LittleEndian.AppendUint32(words, id)
	}
	return words
}
