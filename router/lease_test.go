package router

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router/load"
)

// TestBookings checks what each role books, for a prompt of 100 tokens of which two blocks are cached.
func TestBookings(t *testing.T) {
	for _, c := range []struct {
		role                      pools.Role
		granted, prefilled, grown WorkerLoad
		overlap, tokens           int
	}{
		{pools.Prefill, WorkerLoad{"a", 0, 68, 1, 2, 1, load.Account{}, 0}, WorkerLoad{"a", 0, 0, 1, 2, 1, load.Account{}, 0},
			WorkerLoad{"a", 0, 0, 1, 2, 1, load.Account{}, 0}, 2, 68},
		{pools.Decode, WorkerLoad{"a", 7, 0, 1, 2, 1, load.Account{}, 0}, WorkerLoad{"a", 7, 0, 1, 2, 1, load.Account{}, 0},
			WorkerLoad{"a", 10, 0, 1, 2, 1, load.Account{}, 0}, 0, 0},
		{pools.Both, WorkerLoad{"a", 7, 68, 1, 2, 1, load.Account{}, 0}, WorkerLoad{"a", 7, 0, 1, 2, 1, load.Account{}, 0},
			WorkerLoad{"a", 10, 0, 1, 2, 1, load.Account{}, 0}, 2, 68},
	} {
		t.Run(string(c.role), func(t *testing.T) {
			idx := index.New(index.Config{})
			prompt := chain(1, 6)
			idx.Store(idx.Owner("a", 0), index.Device, prompt[:2])
			r := newRouter(t, DefaultConfig().For(c.role), idx)
			p := poolOf(c.role, worker("a", 0, 0, 0))
			l := reserve(t, r, p, Request{ID: "r", ISL: 100, Hashes: prompt}, noon)
			assert.True(t, l.Overlap == c.overlap && l.PrefillTokens == c.tokens && l.BacklogTokens == c.tokens,
				"lease: overlap %d, %d tokens, backlog %d", l.Overlap, l.PrefillTokens, l.BacklogTokens)
			check := func(when string, want WorkerLoad) {
				t.Helper()
				assert.Equal(t, want, r.Loads(p)[0], when)
			}
			check("granted", c.granted)
			l.PrefillDone(noon)
			l.PrefillDone(noon)
			check("prefilled", c.prefilled)
			l.Grow(3, noon)
			l.Grow(-1, noon)
			check("grown", c.grown)
			l.Release(noon)
			l.Release(noon)
			check("released", WorkerLoad{Worker: "a", CachedBlocks: 2, Booked: 1})

			next := reserve(t, r, p, Request{ID: "r", ISL: 100, Hashes: prompt}, noon)
			l.Release(noon)
			l.PrefillDone(noon)
			l.Grow(5, noon)
			c.granted.Booked = 2
			check("the next lease of the same name", c.granted)
			next.Release(noon)
			assert.Zero(t, r.Open(), "bookings are left")
		})
	}
}
