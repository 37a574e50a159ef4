// Package models describes a model by its workers' records and its tokenizer: how a prompt is cut, tokenized and
// hashed, and how long it may be.
package models

import (
	"cmp"
	"math"

	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/tokens"
	"github.com/tandem-pd/tandem/pools"
)

// Card is a model's common properties over its workers.
type Card struct {
	// BlockSize is that of the pool that computes prompts, in tokens, and DecodeBlockSize that of the decode pool.
	BlockSize, DecodeBlockSize int
	// Engine is that of the pool that computes prompts: "vllm", "sglang", "trtllm" or "sim".
	Engine string
	// ContextTokens is the shortest context of any worker, 0 unknown.
	ContextTokens int
	vocab         int  // the smallest vocabulary that a worker reports, 0 unknown
	checks        bool // every worker's engine compares token ids with it
	kvTokens      int  // the smallest KV cache of any worker, less a block to generate in, 0 unknown
}

// defaultBlockSize counts blocks for a model whose workers are all away.
const defaultBlockSize = 16

// CardOf reads a model's card off its pools; ok is false for a model that no worker was ever seen to serve.
func CardOf(roster *pools.Roster, model string) (c Card, ok bool) {
	c.checks = true
	for _, role := range []pools.Role{pools.Prefill, pools.Both, pools.Decode} {
		ok = ok || roster.Known(model, role)
		for _, m := range roster.Snapshot(model, role).Members {
			c.BlockSize = cmp.Or(c.BlockSize, m.Worker.BlockSize)
			c.Engine = cmp.Or(c.Engine, m.Worker.Engine)
			c.checks = c.checks && m.Worker.Engine != "sglang"
			if role == pools.Decode {
				c.DecodeBlockSize = m.Worker.BlockSize
			}
			if n := m.Worker.ContextLength; n > 0 && (c.ContextTokens == 0 || n < c.ContextTokens) {
				c.ContextTokens = n
			}
			if n := m.Worker.VocabSize; n > 0 && (c.vocab == 0 || n < c.vocab) {
				c.vocab = n
			}
			if n := (m.Worker.TotalKVBlocks - 1) * m.Worker.BlockSize; n > 0 && (c.kvTokens == 0 || n < c.kvTokens) {
				c.kvTokens = n
			}
		}
	}
	c.BlockSize = cmp.Or(c.BlockSize, defaultBlockSize)
	c.DecodeBlockSize = cmp.Or(c.DecodeBlockSize, c.BlockSize)
	return c, ok
}

// Kept returns how many prompt tokens a request keeps under the client's truncate_prompt_tokens. A number above any
// prompt's length means that no cut is known.
func (c *Card) Kept(req *openai.Request) int {
	switch {
	case c.Engine == "sglang": // it does not read the field
	case req.Truncate > 0:
		return req.Truncate
	case req.Truncate < 0 && c.ContextTokens > 0:
		return max(1, c.ContextTokens-max(1, req.MaxTokens))
	}
	return math.MaxInt
}

// Estimate is about how many tokens of the prompt are kept. It is at most what every worker takes: more would keep
// out, or keep waiting, what may well fit. fromStart is false if the prompt may lose its beginning.
func (c *Card) Estimate(req *openai.Request) (tokens int, fromStart bool) {
	all, kept := estimate(req), c.Kept(req)
	return min(all, c.longestPrompt(), kept), all <= kept || req.TruncateRight
}

// longestPrompt is the longest prompt in tokens that every worker takes.
func (c *Card) longestPrompt() int {
	longest := math.MaxInt
	if c.ContextTokens > 0 {
		longest = c.ContextTokens - 1
	}
	if c.kvTokens > 0 {
		longest = min(longest, c.kvTokens)
	}
	return max(1, longest)
}

// Hashes are the sequence hashes of the prompt's full blocks where it is computed, and in decode's blocks; decoding is nil
// if they are of one size. Without the prompt's tokens they are hashes of its text, which are good for predictions only.
// They must not be written to.
func (c *Card) Hashes(req *openai.Request, p Prompt) (computing, decoding []uint64) {
	in := func(blockSize int) []uint64 {
		if p.IDs == nil {
			return textHashes(req, blockSize)
		}
		return p.hashes(blockSize, tokens.Seed(req.Adapter, req.CacheSalt))
	}
	if c.DecodeBlockSize != c.BlockSize {
		decoding = in(c.DecodeBlockSize)
	}
	return in(c.BlockSize), decoding
}
