package handoff

import (
	"bytes"
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/tokens"
)

// textDomain is added to the seed of blocks of text, so that they are never
// taken for blocks of tokens.
const textDomain = 0x7465787420626c6f

// maxTextBytes is how much of a prompt's text is hashed: a million tokens' worth.
// What two prompts share beyond it does not matter to where they go.
const maxTextBytes = 4 << 20

// textHashes stands for the block hashes of a prompt whose tokens are not known.
// It chains hashes of the request's own bytes, four to a token, which say the
// same of two prompts that begin alike, and nothing of what an engine holds:
// they are good for predictions only. A conversation that goes on keeps the
// hashes it had.
func textHashes(req *openai.Request, blockSize int) []uint64 {
	c := textChain{blockBytes: blockSize * bytesPerToken, seed: tokens.Seed("", req.CacheSalt) + textDomain, left: maxTextBytes}
	if req.Endpoint != openai.Chat {
		prompt, _ := req.Field("prompt")
		c.write(openEnded(prompt))
		return c.hashes
	}
	for _, name := range []string{"tools", "functions"} { // templates put them first
		if offered, ok := req.Field(name); ok {
			c.write(offered)
		}
	}
	messages, _ := req.Field("messages")
	c.write(openEnded(messages))
	return c.hashes
}

// openEnded returns a JSON value without what closes it, which is not where it
// was any more when the value has grown: the end of an array, and of a string.
func openEnded(value []byte) []byte {
	if v, ok := bytes.CutSuffix(value, []byte("]")); ok {
		value = bytes.TrimRight(v, " \t\r\n")
	}
	value, _ = bytes.CutSuffix(value, []byte(`"`))
	return value
}

// textChain makes blocks of what is written to it. What fills no block has no
// hash.
type textChain struct {
	blockBytes int
	seed       uint64
	left       int    // bytes still taken
	begun      []byte // of a block that spans two writes
	hashes     []uint64
}

func (c *textChain) write(text []byte) {
	text = text[:min(len(text), c.left)]
	c.left -= len(text)
	if len(c.begun) > 0 {
		n := min(len(text), c.blockBytes-len(c.begun))
		c.begun, text = append(c.begun, text[:n]...), text[n:]
		if len(c.begun) < c.blockBytes {
			return
		}
		c.add(c.begun)
		c.begun = c.begun[:0]
	}
	c.hashes = slices.Grow(c.hashes, len(text)/c.blockBytes)
	for ; len(text) >= c.blockBytes; text = text[c.blockBytes:] {
		c.add(text[:c.blockBytes])
	}
	c.begun = append(c.begun, text...)
}

// add chains a block as [tokens.SequenceHashes] does.
func (c *textChain) add(block []byte) {
	h := xxh3.HashSeed(block, c.seed)
	if n := len(c.hashes); n > 0 {
		h = tokens.Chain(c.hashes[n-1], h)
	}
	c.hashes = append(c.hashes, h)
}
