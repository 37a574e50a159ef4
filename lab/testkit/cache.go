package testkit

import (
	"maps"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/tandem-pd/tandem/internal/tokens"
	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/kv/wire"
)

// Pool is a pool of tests.
const Pool = "m/prefill"

// Chain is n blocks of 16 tokens in a chain that begins with base.
func Chain(base uint32, n int) wire.Event {
	e := wire.Event{Kind: wire.Stored, BlockSize: 16, Medium: "GPU"}
	for i := range n {
		e.Hashes = append(e.Hashes, wire.Hash(uint64(base)<<32+uint64(i)+1)*0x9e3779b97f4a7c15)
		for j := range 16 {
			e.Tokens = append(e.Tokens, (base*7919+uint32(i*16+j)*591)%150_000)
		}
	}
	return e
}

// IDs are n token ids in a row.
func IDs(from, n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(from + i)
	}
	return out
}

// Engine is a cache that changes at random and reports it, evicting leaves first as engines do. It stores whole
// prompts, so expectations do not come from the code under test.
type Engine struct {
	rng       *rand.Rand
	blockSize int
	Blocks    []*fakeBlock // held, parents before children
}

type fakeBlock struct {
	Hash     wire.Hash
	prompt   []uint32 // all tokens from the beginning to this block's end
	parent   *fakeBlock
	children int
}

// NewEngine returns an empty cache.
func NewEngine(seed uint64, blockSize int) *Engine {
	return &Engine{rng: rand.New(rand.NewPCG(seed, 2)), blockSize: blockSize}
}

// Step changes the cache and returns the events of the change.
func (g *Engine) Step() []wire.Event {
	switch n := g.rng.IntN(100); {
	case n < 60 || len(g.Blocks) == 0:
		return []wire.Event{g.Store(1 + g.rng.IntN(6))}
	case n < 99:
		return []wire.Event{g.Evict(1 + g.rng.IntN(4))}
	default:
		g.Blocks = nil
		return []wire.Event{{Kind: wire.Cleared}, g.Store(2)}
	}
}

// Store adds a chain of n blocks, somewhere.
func (g *Engine) Store(n int) wire.Event {
	var parent *fakeBlock
	if len(g.Blocks) > 0 && g.rng.IntN(4) > 0 {
		parent = g.Blocks[g.rng.IntN(len(g.Blocks))]
	}
	e := wire.Event{Kind: wire.Stored, BlockSize: g.blockSize, Medium: "GPU"}
	if parent != nil {
		e.Parent, e.HasParent = parent.Hash, true
	}
	for range n {
		b := &fakeBlock{Hash: wire.Hash(g.rng.Uint64()), parent: parent}
		if parent != nil {
			parent.children++
			b.prompt = slices.Clone(parent.prompt)
		}
		for range g.blockSize {
			id := g.rng.Uint32N(150_000)
			b.prompt = append(b.prompt, id)
			e.Tokens = append(e.Tokens, id)
		}
		e.Hashes = append(e.Hashes, b.Hash)
		g.Blocks = append(g.Blocks, b)
		parent = b
	}
	return e
}

// Evict removes n leaves, or as many as there are.
func (g *Engine) Evict(n int) wire.Event {
	e := wire.Event{Kind: wire.Removed, Medium: "GPU"}
	for range n {
		for i := len(g.Blocks) - 1 - g.rng.IntN(len(g.Blocks)+1)/2; i >= 0; i-- {
			b := g.Blocks[i]
			if b.children > 0 {
				continue
			}
			if b.parent != nil {
				b.parent.children--
			}
			g.Blocks = slices.Delete(g.Blocks, i, i+1)
			e.Hashes = append(e.Hashes, b.Hash)
			break
		}
		if len(g.Blocks) == 0 {
			break
		}
	}
	return e
}

// Mismatch describes how an index differs from the engine's blocks, counted in router blocks of blockSize tokens; ""
// for no difference.
func (g *Engine) Mismatch(part *Part, blockSize int) string {
	held := map[uint64]bool{}
	for _, b := range g.Blocks {
		prompt := tokens.SequenceHashes(nil, b.prompt, blockSize, tokens.Seed("", ""))
		for _, h := range prompt {
			held[h] = true
		}
		if part.Leading(index.Device, prompt) != len(prompt) {
			return "a prompt that the engine holds is not indexed whole"
		}
	}
	if part.Blocks() > len(held) {
		return "more is indexed than the engine holds"
	}
	return ""
}

// Part is one rank's part of an index, as a set for each tier.
type Part struct {
	mu    sync.Mutex // guards tiers
	tiers [index.Tiers]map[uint64]bool
}

// Place implements index.Part, as the methods below do.
func (p *Part) Place(t index.Tier, chain []uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.tiers[t] == nil {
		p.tiers[t] = map[uint64]bool{}
	}
	for _, h := range chain {
		p.tiers[t][h] = true
	}
}

func (p *Part) Store(t index.Tier, chain []uint64) { p.Place(t, chain) }

func (p *Part) Extend(t index.Tier, _ uint64, chain []uint64) { p.Place(t, chain) }

func (p *Part) Remove(t index.Tier, hashes []uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, h := range hashes {
		delete(p.tiers[t], h)
	}
}

func (p *Part) Clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tiers = [index.Tiers]map[uint64]bool{}
}

// Parent reports nothing: a set has no chains.
func (p *Part) Parent(index.Tier, uint64) (parent uint64, first, known bool) { return 0, false, false }

// Blocks is how many blocks are held, counting each tier.
func (p *Part) Blocks() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, held := range p.tiers {
		n += len(held)
	}
	return n
}

// On is the hashes on a tier, in order.
func (p *Part) On(t index.Tier) []uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Sorted(maps.Keys(p.tiers[t]))
}

// Leading is how many of a chain's blocks from the first are on a tier.
func (p *Part) Leading(t index.Tier, chain []uint64) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, h := range chain {
		if !p.tiers[t][h] {
			return i
		}
	}
	return len(chain)
}
