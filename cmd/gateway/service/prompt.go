package service

import (
	"bytes"
	"strconv"

	"github.com/tandem-pd/tandem/internal/tokens"
	"github.com/tandem-pd/tandem/pools"
)

const (
	maxNameBytes   = 256     // of a LoRA adapter's name and a cache salt
	maxTokens      = 1 << 22 // of a prompt
	maxBlockHashes = 1 << 20 // of a prompt, or of one posted event
)

// Hash is a block's hash in JSON: a signed or unsigned integer of 64 bits, or the same as a string for clients with
// smaller numbers.
type Hash uint64

// UnmarshalJSON reads a number, or a string of one, decimal or with 0x.
func (h *Hash) UnmarshalJSON(raw []byte) error {
	text := string(bytes.Trim(raw, `"`))
	if n, err := strconv.ParseUint(text, 0, 64); err == nil {
		*h = Hash(n)
		return nil
	}
	if n, err := strconv.ParseInt(text, 0, 64); err == nil {
		*h = Hash(n)
		return nil
	}
	return invalid("", "a hash must be an integer of 64 bits, or a string of one")
}

// prompt is a request's prompt: its tokens, or their hashes.
type prompt struct {
	TokenIDs  []uint32 `json:"token_ids"`
	LoraName  string   `json:"lora_name"`
	CacheSalt string   `json:"cache_salt"`
	// Hashes are sequence hashes of the full blocks, instead of tokens.
	Hashes []Hash `json:"sequence_hashes"`
}

// chain returns the sequence hashes of the prompt's full blocks.
func (p *prompt) chain(blockSize int) []uint64 {
	if len(p.TokenIDs) > 0 {
		return tokens.SequenceHashes(nil, p.TokenIDs, blockSize, tokens.Seed(p.LoraName, p.CacheSalt))
	}
	return plain(p.Hashes)
}

// check validates a prompt. empty allows one without tokens and hashes.
func (p *prompt) check(empty bool) error {
	switch {
	case len(p.TokenIDs) > 0 && len(p.Hashes) > 0:
		return invalid("sequence_hashes", "give token_ids or sequence_hashes, not both")
	case len(p.TokenIDs) == 0 && len(p.Hashes) == 0 && !empty:
		return invalid("token_ids", "must have at least one token")
	case len(p.TokenIDs) > maxTokens:
		return invalid("token_ids", "may have %d tokens", maxTokens)
	case len(p.Hashes) > maxBlockHashes:
		return invalid("sequence_hashes", "may have %d hashes", maxBlockHashes)
	case len(p.Hashes) > 0 && p.LoraName != "":
		return invalid("lora_name", "is in the sequence_hashes already")
	case len(p.Hashes) > 0 && p.CacheSalt != "":
		return invalid("cache_salt", "is in the sequence_hashes already")
	case len(p.LoraName) > maxNameBytes:
		return invalid("lora_name", "may have %d bytes", maxNameBytes)
	case len(p.CacheSalt) > maxNameBytes:
		return invalid("cache_salt", "may have %d bytes", maxNameBytes)
	}
	return nil
}

func plain(hs []Hash) []uint64 {
	out := make([]uint64, len(hs))
	for i, h := range hs {
		out[i] = uint64(h)
	}
	return out
}

// checkModel validates a model's name.
func checkModel(model string) error {
	if model == "" || len(model) > pools.MaxModelBytes {
		return invalid("model", "must have 1 to %d bytes", pools.MaxModelBytes)
	}
	return nil
}
