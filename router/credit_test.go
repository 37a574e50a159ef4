package router

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router/load"
)

// TestCredit works the cost of router-semantics §2.1 out by hand, for a prompt of 160 tokens in blocks of 16.
func TestCredit(t *testing.T) {
	to := func(edit func(*Config)) Config {
		cfg := DefaultConfig()
		cfg.Cost = Credited
		if edit != nil {
			edit(&cfg)
		}
		return cfg
	}
	one := 1.0
	for _, c := range []struct {
		name     string
		cfg      Config
		over     *Override
		cand     candidate
		others   int // prefill tokens booked on another candidate, which is not preferred
		want     float64
		contains string
	}{
		// (320 + 160) / 16 = 30 blocks, less 4; 5 held and 10 own.
		{"a hit", to(nil), nil, candidate{Overlap: 4, Load: load.Account{PrefillTokens: 320, ActiveBlocks: 5, Requests: 3}}, 320, 30 - 4 + 15,
			"Formula for w: 41.0 = 1.0 * max(0, 30.0 - 4.0) + 15.0 + 0.0 (cached_blocks: 4, host 0, disk 0, shared 0)"},
		{"shared blocks are held once", to(nil), nil, candidate{Overlap: 4, Reused: 3, Load: load.Account{ActiveBlocks: 5}}, 0, 6 + 12, ""},
		{"lower tiers", to(func(c *Config) { c.Credit.Shared = 0.5 }), nil, candidate{Overlap: 2, Host: 2, Disk: 2, Shared: 1}, 0,
			10 - (2 + 2*0.75 + 2*0.25 + 0.5) + 10, ""},
		{"credit above 1 eats the backlog", to(func(c *Config) { c.Credit.Overlap = 2 }), nil,
			candidate{Overlap: 10, Load: load.Account{PrefillTokens: 160}}, 160, 0 + 10, ""},
		{"never below 0", to(func(c *Config) { c.Credit.Overlap = 9 }), nil, candidate{Overlap: 10}, 0, 10, ""},
		// 320 tokens more than the least, 20 blocks: twice the prompt's 10.
		{"decay", to(func(c *Config) { c.Credit.Decay = 1 }), nil,
			candidate{Overlap: 6, Load: load.Account{PrefillTokens: 336}}, 16, 31 - 6./3 + 10, ""},
		{"decay leaves lower tiers", to(func(c *Config) { c.Credit.Decay = 1 }), nil,
			candidate{Host: 4, Load: load.Account{PrefillTokens: 336}}, 16, 31 - 3 + 10, ""},
		{"scale and requests", to(func(c *Config) { c.Credit.PrefillScale, c.Credit.ActiveRequests = 4, 64 }), nil,
			candidate{Overlap: 1, Load: load.Account{Requests: 2}}, 0, 4*9 + 10 + 128, ""},
		{"no requests' weight in a prefill pool", to(func(c *Config) { c.Credit.ActiveRequests = 64 }).For(pools.Prefill), nil,
			candidate{Overlap: 1, Load: load.Account{Requests: 2}}, 0, 9, ""},
		{"untracked prefill costs nothing", to(func(c *Config) { c.TrackPrefillTokens = false }), nil, candidate{Overlap: 1}, 0, 10, ""},
		{"a decode pool", to(nil).For(pools.Decode), nil, candidate{Load: load.Account{ActiveBlocks: 7, PrefillTokens: 99}}, 0, 17, ""},
		{"faded blocks", to(nil).For(pools.Decode), nil, candidate{Load: load.Account{ActiveBlocks: 7, Faded: 3 * 1024 / 2}}, 0, 15.5, ""},
		{"overridden", to(func(c *Config) { c.Credit.Overlap = 0; c.Credit.PrefillScale = 3 }),
			&Override{OverlapCredit: &one, PrefillScale: &one},
			candidate{Overlap: 4}, 0, 16, ""},
		{"a decode pool is not overridden", to(nil).For(pools.Decode), &Override{TrackPrefillTokens: new(true), PrefillScale: &one},
			candidate{Load: load.Account{PrefillTokens: 99}}, 0, 10, ""},
		{"a taint that is preferred", to(nil), nil, candidate{Overlap: 4, Favour: 0.5}, 0, 16 * math.Exp(-math.Tanh(0.5)), ""},
		{"and one that is not", to(nil), nil, candidate{Overlap: 4, Favour: -50}, 0, 16 * math.E, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			policy := mustPolicy(t, c.cfg)
			c.cand.Worker = &pools.Worker{ID: "w"}
			other := candidate{Worker: &pools.Worker{ID: "other"}, Load: load.Account{PrefillTokens: c.others, ActiveBlocks: 1 << 20}}
			why := Why{Explain: true}
			req := &query{Request: &Request{ISL: 160, Override: c.over}, BlockSize: 16}
			i, cost, _ := policy(asked(req, rand.New(rand.NewPCG(1, 1)), &why), []candidate{c.cand, other})
			require.True(t, !c.cfg.TrackActiveBlocks || i == 0, "picked %d", i)
			got := why.Terms[0].Cost
			assert.True(t, math.Abs(got-c.want) <= 1e-9, "costs %v, want %v: %s", got, c.want, why.Terms[0])
			assert.Equal(t, why.Terms[i].Cost, cost, "cost, its term says")
			assert.True(t, c.contains == "" || why.Terms[0].String() == c.contains, "got  %s\nwant %s", why.Terms[0], c.contains)
		})
	}
}
