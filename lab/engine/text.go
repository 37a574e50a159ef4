package engine

import (
	"encoding/binary"
	"math/bits"

	"github.com/zeebo/xxh3"
)

// State is a rolling 64-bit hash of every token of a sequence so far, prompt and answer alike. The next token is a
// pure function of it. A prompt with the first tokens of its answer behind it continues exactly as the answer did:
// any interruption can be checked token for token.
type State uint64

// Begin is the state of a sequence before its first token. Choices of one
// request differ by it; the only choice of a request is 0.
func Begin(choice int) State {
	return State(0x51_7c_c1_b7_27_22_0a_95).Fold(uint32(choice))
}

// Fold is the state after one more token.
func (s State) Fold(token uint32) State {
	h := (uint64(s) ^ (uint64(token) + 1)) * 0x9e37_79b9_7f4a_7c15
	return State(h ^ h>>29)
}

// FoldAll is the state after all the tokens.
func (s State) FoldAll(tokens []uint32) State {
	for _, t := range tokens {
		s = s.Fold(t)
	}
	return s
}

// Vocabulary is the words of answers.
type Vocabulary struct {
	// Words are the ids that an answer draws from.
	Words []uint32
	// EOS is the id that ends an answer.
	EOS uint32

	first  []uint32            // words with which a sentence may begin; nil for no sentences
	follow map[uint32][]uint32 // by a word, those that may follow it
}

// Next is the token that follows the state: one of the words or, where eos is allowed and with probability 1/128, the
// end. Forbidding the end changes nothing else: a state yields the same word either way.
func (v *Vocabulary) Next(s State, eos bool) uint32 { return v.draw(v.Words, s, eos) }

// sentence is Next of sentences, where there are any; last is the state's last token.
func (v *Vocabulary) sentence(s State, last uint32, eos bool) uint32 {
	words := v.follow[last]
	if words == nil {
		words = v.first
	}
	if words == nil {
		words = v.Words
	}
	return v.draw(words, s, eos)
}

func (v *Vocabulary) draw(words []uint32, s State, eos bool) uint32 {
	h := uint64(s)
	h ^= h >> 32
	h *= 0xd6e8_feb8_6659_fd93
	h ^= h >> 32
	if eos && h&127 == 0 {
		return v.EOS
	}
	h *= 0xd6e8_feb8_6659_fd93
	i, _ := bits.Mul64(h, uint64(len(words)))
	return words[i]
}

// BlockHashes appends the engine's hash of each full block of the tokens to dst
// and returns it. A hash names its block and every block before it:
//
//	h[i] = XXH3-64(little-endian tokens of block i, seed h[i−1]), h[−1] = seed
//
// It is deliberately not the gateway's hash, as no engine's is.
func BlockHashes(dst []uint64, tokens []uint32, blockSize int, seed uint64) []uint64 {
	for ; len(tokens) >= blockSize; tokens = tokens[blockSize:] {
		seed = blockHash(seed, tokens[:blockSize])
		dst = append(dst, seed)
	}
	return dst
}

// blockHash extends a chain that ends in parent by one block.
func blockHash(parent uint64, tokens []uint32) uint64 {
	var stack [256]byte
	buf := stack[:0]
	for _, t := range tokens {
		buf = binary.LittleEndian.AppendUint32(buf, t)
	}
	return xxh3.HashSeed(buf, parent)
}
