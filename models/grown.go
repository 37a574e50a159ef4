package models

import (
	"slices"

	"github.com/tandem-pd/tandem/internal/openai"
)

const (
	// unstable is how many of a prompt's last tokens may differ in the next turn of its conversation: the answer's
	// header.
	unstable = 32
	// mostGrown is how many blocks longer a conversation may be than its earlier turn.
	mostGrown = 1024
)

// end returns the number and hash of the last block that is followed by unstable tokens; ok is false for none.
func (a *answer) end(c *chain) (blocks int, hash uint64, ok bool) {
	blocks = min((len(a.ids)-unstable)/c.blockSize, len(c.hashes))
	if blocks <= 0 {
		return 0, 0, false
	}
	return blocks, c.hashes[blocks-1], true
}

// chained stores a chain of a's hashes, by which a longer prompt finds a.
func (r *remembered) chained(a *answer, c chain) {
	a.chains = append(a.chains, c)
	r.grow(a, 8*cap(c.hashes))
	if _, hash, ok := a.end(&c); ok && a.bytes > 0 {
		if r.ends == nil {
			r.ends = map[uint64]*answer{}
		}
		r.ends[hash] = a
	}
}

// unchained removes a from the lookup by hash.
func (r *remembered) unchained(a *answer) {
	for i := range a.chains {
		if _, hash, ok := a.end(&a.chains[i]); ok && r.ends[hash] == a {
			delete(r.ends, hash)
		}
	}
}

// grownFrom finds a prompt with known JSON that is a prefix of a, by its hashes: an earlier turn of the conversation.
// At least the first common tokens are equal.
func (r *remembered) grownFrom(a *answer) (before *answer, common int) {
	for i := range a.chains {
		c := &a.chains[i]
		for n := len(c.hashes); n > max(0, len(c.hashes)-mostGrown); n-- {
			if b := r.ends[c.hashes[n-1]]; b != nil && b != a && b.json != nil {
				r.get(b.key) // marks it used
				return b, n * c.blockSize
			}
		}
	}
	return nil, 0
}

// idsJSON returns a's ids as JSON. It copies the common part from before, if not nil.
func idsJSON(a, before *answer, common int) []byte {
	if before == nil || common > min(len(a.ids), len(before.ids)) || !slices.Equal(a.ids[:common], before.ids[:common]) {
		return openai.AppendIDs(nil, a.ids)
	}
	return openai.AppendMoreIDs(nil, before.json, before.ids[common:], a.ids[common:])
}
