package placement

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pools"
)

// TestRoomIsLeft: an ask leaves the workers that would be chosen for a request at another gateway, and takes others; it waits where there are none,
// and neither where that request would not fit, nor where there is none.
func TestRoomIsLeft(t *testing.T) {
	for _, c := range []struct {
		name   string
		fleet  []string
		blocks int // of each decode worker
		yield  int
		want   Want
		place  bool
		waits  bool // though there is room
	}{
		{name: "no such request", fleet: []string{"p", "d"}, blocks: 100, place: true},
		{name: "the only pair", fleet: []string{"p", "d"}, blocks: 100, yield: 40, waits: true},
		{name: "one leg is enough", fleet: []string{"p1", "p2", "d"}, blocks: 100, yield: 40, waits: true},
		{name: "two of each", fleet: []string{"p1", "p2", "d1", "d2"}, blocks: 100, yield: 40, place: true},
		{name: "it is too long", fleet: []string{"p", "d"}, blocks: 10, yield: 4000, place: true},
		{name: "staged KV", fleet: []string{"p1", "d1"}, blocks: 100, want: Decode, yield: 40, waits: true},
		{name: "aggregated", fleet: []string{"b"}, blocks: 100, yield: 40, waits: true},
		{name: "two aggregated", fleet: []string{"b1", "b2"}, blocks: 100, yield: 40, place: true},
		{name: "no room at all", fleet: []string{"p", "d"}, blocks: 1, yield: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			fleet := fleetOf(func(m *pools.Member) { m.Worker.BlockSize, m.Worker.TotalKVBlocks = 16, c.blocks }, c.fleet...)
			placer := newPlacer(t, false, nil)
			other := newAsk(c.want, func(a *Ask) { a.ISL, a.Yield = 40, c.yield })
			placed, err := placer.Book(fleet, other, nil, start)
			require.True(t, (err == nil) == c.place && errors.Is(err, ErrYield) == c.waits && (!c.waits || (Waits(err) && len(other.claims) <= 0)),
				"%q, %v, and it claims %v", ids(&placed), err, other.claims)
			if err == nil {
				placed.Release(start)
			}
			for _, pool := range []*pools.Pool{fleet.Prefill, fleet.Decode, fleet.Both} {
				for _, l := range placer.Routers.For(other.Model, pool.Role).Loads(pool) {
					assert.Zero(t, l.Requests, "%s is left with N requests", l.Worker)
				}
			}
		})
	}
}
