package router

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/pools"
)

// What a choice reads of each slot comes in one line of the cache.
func TestSlotFitsALine(t *testing.T) {
	assert.LessOrEqual(t, unsafe.Sizeof(slot{}), uintptr(64), "bytes of a slot")
}

// Where every worker is up and a request names none, no seat is looked at before the lock. The choice must be the one that
// is made where each is looked at: in the same pool beside a worker that is being drained.
func TestSteadyPoolChoosesTheSame(t *testing.T) {
	what := func(l *Lease, err error) string {
		if err != nil {
			return fmt.Sprint(errors.Unwrap(err))
		}
		return fmt.Sprintf("%s/%d at %v, %d blocks cached", l.Worker.ID, l.Rank, l.Cost, l.Overlap)
	}
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 9))
		idx := index.New(index.Config{})
		cfg := DefaultConfig()
		cfg.Temperature = float64(rng.IntN(2))
		if rng.IntN(2) == 0 {
			cfg.Thresholds = Thresholds{PrefillTokens: 1 + rng.IntN(500), DecodeBlocks: rng.Float64()}
		}
		var ws []*pools.Worker
		for i := range 1 + rng.IntN(8) {
			w := worker(fmt.Sprint("w", i), rng.IntN(60), rng.IntN(4), 64*rng.IntN(3))
			w.DataParallelRanks = rng.IntN(3)
			ws = append(ws, w)
			for rank := range w.Ranks() {
				idx.Store(idx.Owner(w.ID, rank), index.Device, chain(uint64(rng.IntN(3)), rng.IntN(20)))
			}
		}
		drained := worker("z", 1, 0, 0)
		steady := poolOf(pools.Both, ws...)
		beside := poolOf(pools.Both, append(ws, drained)...)
		beside.Members[len(ws)].Status = pools.Draining
		one, other := newRouter(t, cfg, idx), newRouter(t, cfg, idx)
		for i := range 40 {
			n := rng.IntN(40)
			req := Request{ID: fmt.Sprint(i), ISL: 16*n + rng.IntN(16), Hashes: chain(uint64(rng.IntN(3)), n)}
			require.Equal(t, what(other.Reserve(beside, req, noon)), what(one.Reserve(steady, req, noon)), "seed %d, request %d", seed, i)
			require.True(t, one.see(steady).steady && !other.see(beside).steady, "the pools are not what the test is about")
		}
	}
}

// A choice is made in the memory of earlier ones, and takes nothing over from
// them: neither what was preferred, nor slower tiers, nor workers that have gone.
func TestChoicesKeepNothing(t *testing.T) {
	idx := index.New(index.Config{})
	cfg := DefaultConfig()
	cfg.Cost = Credited
	r := newRouter(t, cfg, idx)
	ws := fleet("w", 3)
	hashes := chain(1, 10)
	for _, w := range ws {
		w.Taints = []string{"gold"}
		idx.Store(idx.Owner(w.ID, 0), index.Host, hashes)
	}
	p := poolOf(pools.Both, ws...)
	v := r.see(p)
	c := newScratch()
	look := func(req Request) []candidate {
		r.core.begin(c, v, req, &Thresholds{}, noon)
		r.core.find(c, noon)
		c.tiers = req.ISL > 160
		var err error
		c.ws, err = c.view.choices(c, r.core.book, noon)
		require.NoError(t, err)
		return c.ws
	}
	w := look(Request{ISL: 161, Hashes: hashes, Preferred: map[string]float64{"gold": 1}})[2]
	require.True(t, w.Host == 10 && w.Favour == 1, "%d blocks on the host, favour %v", w.Host, w.Favour)
	if w := look(Request{ISL: 160, Hashes: hashes})[2]; w.Host != 0 || w.Favour != 0 {
		t.Errorf("%d blocks on the host and a favour of %v are left of an earlier choice", w.Host, w.Favour)
	}
	fewer := poolOf(pools.Both, ws[0])
	fewer.Version = 2
	v = r.see(fewer)
	look(Request{ISL: 160})
	for _, w := range c.ws[:cap(c.ws)][1:] {
		assert.Nil(t, w.Worker, "a worker that has gone is still held")
	}
}
