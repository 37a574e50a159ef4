package router

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router/load"
)

// TestSharesCountInTheChoice: what another gateway has booked takes room and weighs as what this one has, until it ends. What this one
// says of itself is its own part.
func TestSharesCountInTheChoice(t *testing.T) {
	cfg := DefaultConfig()
	made := 0
	cfg.OnBooking = func(bool) { made++ }
	r := newRouter(t, cfg.For(pools.Decode), nil)
	p := &pools.Pool{Model: "m", Role: pools.Decode, Members: []pools.Member{
		{Worker: &pools.Worker{ID: "a", BlockSize: 16, TotalKVBlocks: 100}}, {Worker: &pools.Worker{ID: "b", BlockSize: 16, TotalKVBlocks: 100}},
	}}
	hear := func(blocks int) bool {
		s := load.Shared{Worker: "a"}
		if blocks > 0 {
			s.Share = load.Share{Account: load.Account{ActiveBlocks: blocks, Requests: 1}}
		}
		return r.ApplyShares("peer", []load.Shared{s}, noon)
	}
	assert.False(t, hear(50), "more is booked, and it fell")
	said := map[string]load.Account{}
	changes := func() {
		clear(said)
		r.Changes(noon, func(s load.Shared) { said[s.Worker] = s.Account })
	}
	first, err := r.Reserve(p, Request{ID: "1", ISL: 160}, noon)
	require.True(t, err == nil && first.Worker.ID == "b", "%v, %v: a has what another gateway booked", first, err)
	changes()
	assert.True(t, len(said) == 1 && said["b"] == (load.Account{ActiveBlocks: 10, Requests: 1}), "said %v", said)
	hear(95)
	pin := &Pin{Worker: "a"}
	_, err = r.Reserve(p, Request{ID: "2", ISL: 160, Pin: pin}, noon)
	assert.Error(t, err, "a is full with what another gateway booked")
	assert.True(t, hear(0), "what the other gateway had ended, and nothing fell")
	second := reserve(t, r, p, Request{ID: "2", ISL: 160, Pin: pin}, noon)
	loads := r.Loads(p)
	assert.True(t, loads[0].Requests == 1 && loads[0].Others == (load.Account{}), "%+v", loads[0])
	hear(7)
	assert.Equal(t, [2]int{2, 7}, [2]int{r.Loads(p)[0].Requests, r.Loads(p)[0].Others.ActiveBlocks})
	first.Release(noon)
	second.Release(noon)
	if changes(); said["a"] != (load.Account{}) || said["b"] != (load.Account{}) || len(said) != 2 || made != 4 {
		t.Errorf("said %v after %d changes", said, made)
	}
	changes()
	assert.Empty(t, said, "said %v, and nothing has changed", said)
}

// TestPromisesAreShared: room that another gateway's pool keeps for prompts under way is no room here.
func TestPromisesAreShared(t *testing.T) {
	cfg := DefaultConfig()
	r := newRouter(t, cfg.For(pools.Decode), nil)
	v := r.see(&pools.Pool{Model: "m", Role: pools.Decode,
		Members: []pools.Member{{Worker: &pools.Worker{ID: "a", BlockSize: 16, TotalKVBlocks: 100}}}})
	promised := func(blocks int) []load.Shared {
		return []load.Shared{{Share: load.Share{Account: load.Account{ActiveBlocks: blocks}}}}
	}
	own := r.core.promise(30)
	r.ApplyShares("x", promised(20), noon)
	r.ApplyShares("y", promised(20), noon)
	assert.True(t, r.core.keeps(v, 30, noon) && !r.core.keeps(v, 31, noon),
		"of 100 blocks 70 are promised, and 30 are not free")
	r.Changes(noon, func(s load.Shared) {
		assert.True(t, s.Worker == "" && s.ActiveBlocks == 30, "said %+v of its own promise", s)
	})
	assert.True(t, r.ApplyShares("x", promised(0), noon) && !r.ApplyShares("x", promised(0), noon), "one promise ended once")
	own.end()
	assert.True(t, r.core.keeps(v, 80, noon) && !r.core.keeps(v, 81, noon), "20 blocks are promised, and 80 are not free")
}
