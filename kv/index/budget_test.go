package index

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestBudgetKeepsWhatIsUsed lets a stream of prompts through that no client sends again. What is stored again now and then
// must stay, and what is matched, and the beginnings that others follow on.
func TestBudgetKeepsWhatIsUsed(t *testing.T) {
	x := New(Config{shards: 2, MaxBlocks: 10_000})
	o := x.Owner("w", 0)
	again, asked, never, base := chain(1, 50), chain(2, 50), chain(3, 50), chain(4, 50)
	for _, p := range [][]uint64{again, asked, never, base} {
		x.Store(o, Device, p)
	}
	var m Matches
	for i := range uint64(3000) {
		x.Extend(o, Device, base[49], chain(100+i, 20))
		x.Store(x.Owner(fmt.Sprint("other", i%5), 0), Device, chain(1_000_000+i, 20))
		if i%50 == 0 {
			x.Store(o, Device, again)
			x.Match(asked, &m)
		}
	}
	for _, c := range []struct {
		name  string
		chain []uint64
		want  int
	}{{"stored again", again, 50}, {"matched", asked, 50}, {"followed on", base, 50}, {"never used", never, 0}} {
		x.Match(c.chain, &m)
		assert.Equal(t, c.want, m.Leading(o), "%s blocks are left", c.name)
	}
	s := x.Stats()
	assert.True(t, s.Evicted != 0 && s.Held >= 9000 && s.Held <= 10_000, "%d evicted, %d held", s.Evicted, s.Held)
}

// TestBudgetAgainstRings stores what no chain of hashes can be: blocks that follow
// on each other in a ring, so that each is followed on. They must go as well.
func TestBudgetAgainstRings(t *testing.T) {
	x := New(Config{shards: 1, MaxBlocks: 10})
	o := x.Owner("w", 0)
	for i := range uint64(10) {
		ring := chain(i, 4)
		x.Extend(o, Device, ring[3], ring)
		require.LessOrEqual(t, x.Stats().Held, 10, "pairs are held")
	}
	x.Clear(o)
	s := x.Stats()
	assert.True(t, s.Held == 0 && s.Blocks == 0 && s.Holed == 0, "after a clear: %+v", s)
}

// TestBudgetShared has owners write at once, and one of them leave, in an index that is full.
func TestBudgetShared(t *testing.T) {
	x := New(Config{shards: 2, MaxBlocks: 2000})
	done := make(chan struct{})
	for i := range 4 {
		go func() {
			defer func() { done <- struct{}{} }()
			var m Matches
			for k := range uint64(300) {
				p := chain(uint64(i)<<32+k, 40)
				o := x.Owner(fmt.Sprint("w", i), 0)
				x.Store(o, Device, p)
				x.Match(p, &m)
				assert.LessOrEqual(t, m.Leading(o), len(p), "more blocks than the prompt has")
				if i == 0 && k%10 == 0 {
					x.Drop("w0")
				}
			}
		}()
	}
	for range 4 {
		<-done
	}
	if s := x.Stats(); s.Held > 2000 || s.Blocks != s.Held {
		t.Errorf("%d pairs of %d blocks are held, want as many, and at most 2000", s.Held, s.Blocks)
	}
	for i := range 4 {
		x.Drop(fmt.Sprint("w", i))
	}
	if s := x.Stats(); s.Held != 0 || s.Blocks != 0 || x.budget.total.Load() != 0 {
		t.Errorf("after all have left: %+v, total %d", s, x.budget.total.Load())
	}
}
