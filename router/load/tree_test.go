package load

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/kv/index"
)

// slowTree is tree's twin: it counts block by block.
type slowTree struct {
	unit index.Unit
	held map[*Page]map[uint64]int
}

// size is how many blocks the i-th hash of a chain names.
func (s slowTree) size(i int) int { return s.unit.Blocks(i+1) - s.unit.Blocks(i) }

func (s slowTree) enter(chain []uint64, a *Page) (fresh int) {
	if s.held[a] == nil {
		s.held[a] = map[uint64]int{}
	}
	for i, h := range chain {
		if s.held[a][h]++; s.held[a][h] == 1 {
			fresh += s.size(i)
		}
	}
	return fresh
}

func (s slowTree) leave(chain []uint64, a *Page) (freed int) {
	for i, h := range chain {
		if s.held[a][h]--; s.held[a][h] == 0 {
			delete(s.held[a], h)
			freed += s.size(i)
		}
	}
	return freed
}

func (s slowTree) look(chain []uint64, a *Page) int {
	for i, h := range chain {
		if s.held[a][h] == 0 {
			return s.unit.Blocks(i)
		}
	}
	return s.unit.Blocks(len(chain))
}

// somePrompt is a chain that shares its beginning with others: at each block it
// turns one of a few ways, and its hashes cover all turns before.
func somePrompt(rng *rand.Rand, longest int) []uint64 {
	chain := make([]uint64, 1+rng.IntN(longest))
	h := uint64(1)
	for i := range chain {
		turn := uint64(0)
		if rng.IntN(longest/3) == 0 {
			turn = 1 + rng.Uint64N(3)
		}
		h = (h*31+turn)*0x9e3779b97f4a7c15 + uint64(i)
		chain[i] = h
	}
	return chain
}

// TestTreeTwin: whatever comes and goes, the tree counts as its twin does, and nothing is left of it at the end.
func TestTreeTwin(t *testing.T) {
	t.Run("blocks", func(t *testing.T) { playTree(t, index.UnitBlock, 12, 200_000) })
	t.Run("granules of text", func(t *testing.T) { playTree(t, index.UnitText, 150, 20_000) })
}

func playTree(t *testing.T, unit index.Unit, longest, turns int) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	accounts := make([]*Page, 5)
	for i := range accounts {
		accounts[i] = new(Page)
	}
	type held struct {
		chain   []uint64
		account *Page
		last    *node
	}
	var tr tree
	slow := slowTree{unit, map[*Page]map[uint64]int{}}
	var open []held
	part := func() {
		i := rng.IntN(len(open))
		h := open[i]
		open[i] = open[len(open)-1]
		open = open[:len(open)-1]
		require.Equal(t, slow.leave(h.chain, h.account), tr.leave(h.last, h.account), "blocks freed")
	}
	for range turns {
		switch chain, a := somePrompt(rng, longest), accounts[rng.IntN(len(accounts))]; {
		case rng.IntN(3) == 0:
			seen := map[*Page]int{}
			tr.look(chain, func(a *Page, blocks int) { seen[a] = blocks })
			for _, a := range accounts {
				require.Equal(t, slow.look(chain, a), seen[a], "look says N blocks")
			}
		case len(open) > 0 && rng.IntN(60) < len(open):
			part()
		default:
			last, fresh := tr.enter(chain, unit, a)
			require.Equal(t, slow.enter(chain, a), fresh, "fresh blocks")
			open = append(open, held{chain, a, last})
		}
		require.LessOrEqual(t, len(tr.from), 2*len(open), "nodes for %d bookings", len(open))
	}
	for len(open) > 0 {
		part()
	}
	assert.Empty(t, tr.from, "nodes are left")
}
