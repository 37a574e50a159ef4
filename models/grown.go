package models

import (
	"slices"

	"github.com/tandem-pd/tandem/internal/openai"
)

const (
	// unstable is how many of a prompt's last tokens the next turn of its conversation may have otherwise: what begins the
	// answer.
	unstable = 32
	// mostGrown is by how many blocks a conversation may have grown to be found.
	mostGrown = 1024
)

// end returns the number and the hash of the last block behind which unstable tokens are left, false where there is none.
func (a *answer) end(c *chain) (blocks int, hash uint64, ok bool) {
	blocks = min((len(a.ids)-unstable)/c.blockSize, len(c.hashes))
	if blocks <= 0 {
		return 0, 0, false
	}
	return blocks, c.hashes[blocks-1], true
}

// chained remembers a chain of a's hashes, by which a longer prompt finds a.
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

// unchained forgets how a is found.
func (r *remembered) unchained(a *answer) {
	for i := range a.chains {
		if _, hash, ok := a.end(&a.chains[i]); ok && r.ends[hash] == a {
			delete(r.ends, hash)
		}
	}
}

// grownFrom finds a prompt whose JSON is known and with which a begins, by its hashes: an earlier turn of its conversation.
// They have the first common tokens alike, and perhaps more.
func (r *remembered) grownFrom(a *answer) (before *answer, common int) {
	for i := range a.chains {
		c := &a.chains[i]
		for n := len(c.hashes); n > max(0, len(c.hashes)-mostGrown); n-- {
			if b := r.ends[c.hashes[n-1]]; b != nil && b != a && b.json != nil {
				r.get(b.key) // what is used is kept
				return b, n * c.blockSize
			}
		}
	}
	return nil, 0
}

// idsJSON returns a's ids as JSON, of which it copies those that before, if it is not nil, has in common.
func idsJSON(a, before *answer, common int) []byte {
	if before == nil || common > min(len(a.ids), len(before.ids)) || !slices.Equal(a.ids[:common], before.ids[:common]) {
		return openai.AppendIDs(nil, a.ids)
	}
	return openai.AppendMoreIDs(nil, before.json, before.ids[common:], a.ids[common:])
}
