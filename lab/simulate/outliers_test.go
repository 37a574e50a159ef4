package simulate

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/tandem-pd/tandem/lab/engine"
	"github.com/tandem-pd/tandem/lab/replay"
	"github.com/tandem-pd/tandem/pools"
)

// paced is a group of workers at a share of an H100 pair's speed.
func paced(role pools.Role, count int, speed float64) Group {
	l := engine.Qwen3Latency()
	for _, part := range []*float64{&l.A, &l.B, &l.Ctx, &l.Prefill, &l.Quad} {
		*part /= speed
	}
	return Group{Count: count, Role: role, Engine: engine.Config{BlockSize: 16, Latency: l}}
}

// steady is n requests of 2,000 and 100 tokens, 12 a second. One in five of client's is 40,000 tokens long.
func steady(n int, odd bool) *replay.Workload {
	w := &replay.Workload{Name: "steady"}
	for i := range n {
		tokens := 2000
		if odd && i%5 == 0 {
			tokens = 20_000
		}
		w.Requests = append(w.Requests, replay.Request{Index: i, At: time.Duration(i) * time.Second / 12, OutputTokens: 100,
			Spans: []replay.Span{{ID: uint64(i), Tokens: tokens}}})
	}
	return w
}

// played runs a workload over a fleet and returns the p99s of TTFT and of the gaps, and what was ejected at the end.
func playedOutliers(t *testing.T, w *replay.Workload, ejection float64, fleet ...Group) (ttft, tbt time.Duration, ejected []string) {
	t.Helper()
	cfg := arm(w, 16, "kv", fleet...)
	cfg.Ejection, cfg.Gaps, cfg.Learns = ejection, true, true
	r := ended(t, cfg)
	ttfts := []time.Duration{}
	for _, s := range r.out.Samples {
		ttfts = append(ttfts, time.Duration(s.TTFT))
	}
	slices.Sort(ttfts)
	slices.Sort(r.out.TBT)
	for _, role := range roles {
		ejected = append(ejected, r.gateways[0].outliers.ejected[role]...)
	}
	return replay.Quantile(ttfts, .99), replay.Quantile(r.out.TBT, .99), ejected
}

// A prefill and a decode worker of four each have 0.15 of the others' speed. Ejected, they leave the tail as it is without
// them; where all workers are alike, or slow, or two, none is ejected and nothing changes.
func TestEjectedOutliers(t *testing.T) {
	four := func(p, d float64) []Group {
		return []Group{paced(pools.Prefill, 3, 1), paced(pools.Prefill, 1, p), paced(pools.Decode, 3, 1), paced(pools.Decode, 1, d)}
	}
	const n = 1800
	ttft, tbt, none := playedOutliers(t, steady(n, false), 0, four(.15, .15)...)
	ejectedTTFT, ejectedTBT, ejected := playedOutliers(t, steady(n, false), .25, four(.15, .15)...)
	t.Logf("p99 TTFT %v, with ejection %v; p99 gap %v, with ejection %v", ttft, ejectedTTFT, tbt, ejectedTBT)
	assert.Empty(t, none, "ejected without the setting")
	assert.Equal(t, []string{"prefill-4", "decode-4"}, ejected)
	assert.Less(t, ejectedTTFT, ttft*2/3, "p99 TTFT")
	assert.Less(t, ejectedTBT, tbt*2/3, "p99 gap")
	for name, c := range map[string]struct {
		w     *replay.Workload
		fleet []Group
	}{
		"equal":    {steady(n, false), four(1, 1)},
		"all slow": {steady(300, false), []Group{paced(pools.Prefill, 4, .15), paced(pools.Decode, 4, .15)}},
		"two":      {steady(300, false), []Group{paced(pools.Prefill, 1, 1), paced(pools.Prefill, 1, .3), paced(pools.Decode, 1, 1), paced(pools.Decode, 1, .3)}},
		"odd":      {steady(600, true), four(1, 1)},
	} {
		ttft, tbt, _ := playedOutliers(t, c.w, 0, c.fleet...)
		same, alike, ejected := playedOutliers(t, c.w, .5, c.fleet...)
		assert.Empty(t, ejected, name)
		assert.Equal(t, []time.Duration{ttft, tbt}, []time.Duration{same, alike}, "%s: with a setting that ejects none", name)
	}
}
