//go:build !race

package router

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router/index"
)

func TestPoliciesDoNotAllocate(t *testing.T) {
	for _, p := range Policies() {
		for _, temperature := range []float64{0, 0.5} {
			cfg := DefaultConfig()
			cfg.Mode, cfg.Temperature = p.Name, temperature
			policy, err := newPolicy(cfg)
			if err != nil {
				t.Fatal(err)
			}
			ws, rng, why := crowd(20, 1), rand.New(rand.NewPCG(1, 1)), &Why{}
			if got := testing.AllocsPerRun(100, func() { policy.Pick(ask, ws, noon, rng, why) }); got != 0 {
				t.Errorf("%s at temperature %v allocates %v times a pick", p.Name, temperature, got)
			}
		}
	}
}

func TestReserveAllocatesTheLeaseAlone(t *testing.T) {
	idx := index.New(index.Config{})
	both := newRouter(t, DefaultConfig(), idx)
	prefill := newRouter(t, DefaultConfig().For(pools.Prefill), idx)
	decode := newRouter(t, DefaultConfig().For(pools.Decode), idx)
	pairer, err := NewPairer("sequential", prefill, decode)
	if err != nil {
		t.Fatal(err)
	}
	bp, pp, dp := poolOf(pools.Both, fleet("b", 9)...), poolOf(pools.Prefill, fleet("p", 9)...), poolOf(pools.Decode, fleet("d", 9)...)
	req := Request{ID: "r", ISL: 500, Hashes: chain(1, 31)}
	for _, c := range []struct {
		name string
		run  func() error
		want float64
	}{
		{"Pick", func() error { _, _, err := both.Pick(bp, req, noon); return err }, 0},
		{"BestOverlap", func() error { both.BestOverlap(bp, req.Hashes, noon); return nil }, 0},
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
			p, d, err := ReservePair(prefill, decode, pairer, pp, dp, req, noon)
			if err == nil {
				p.Release(noon)
				d.Release(noon)
			}
			return err
		}, 2},
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

// Steady traffic over what is predicted allocates the lease and its note.
func TestPredictionAllocates(t *testing.T) {
	r := newRouter(t, DefaultConfig().For(pools.Prefill), nil)
	p := poolOf(pools.Prefill, silent("a"), silent("b"))
	hashes := chain(1, 50)
	reserve := func() { book(t, r, p, hashes, noon) }
	reserve()
	if got := testing.AllocsPerRun(100, reserve); got > 2 {
		t.Errorf("%v allocations a booking, want at most 2", got)
	}
}
