package models

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"

	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/tokens"
	"github.com/tandem-pd/tandem/kv/index"
)

// textDomain is added to the seed of blocks of text, so that they are never taken for blocks of tokens.
const textDomain = 0x7465787420626c6f

// maxTextBytes bounds the hashed text of a prompt: about a million tokens. A longer common prefix does not affect
// routing.
const maxTextBytes = 4 << 20

// Estimated tokens of a prompt's pieces if its tokens are unknown. Text has about four bytes a token, in English and
// code. An image takes 256 to 4,096 tokens by model and size, audio 25 a second. Video takes 256 for each of the 32 frames
// that vLLM samples. Other parts, such as files, may not be text.
const (
	bytesPerToken  = 4
	imageTokens    = 1024
	audioTokens    = 750 // half a minute
	videoTokens    = 8192
	maxOtherTokens = 1024
)

// pieceTokens estimates the tokens of a piece of a prompt, rounded down.
func pieceTokens(m openai.Modality, piece []byte) int {
	switch m {
	case openai.Image:
		return imageTokens
	case openai.Audio:
		return audioTokens
	case openai.Video:
		return videoTokens
	case openai.Other:
		return min(len(piece)/bytesPerToken, maxOtherTokens)
	}
	return len(piece) / bytesPerToken
}

// estimate returns about how many tokens the prompt has, at least 1.
func estimate(req *openai.Request) int {
	tokens, text := 0, 0
	for m, piece := range req.Pieces() {
		if m == openai.Text {
			text += len(piece) // pieces are short where there are many
		} else {
			tokens += pieceTokens(m, piece)
		}
	}
	return max(1, tokens+text/bytesPerToken)
}

// textHashes replaces the block hashes of a prompt with unknown tokens. It chains hashes of the request's bytes, four
// to a token: equal for equal prefixes, but unrelated to an engine's blocks, so useful for predictions only. Each
// covers a granule of blocks ([index.GranuleBlocks]). A longer conversation keeps the hashes it had. A part other than
// text takes as many blocks as its tokens.
func textHashes(req *openai.Request, blockSize int) []uint64 {
	longest := index.GranulesWithin(min(len(req.Raw), maxTextBytes) / (blockSize * bytesPerToken))
	c := textChain{hashes: make([]uint64, 0, longest), blockBytes: blockSize * bytesPerToken,
		seed: tokens.Seed(req.Adapter, req.CacheSalt) + textDomain, left: maxTextBytes}
	c.next()
	for m, piece := range req.Pieces() {
		if m == openai.Text {
			c.write(piece)
		} else {
			var digest [8]byte
			binary.LittleEndian.PutUint64(digest[:], xxh3.Hash(piece))
			c.write(digest[:])
			c.write(blank[:pieceTokens(m, piece)*bytesPerToken-len(digest)])
		}
		if c.left == 0 {
			break
		}
	}
	return c.hashes
}

// blank fills the blocks of a part other than text, after its digest.
var blank [videoTokens * bytesPerToken]byte

// textChain hashes what is written to it in granules. An incomplete granule has no hash.
type textChain struct {
	blockBytes int
	seed       uint64
	left       int    // bytes to hash at most
	size       int    // of the current granule, in bytes
	partial    []byte // granule of earlier writes
	hashes     []uint64
}

// next starts the next granule.
func (c *textChain) next() {
	n := len(c.hashes)
	c.size = (index.GranuleBlocks(n+1) - index.GranuleBlocks(n)) * c.blockBytes
}

func (c *textChain) write(text []byte) {
	text = text[:min(len(text), c.left)]
	c.left -= len(text)
	if len(c.partial) > 0 {
		n := min(len(text), c.size-len(c.partial))
		c.partial, text = append(c.partial, text[:n]...), text[n:]
		if len(c.partial) < c.size {
			return
		}
		c.add(c.partial)
		c.partial = c.partial[:0]
	}
	for len(text) >= c.size {
		whole := text[:c.size]
		text = text[c.size:]
		c.add(whole)
	}
	c.partial = append(c.partial, text...)
}

// add chains a granule as [tokens.SequenceHashes] does a block.
func (c *textChain) add(whole []byte) {
	h := xxh3.HashSeed(whole, c.seed)
	if n := len(c.hashes); n > 0 {
		h = tokens.Chain(c.hashes[n-1], h)
	}
	c.hashes = append(c.hashes, h)
	c.next()
}
