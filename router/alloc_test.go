//go:build !race

package router

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/kv/overlap"
	"github.com/tandem-pd/tandem/pools"
)

func TestPoliciesDoNotAllocate(t *testing.T) {
	for _, p := range (Config{}).Choices("") {
		for _, temperature := range []float64{0, 0.5} {
			cfg := inMode(p.Name)
			cfg.Temperature = temperature
			for _, cost := range []string{Classic, Credited} {
				cfg.Cost, cfg.Credit.Decay = cost, 1
				policy, err := newPolicy(cfg)
				require.NoError(t, err)
				ws, q := crowd(20, 1), asked(ask, rand.New(rand.NewPCG(1, 1)), &Why{})
				assert.EqualValues(t, 0, testing.AllocsPerRun(100, func() { policy(q, ws) }),
					"%s at temperature %v by %s allocates N times a pick", p.Name, temperature, cost)
			}
		}
	}
}

// allocates fails where f takes more allocations than so many.
func allocates(t *testing.T, name string, most float64, f func() error) {
	t.Helper()
	var failed error
	got := testing.AllocsPerRun(200, func() {
		if err := f(); err != nil {
			failed = err
		}
	})
	require.NoError(t, failed, name)
	assert.LessOrEqual(t, got, most, name)
}

// life is a request's: booked, computed, bound, grown and released.
func life(r *Router, p *pools.Pool, req Request) func() error {
	return func() error {
		l, err := r.Reserve(p, req, noon)
		if err == nil {
			l.PrefillDone(noon)
			l.Bind(noon)
			l.Grow(2, noon)
			l.Release(noon)
		}
		return err
	}
}

// Nothing that can be switched on makes a decision allocate more than its lease.
func TestReserveAllocatesTheLeaseAlone(t *testing.T) {
	idx := index.New(index.Config{})
	both := newRouter(t, DefaultConfig(), idx)
	prefill := newRouter(t, DefaultConfig().For(pools.Prefill), idx)
	decode := newRouter(t, DefaultConfig().For(pools.Decode), idx)
	bp, pp, dp := poolOf(pools.Both, fleet("b", 9)...), poolOf(pools.Prefill, fleet("p", 9)...), poolOf(pools.Decode, fleet("d", 9)...)
	req := Request{ID: "r", ISL: 500, Hashes: chain(1, 31)}
	remote := req
	remote.RemoteOverlap = remoteReport(map[overlap.Rank]int32{{Worker: "b0003", Rank: 0}: 4})
	allocates(t, "Pick", 0, func() error { _, err := both.Pick(bp, req, noon); return err })
	allocates(t, "Look", 0, func() error { l := both.Look(bp, Request{Hashes: req.Hashes}, noon); l.End(); return nil })
	allocates(t, "Pick, remote overlap", 0, func() error { _, err := both.Pick(bp, remote, noon); return err })
	allocates(t, "Reserve", 1, life(both, bp, req))
	allocates(t, "ReservePair", 1, func() error {
		p, d, err := ReservePair(prefill, decode, pp, dp, req, req, noon)
		if err == nil {
			p.Release(noon)
			d.Release(noon)
		}
		return err
	})

	cfg := DefaultConfig()
	cfg.Cost, cfg.Credit.Decay, cfg.PrefillLoad = Credited, 1, online
	cfg.Thresholds = Thresholds{DecodeBlocks: 0.9, PrefillTokens: 1 << 20}
	cfg.Forecast = func(*pools.Worker, int, int, int) (time.Duration, bool) { return time.Second, true }
	ws := fleet("b", 9)
	for _, w := range ws {
		w.TotalKVBlocks, w.Taints = 10_000, []string{"eu", "gold"}
		idx.Store(idx.Owner(w.ID, 0), index.Host, chain(1, 12))
	}
	half := 0.5
	req.Required, req.Preferred, req.OSL = []string{"eu"}, map[string]float64{"gold": 1}, 64
	req.Override = &Override{OverlapCredit: &half, Temperature: &half}
	allocates(t, "everything", 1, life(newRouter(t, cfg, idx), poolOf(pools.Both, ws...), req))

	p := poolOf(pools.Both, fleet("w", 100)...)
	for _, session := range []string{"", "s"} {
		plain := Request{ID: "r", ISL: 500, Session: session}
		allocates(t, "bindings, session "+session, 1, life(bindingRouter(t, pools.Both, nil), p, plain))
		for _, mode := range []string{"kv", "lmetric"} {
			for name, o := range map[string]*others{"spread": {unseen: 20, group: groupOf(3, 0)}, "cut off": {cutOff: true, group: groupOf(3, 0)}} {
				allocates(t, fmt.Sprint(mode, ", ", name, ", session ", session), 1, life(withPeers(t, inMode(mode), nil, o), p, plain))
			}
		}
	}
}

// Steady traffic over what is predicted allocates the lease alone, for workers
// that publish nothing and next to what others publish, by time and by room.
func TestPredictionAllocatesTheLeaseAlone(t *testing.T) {
	for _, c := range []struct {
		name string
		lru  bool
		w    func(id string) *pools.Worker
	}{
		{"silent, ttl", false, silent},
		{"silent, lru", true, silent},
		{"beside events", false, func(id string) *pools.Worker { return worker(id, 0, 0, 0) }},
	} {
		cfg := DefaultConfig().For(pools.Prefill)
		cfg.Predictions.LRU, cfg.PredictedTTL = c.lru, time.Second
		r := newRouter(t, cfg, index.New(index.Config{}))
		a, b := c.w("a"), c.w("b")
		a.TotalKVBlocks, b.TotalKVBlocks = 300, 300
		p := poolOf(pools.Prefill, a, b)
		prompts := [4][]uint64{chain(1, 50), chain(2, 50), chain(3, 150), chain(4, 150)}
		now, i := noon, 0
		reserve := func() {
			now, i = now.Add(100*time.Millisecond), i+1
			book(t, r, p, prompts[i%4], now)
		}
		for range 200 {
			reserve()
		}
		assert.NotZero(t, r.Sources().Size().Predicted+r.Sources().Size().Recent, "%s: nothing is predicted", c.name)
		allocates(t, c.name, 1, func() error { reserve(); return nil })
	}
}

// A drain asks for each prompt that waits: that it waits on allocates nothing.
func TestWaitingAllocatesNothing(t *testing.T) {
	l := newWaitingLine(t, 64, 100)
	i := 0
	ask := func() error { i++; return l.ask((i - 1) % len(l.asks)) }
	for range l.asks {
		require.NoError(t, ask())
	}
	allocates(t, "a prompt that waits on", 0, ask)
}
