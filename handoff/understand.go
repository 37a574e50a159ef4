package handoff

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/tokens"
	"github.com/tandem-pd/tandem/pools"
)

// card is what a model's workers say about it together.
type card struct {
	// blockSize is that of the pool that computes prompts, in tokens, and
	// decodeBlockSize that of the decode pool.
	blockSize, decodeBlockSize int

	contextTokens int // the shortest context of any worker, 0 unknown
	kvTokens      int // the smallest KV cache of any worker, less a block to generate in, 0 unknown
}

// longestPrompt is the longest prompt in tokens that every worker takes: an
// estimate above it would keep out, or keep waiting, what may well fit.
func (c *card) longestPrompt() int {
	longest := math.MaxInt
	if c.contextTokens > 0 {
		longest = c.contextTokens - 1
	}
	if c.kvTokens > 0 {
		longest = min(longest, c.kvTokens)
	}
	return max(1, longest)
}

// defaultBlockSize counts blocks for a model whose workers are all away.
const defaultBlockSize = 16

// card reads a model's card off its pools; ok is false for a model that no
// worker was ever seen to serve.
func (f *Flow) card(model string) (c card, ok bool) {
	for _, role := range []pools.Role{pools.Prefill, pools.Both, pools.Decode} {
		ok = ok || f.rooms.Roster.Known(model, role)
		for _, m := range f.rooms.Roster.Snapshot(model, role).Members {
			c.blockSize = cmp.Or(c.blockSize, m.Worker.BlockSize)
			if role == pools.Decode {
				c.decodeBlockSize = m.Worker.BlockSize
			}
			if n := m.Worker.ContextLength; n > 0 && (c.contextTokens == 0 || n < c.contextTokens) {
				c.contextTokens = n
			}
			if n := (m.Worker.TotalKVBlocks - 1) * m.Worker.BlockSize; n > 0 && (c.kvTokens == 0 || n < c.kvTokens) {
				c.kvTokens = n
			}
		}
	}
	c.blockSize = cmp.Or(c.blockSize, defaultBlockSize)
	c.decodeBlockSize = cmp.Or(c.decodeBlockSize, c.blockSize)
	return c, ok
}

// kept is how many tokens of its prompt a request keeps, which the engine cuts
// as the client asks (truncate_prompt_tokens).
func (c *card) kept(req *openai.Request) int {
	switch {
	case req.Truncate > 0:
		return req.Truncate
	case req.Truncate < 0 && c.contextTokens > 0:
		return max(1, c.contextTokens-max(1, req.MaxTokens))
	}
	return math.MaxInt
}

// understand finds the model, its limits, and the prompt's tokens and block
// hashes. Its error is an *openai.Error.
func (f *Flow) understand(r *request) error {
	req := r.call.Request
	if f.rooms.Starting != nil {
		if refused := f.rooms.Starting(); refused != nil {
			return refused
		}
	}
	req.Model = f.rooms.Roster.Resolve(req.Model) // a worker is asked for the model by its own name
	var ok bool
	if r.card, ok = f.card(req.Model); !ok {
		if len(f.rooms.Roster.Models()) == 0 { // a client gives up on a 404, and this one's model may come
			return openai.Unavailable("no_worker", "no worker has joined yet")
		}
		return openai.NotFoundModel(req.Model)
	}
	f.metrics.begin(r)
	defer r.series.understood()()
	if err := f.pin(r); err != nil {
		return err
	}
	if err := f.constrain(r); err != nil {
		return err
	}
	r.kept = r.card.kept(req)
	began := time.Now()
	if err := r.tokenize(f.rooms.Tokenizer(req.Model)); err != nil {
		return err
	}
	if r.ids == nil {
		whole := estimate(req)
		r.isl = min(whole, r.card.longestPrompt(), r.kept)
		computes, pool := f.computers(r)
		// Of a prompt that loses its beginning it is not known where it begins.
		if len(pool.Members) > 0 && computes.Foresees() && (whole <= r.kept || req.TruncateRight) {
			r.hash(func(blockSize int) []uint64 { return textHashes(req, blockSize) })
		}
		return nil
	}
	r.isl = len(r.ids)
	if r.isl == 0 {
		return openai.BadRequest(promptField(req), "the prompt is empty")
	}
	if limit := r.card.contextTokens; limit > 0 && (r.isl >= limit || r.isl+req.MaxTokens > limit) {
		return openai.ContextLength(promptField(req), r.isl+max(1, req.MaxTokens), limit, false)
	}
	tokenized := time.Now()
	r.hash(func(blockSize int) []uint64 {
		return tokens.SequenceHashes(nil, r.ids, blockSize, tokens.Seed("", req.CacheSalt))
	})
	f.metrics.tokenized(tokenized.Sub(began))
	r.spent.hashing = time.Since(tokenized)
	return nil
}

// hash sets the prompt's hashes, for each pool in blocks of its size.
func (r *request) hash(in func(blockSize int) []uint64) {
	r.hashes = in(r.card.blockSize)
	if r.card.decodeBlockSize != r.card.blockSize {
		r.decodeHashes = in(r.card.decodeBlockSize)
	}
}

// tokenize sets the prompt's token ids, and leaves them nil where they cannot
// be known: without the model's tokenizer, or where the engine's own template
// puts in what ours does not (tools, images). A prompt whose bytes alone prove
// it too long is refused unseen, or left unknown where the engine will cut it.
func (r *request) tokenize(tokenizer *tokens.Cache) error {
	req := r.call.Request
	if req.Prompt.Kind == openai.PromptIDs {
		r.ids = truncated(req.Prompt.IDs, r.kept, req.TruncateRight)
		return nil
	}
	if tokenizer == nil || req.HasTools || req.HasToolMessages || req.HasMedia() {
		return nil
	}
	if limit := r.card.contextTokens; limit > 0 {
		switch n := tokenizer.Tokenizer().MinTokens(req.Prompt.TokensAtLeast(1)); {
		case n >= limit && r.kept < limit:
			return nil
		case n >= limit:
			return openai.ContextLength(promptField(req), n, limit, true)
		}
	}
	if req.Prompt.Kind == openai.PromptText {
		r.encode(func(dst []uint32) []uint32 { return tokenizer.Encode(dst, req.Prompt.Text()) })
		return nil
	}
	messages := req.Prompt.Messages()
	chat := make([]tokens.Message, len(messages))
	for i, m := range messages {
		chat[i] = tokens.Message{Role: m.Role, Content: m.Content}
	}
	r.encode(func(dst []uint32) []uint32 { return tokenizer.EncodeChat(dst, chat) })
	return nil
}

// encodings are buffers to tokenize into. How many tokens a prompt has is known
// only afterwards; a request keeps a copy of the right size.
var encodings = sync.Pool{New: func() any {
	ids := make([]uint32, 0, 1024)
	return &ids
}}

// encode sets the prompt's token ids to what encode appends, as far as they are
// kept.
func (r *request) encode(encode func(dst []uint32) []uint32) {
	ids := encodings.Get().(*[]uint32)
	defer encodings.Put(ids)
	*ids = encode((*ids)[:0])
	r.ids = slices.Clone(truncated(*ids, r.kept, r.call.Request.TruncateRight))
}

// truncated cuts a prompt to n tokens: its last ones, or its first.
func truncated(ids []uint32, n int, first bool) []uint32 {
	switch {
	case len(ids) <= n:
		return ids
	case first:
		return ids[:n]
	}
	return ids[len(ids)-n:]
}

// promptField names the body's field that holds the prompt.
func promptField(req *openai.Request) string {
	if req.Endpoint == openai.Chat {
		return "messages"
	}
	return "prompt"
}
