package events

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tandem-pd/tandem/internal/tokens"
	"github.com/tandem-pd/tandem/router/index"
)

// fakeEngine is a cache that changes at random and says so, evicting leaves first as engines do. It knows what it
// holds by whole prompts, so that what an index should hold does not come out of the code under test.
type fakeEngine struct {
	rng       *rand.Rand
	blockSize int
	blocks    []*fakeBlock // held, parents before children
}

type fakeBlock struct {
	hash     Hash
	prompt   []uint32 // all tokens from the beginning to this block's end
	parent   *fakeBlock
	children int
}

func newFakeEngine(seed uint64, blockSize int) *fakeEngine {
	return &fakeEngine{rng: rand.New(rand.NewPCG(seed, 2)), blockSize: blockSize}
}

// step changes the cache and returns the events that say how.
func (g *fakeEngine) step() []Event {
	switch n := g.rng.IntN(100); {
	case n < 60 || len(g.blocks) == 0:
		return []Event{g.store(1 + g.rng.IntN(6))}
	case n < 99:
		return []Event{g.evict(1 + g.rng.IntN(4))}
	default:
		g.blocks = nil
		return []Event{{Kind: Cleared}, g.store(2)}
	}
}

func (g *fakeEngine) store(n int) Event {
	var parent *fakeBlock
	if len(g.blocks) > 0 && g.rng.IntN(4) > 0 {
		parent = g.blocks[g.rng.IntN(len(g.blocks))]
	}
	e := Event{Kind: Stored, BlockSize: g.blockSize, Medium: "GPU"}
	if parent != nil {
		e.Parent, e.HasParent = parent.hash, true
	}
	for range n {
		b := &fakeBlock{hash: Hash(g.rng.Uint64()), parent: parent}
		if parent != nil {
			parent.children++
			b.prompt = slices.Clone(parent.prompt)
		}
		for range g.blockSize {
			id := g.rng.Uint32N(150_000)
			b.prompt = append(b.prompt, id)
			e.Tokens = append(e.Tokens, id)
		}
		e.Hashes = append(e.Hashes, b.hash)
		g.blocks = append(g.blocks, b)
		parent = b
	}
	return e
}

func (g *fakeEngine) evict(n int) Event {
	e := Event{Kind: Removed, Medium: "GPU"}
	for range n {
		for i := len(g.blocks) - 1 - g.rng.IntN(len(g.blocks)+1)/2; i >= 0; i-- {
			b := g.blocks[i]
			if b.children > 0 {
				continue
			}
			if b.parent != nil {
				b.parent.children--
			}
			g.blocks = slices.Delete(g.blocks, i, i+1)
			e.Hashes = append(e.Hashes, b.hash)
			break
		}
		if len(g.blocks) == 0 {
			break
		}
	}
	return e
}

// mismatch says in what an index is not what the engine holds, counted in the router's blocks of blockSize tokens;
// "" for nothing.
func (g *fakeEngine) mismatch(idx *index.Index, owner index.Owner, blockSize int) string {
	held := map[uint64]bool{}
	var m index.Matches
	for _, b := range g.blocks {
		prompt := tokens.SequenceHashes(nil, b.prompt, blockSize, tokens.Seed("", ""))
		for _, h := range prompt {
			held[h] = true
		}
		if idx.Match(prompt, &m); m.Leading(owner) != len(prompt) {
			return "a prompt that the engine holds is not indexed whole"
		}
	}
	if idx.Blocks(owner) > len(held) {
		return "more is indexed than the engine holds"
	}
	return ""
}

// checkIndex fails the test unless the index is what the engine holds.
func (g *fakeEngine) checkIndex(t *testing.T, idx *index.Index, owner index.Owner, blockSize int) {
	t.Helper()
	if text := g.mismatch(idx, owner, blockSize); text != "" {
		t.Fatalf("%s: %d blocks in the engine, %d indexed", text, len(g.blocks), idx.Blocks(owner))
	}
}
