package index

import "testing"

// What Each yields makes another index the same, whatever an owner holds.
func TestEachMakesTheSame(t *testing.T) {
	x, y := New(Config{}), New(Config{})
	a, b := x.Owner("w", 0), y.Owner("w", 0)
	chain := make([]uint64, 3*piece)
	for i := range chain {
		chain[i] = uint64(i+1) * 0x9e3779b97f4a7c15
	}
	x.Store(a, Device, chain)
	x.Remove(a, Device, chain[100:103])
	x.Place(a, Host, chain[100:102])
	for tier := Device; tier <= Shared; tier++ {
		x.Each(a, tier, func(k Block) bool {
			one := []uint64{k.Hash}
			switch {
			case k.First:
				y.Store(b, tier, one)
			case k.Follows:
				y.Extend(b, tier, k.Parent, one)
			default:
				y.Place(b, tier, one)
			}
			return true
		})
	}
	if got, want := y.Blocks(b), x.Blocks(a); got != want || want != len(chain)-3 {
		t.Errorf("%d blocks, want %d", got, want)
	}
	for _, hashes := range [][]uint64{chain, chain[:50], chain[:101], chain[1:]} {
		var m, n Matches
		x.Match(hashes, &m)
		y.Match(hashes, &n)
		for tier := Device; tier <= Shared; tier++ {
			if got, want := n.Tier(b, tier), m.Tier(a, tier); got != want {
				t.Errorf("tier %d of %d blocks: %d, want %d", tier, len(hashes), got, want)
			}
		}
	}
	seen := 0
	x.Each(a, Device, func(Block) bool { seen++; return seen < 10 })
	if seen != 10 {
		t.Errorf("after false it went on to %d", seen)
	}
	x.Each(NoOwner, Device, func(Block) bool { t.Error("nobody holds a block"); return true })
}
