package simulate

import (
	"math/bits"

	"github.com/tandem-pd/tandem/lab/replay"
)

// Chains are the sequence hashes of a workload's prompts, for one block size. They are as equal and as different as
// those of the tokens that the spans stand for, without the tokens: an engine and a router take them as they are. They
// are never written to again and may be shared by any number of runs.
type Chains struct {
	BlockTokens int
	of          [][]uint64 // by request
}

// NewChains hashes every request's full blocks of so many tokens.
func NewChains(requests []replay.Request, blockTokens int) *Chains {
	c := &Chains{BlockTokens: blockTokens, of: make([][]uint64, len(requests))}
	for i := range requests {
		c.of[i] = chainOf(requests[i].Spans, requests[i].InputTokens(), blockTokens)
	}
	return c
}

// chainOf folds, block by block, which stretch of which span lies in it.
func chainOf(spans []replay.Span, tokens, size int) []uint64 {
	chain := make([]uint64, 0, tokens/size)
	state, room := uint64(0x243f6a8885a308d3), size
	for _, s := range spans {
		id := fold(s.ID, 0x13198a2e03707344)
		for at := 0; at < s.Tokens; {
			n := min(room, s.Tokens-at)
			state = fold(state^id, uint64(at)<<32|uint64(n))
			at, room = at+n, room-n
			if room == 0 {
				chain = append(chain, state)
				room = size
			}
		}
	}
	return chain
}

// fold mixes two words into one by a full-width product, as wyhash does.
func fold(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a^0xa0761d6478bd642f, b^0xe7037ed1a0b428db)
	return hi ^ lo
}
