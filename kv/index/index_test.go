package index

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// chain returns n hashes that are a prompt's for all the index knows.
func chain(seed uint64, n int) []uint64 {
	rng := rand.New(rand.NewPCG(seed, 1))
	hashes := make([]uint64, n)
	for i := range hashes {
		hashes[i] = rng.Uint64()
	}
	return hashes
}

// What came and went is counted however it did, and what was there already is not.
func TestChurn(t *testing.T) {
	x := New(Config{})
	p, o := chain(1, 100), x.Owner("w", 0)
	look := func(what string, came, went uint64) {
		t.Helper()
		c, w := x.Churn(o)
		assert.True(t, c == came && w == went, "%s: %d came and %d went, want %d and %d", what, c, w, came, went)
	}
	x.Store(o, Device, p[:60])
	x.Store(o, Device, p)
	look("stored twice in part", 100, 0)
	x.Remove(o, Device, p[90:])
	x.Remove(o, Device, p[90:])
	look("removed twice", 100, 10)
	x.Place(o, Host, p[:5])
	look("on a further tier", 105, 10)
	x.Clear(o)
	look("cleared", 105, 105)
	x.Store(o, Device, p)
	x.Drop("w")
	look("dropped", 0, 0)

	x = New(Config{MaxBlocks: 64})
	o = x.Owner("w", 0)
	x.Store(o, Device, p)
	if came, went := x.Churn(o); came != 100 || went != uint64(100-x.Blocks(o)) {
		t.Errorf("beyond the budget %d came and %d went, %d are there", came, went, x.Blocks(o))
	}
}

func TestMatchesZeroValue(t *testing.T) {
	var m Matches
	assert.Zero(t, m.Leading(0), "before any match an owner leads by N blocks")
	New(Config{}).Match(nil, &m)
	New(Config{}).Match(chain(1, 3), &m)
	assert.Zero(t, m.Leading(0), "an unknown owner leads by N blocks")
}

func TestOldOwnerIsVoid(t *testing.T) {
	x := New(Config{})
	p := chain(1, 8)
	old := x.Owner("a", 0)
	x.Store(old, Device, p)
	epoch := x.Epoch()
	x.Drop("a")
	heir := x.Owner("b", 0)
	require.True(t, heir.slot() == old.slot() && heir != old,
		"owner %#x follows %#x: want another use of the same slot", heir, old)
	assert.NotEqual(t, epoch, x.Epoch(), "the epoch did not change although owners did")
	x.Store(old, Device, p)
	x.Store(heir, Device, p[:2])
	x.Remove(old, Device, p)
	x.Clear(old)
	var m Matches
	x.Match(p, &m)
	assert.Equal(t, [2]int{0, 2}, [2]int{m.Leading(old), m.Leading(heir)}, "blocks by which the old owner and its heir lead")
}

func TestOwnersRunOut(t *testing.T) {
	x := New(Config{shards: 1})
	// Straight into the directory: one by one, each owner copies the list.
	full := &directory{owners: make([]*owner, maxOwners), ids: make([]Owner, maxOwners)}
	for i := range full.ids {
		full.ids[i] = NoOwner
	}
	x.dir.Store(full)
	assert.Equal(t, NoOwner, x.Owner("one too many", 0), "owner N beyond the last slot")
	x.Store(NoOwner, Device, chain(1, 3))
	assert.Zero(t, x.Stats().Blocks, "no owner stored N blocks")
}

// TestMemoryComesBack fills and empties an index: its arrays must shrink again, and a churning one must not grow.
func TestMemoryComesBack(t *testing.T) {
	x := New(Config{})
	empty := newTable(64)
	_, floor := empty.size()
	o := x.Owner("w", 0)
	const round = 20_000
	var peak int
	for i := range uint64(20) {
		x.Store(o, Device, chain(i, round))
		if i >= 2 {
			x.Remove(o, Device, chain(i-2, round))
		}
		if i == 4 {
			peak = x.Stats().Bytes
		}
	}
	assert.LessOrEqual(t, x.Stats().Bytes, peak*3/2, "bytes after 20 rounds, %d after 5", peak)
	assert.LessOrEqual(t, peak/(3*round), 48, "bytes for each of the blocks that were held at once")
	x.Drop("w")
	assert.LessOrEqual(t, x.Stats().Bytes, 2*floor, "bytes when emptied, %d when new", floor)
}

// TestPlaceFollowsTheOtherTier moves a prompt's blocks one by one to another tier, as engines announce it: the owner has no
// holes there. An unknown block makes one until it is stored again.
func TestPlaceFollowsTheOtherTier(t *testing.T) {
	x := New(Config{})
	o := x.Owner("w", 0)
	p := chain(1, 100)
	x.Store(o, Device, p)
	for i := range p {
		x.Place(o, Host, p[i:i+1])
		x.Remove(o, Device, p[i:i+1])
	}
	s := x.Stats()
	assert.True(t, s.Holed == 0 && s.Held == 100, "%d holes, %d held; want none and 100", s.Holed, s.Held)
	x.Place(o, Disk, p[50:51])
	x.Place(o, Device, chain(2, 1))
	assert.Equal(t, 2, x.Stats().Holed, "tiers have holes, want 2")
	x.Store(o, Device, chain(2, 5))
	x.Store(o, Disk, p[:50])
	assert.Zero(t, x.Stats().Holed, "tiers have holes, want none")
}

// TestLeapNoticesAGap has an owner get a gap after a Match has noted that it has none, and before it looks at the blocks: it
// must notice, also when the gap has gone again, and be right the second time. On the further tier the owner joins on the
// way.
func TestLeapNoticesAGap(t *testing.T) {
	for _, c := range []struct {
		name              string
		tier              Tier
		begin, end, again int // it holds what is from begin until end, then also what is from again on
		stays             bool
	}{
		{"stays", Device, 0, 40, 50, true},
		{"goes", Device, 0, 40, 50, false},
		{"stays on the host", Host, 32, 70, 75, true},
		{"goes from the host", Host, 32, 70, 75, false},
	} {
		x := New(Config{shards: 1})
		p := chain(1, 128)
		o := x.Owner("w", 0)
		x.Store(o, Device, p[:c.begin])
		x.Store(o, Host, p[:c.begin])
		if c.begin == 0 {
			x.Store(o, c.tier, p[:c.end])
		} else {
			x.Extend(o, c.tier, p[c.begin-1], p[c.begin:c.end])
		}
		tab, gaps := x.table(c.tier), &x.gaps[c.tier]

		var m Matches
		m.reset(x.dir.Load())
		if c.tier != Device {
			m.match(x.table(Device), &x.gaps[Device], Device, p)
		}
		m.look(gaps, false)
		x.Extend(o, c.tier, p[c.again-1], p[c.again:])
		m.follow(tab, c.tier, p, true)
		if !c.stays {
			x.Remove(o, c.tier, p[c.again:])
		}
		require.Equal(t, 128-c.begin, m.Tier(o, c.tier),
			"%s: run of X: want the gap leapt over, or this test shows nothing", c.name)
		assert.True(t, m.jumped && !m.unmoved(gaps), "%s: the gap was not noticed", c.name)
		m.look(gaps, true)
		m.follow(tab, c.tier, p, true)
		assert.Equal(t, c.end-c.begin, m.Tier(o, c.tier), "%s: run of N at the second look", c.name)
	}
}
