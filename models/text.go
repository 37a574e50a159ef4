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

// maxTextBytes is how much of a prompt's text is hashed: a million tokens' worth. What two prompts share beyond it
// does not matter to where they go.
const maxTextBytes = 4 << 20

// Estimated tokens of a prompt's pieces if its tokens are unknown. Text: about four bytes a token, for English and
// code. Other modalities take what the model's encoder makes of them: an image 256 to 4,096 tokens by model and size,
// audio 25 a second, video 256 for each of the 32 frames that vLLM samples. Other parts, such as files, may not be
// text.
const (
	bytesPerToken  = 4
	imageTokens    = 1024
	audioTokens    = 750 // half a minute
	videoTokens    = 8192
	maxOtherTokens = 1024
)

// pieceTokens estimates the tokens of a piece of a prompt; of text only whole ones count.
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

// estimate is about how many tokens the prompt takes, at least 1.
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

// textHashes stands for the block hashes of a prompt whose tokens are not known. It chains hashes of the request's
// own bytes, four to a token, which are equal for equal beginnings, and unrelated to what an engine
// holds: they are good for predictions only. Each is of a granule of blocks ([index.GranuleBlocks]). A conversation that
// goes on keeps the hashes it had. A part that is no text takes as many blocks as its tokens do.
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

// blank fills the blocks of a part that is no text, behind its digest.
var blank [videoTokens * bytesPerToken]byte

// textChain makes granules of what is written to it. What fills no granule has no hash.
type textChain struct {
	blockBytes int
	seed       uint64
	left       int    // bytes still taken
	size       int    // of the granule at hand, in bytes
	begun      []byte // of a granule that spans two writes
	hashes     []uint64
}

// next goes on to the next granule.
func (c *textChain) next() {
	n := len(c.hashes)
	c.size = (index.GranuleBlocks(n+1) - index.GranuleBlocks(n)) * c.blockBytes
}

func (c *textChain) write(text []byte) {
	text = text[:min(len(text), c.left)]
	c.left -= len(text)
	if len(c.begun) > 0 {
		n := min(len(text), c.size-len(c.begun))
		c.begun, text = append(c.begun, text[:n]...), text[n:]
		if len(c.begun) < c.size {
			return
		}
		c.add(c.begun)
		c.begun = c.begun[:0]
	}
	for len(text) >= c.size {
		whole := text[:c.size]
		text = text[c.size:]
		c.add(whole)
	}
	c.begun = append(c.begun, text...)
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
