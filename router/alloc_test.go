//go:build !race

package router

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router/index"
	"github.com/tandem-pd/tandem/router/overlap"
)

func TestPoliciesDoNotAllocate(t *testing.T) {
	for _, p := range (Config{}).Choices("") {
		for _, temperature := range []float64{0, 0.5} {
			cfg := DefaultConfig()
			cfg.Mode, cfg.Temperature = p.Name, temperature
			for _, cost := range []string{Classic, Credited} {
				cfg.Cost, cfg.Credit.Decay = cost, 1
				policy, err := newPolicy(cfg)
				if err != nil {
					t.Fatal(err)
				}
				ws, q := crowd(20, 1), asked(ask, rand.New(rand.NewPCG(1, 1)), &Why{})
				if got := testing.AllocsPerRun(100, func() { policy(q, ws) }); got != 0 {
					t.Errorf("%s at temperature %v by %s allocates %v times a pick", p.Name, temperature, cost, got)
				}
			}
		}
	}
}

func TestReserveAllocatesTheLeaseAlone(t *testing.T) {
	idx := index.New(index.Config{})
	both := newRouter(t, DefaultConfig(), idx)
	prefill := newRouter(t, DefaultConfig().For(pools.Prefill), idx)
	decode := newRouter(t, DefaultConfig().For(pools.Decode), idx)
	bp, pp, dp := poolOf(pools.Both, fleet("b", 9)...), poolOf(pools.Prefill, fleet("p", 9)...), poolOf(pools.Decode, fleet("d", 9)...)
	req := Request{ID: "r", ISL: 500, Hashes: chain(1, 31)}
	remote := req
	remote.RemoteOverlap = remoteReport(map[overlap.Rank]int32{{Worker: "b0003", Rank: 0}: 4})
	for _, c := range []struct {
		name string
		run  func() error
		want float64
	}{
		{"Pick", func() error { _, err := both.Pick(bp, req, noon); return err }, 0},
		{"BestOverlap", func() error { both.BestOverlap(bp, Request{Hashes: req.Hashes}, noon); return nil }, 0},
		{"Pick, remote overlap", func() error { _, err := both.Pick(bp, remote, noon); return err }, 0},
		{"Reserve", func() error {
			l, err := both.Reserve(bp, req, noon)
			if err == nil {
				l.PrefillDone(noon)
				l.Grow(1, noon)
				l.Release(noon)
			}
			return err
		}, 1},
		{"ReservePair", func() error {
			p, d, err := ReservePair(prefill, decode, pp, dp, req, req, noon)
			if err == nil {
				p.Release(noon)
				d.Release(noon)
			}
			return err
		}, 1},
	} {
		var failed error
		got := testing.AllocsPerRun(200, func() {
			if err := c.run(); err != nil {
				failed = err
			}
		})
		if failed != nil || got > c.want {
			t.Errorf("%s allocates %v times, want %v (%s)", c.name, got, c.want, fmt.Sprint(failed))
		}
	}
}

// Nothing that can be switched on makes a decision allocate more.
func TestReserveWithEverythingAllocatesTheLeaseAlone(t *testing.T) {
	idx := index.New(index.Config{})
	cfg := DefaultConfig()
	cfg.Cost, cfg.Credit.Decay, cfg.PrefillLoad = Credited, 1, online
	cfg.Thresholds = Thresholds{DecodeBlocks: 0.9, PrefillTokens: 1 << 20}
	cfg.Forecast = func(*pools.Worker, int, int, int) (time.Duration, bool) { return time.Second, true }
	r := newRouter(t, cfg, idx)
	ws := fleet("b", 9)
	for _, w := range ws {
		w.TotalKVBlocks, w.Taints = 10_000, []string{"eu", "gold"}
		idx.Store(idx.Owner(w.ID, 0), index.Host, chain(1, 12))
	}
	p, half := poolOf(pools.Both, ws...), 0.5
	req := Request{
		ID: "r", ISL: 500, Hashes: chain(1, 31), Required: []string{"eu"}, Preferred: map[string]float64{"gold": 1},
		Override: &Override{OverlapCredit: &half, Temperature: &half}, OSL: 64,
	}
	var failed error
	got := testing.AllocsPerRun(200, func() {
		l, err := r.Reserve(p, req, noon)
		if err != nil {
			failed = err
			return
		}
		l.Grow(2, noon)
		l.PrefillDone(noon)
		l.Release(noon)
	})
	if failed != nil || got > 1 {
		t.Errorf("%v allocations, want the lease's (%v)", got, failed)
	}
}

// Nor do peers and a session.
func TestPeersAndSessionsAllocateNothing(t *testing.T) {
	for _, mode := range []string{"kv", "lmetric"} {
		cfg := DefaultConfig()
		cfg.Mode = mode
		for name, o := range map[string]*others{"spread": {unseen: 20, group: groupOf(3, 0)}, "cut off": {cutOff: true, group: groupOf(3, 0)}} {
			for _, session := range []string{"", "s"} {
				r, p := withPeers(t, cfg, nil, o), poolOf(pools.Both, fleet("w", 100)...)
				req := Request{ID: "r", ISL: 500, Session: session}
				var failed error
				got := testing.AllocsPerRun(200, func() {
					l, err := r.Reserve(p, req, noon)
					if err != nil {
						failed = err
						return
					}
					l.Release(noon)
				})
				if failed != nil || got > 1 {
					t.Errorf("%s, %s, session %q: %v allocations, want the lease's (%v)", mode, name, session, got, failed)
				}
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
		if r.Sources().Size().Predicted+r.Sources().Size().Recent == 0 {
			t.Errorf("%s: nothing is predicted", c.name)
		}
		if got := testing.AllocsPerRun(200, reserve); got > 1 {
			t.Errorf("%s: %v allocations a booking, want the lease's", c.name, got)
		}
	}
}

// A drain asks for each prompt that waits: that it waits on allocates nothing.
func TestWaitingAllocatesNothing(t *testing.T) {
	l := newWaitingLine(t, 64, 100)
	i := 0
	ask := func() {
		if err := l.ask(i % len(l.asks)); err != nil {
			t.Fatal(err)
		}
		i++
	}
	for range l.asks {
		ask()
	}
	if got := testing.AllocsPerRun(500, ask); got != 0 {
		t.Errorf("a prompt that waits on allocates %v times", got)
	}
}

// TestBindingsCostNoAllocation beyond the lease's, for requests with and without a session.
func TestBindingsCostNoAllocation(t *testing.T) {
	r := bindingRouter(t, pools.Both, nil)
	p := poolOf(pools.Both, fleet("w", 8)...)
	for _, session := range []string{"", "s"} {
		i := 0
		ids := []string{"a", "b", "c", "d"}
		if n := testing.AllocsPerRun(100, func() {
			i++
			serve(t, r, p, Request{ID: ids[i%4], ISL: 100, Session: session}, noon)
		}); n > 1 {
			t.Errorf("session %q: %v allocations a booking, want the lease's", session, n)
		}
	}
}
