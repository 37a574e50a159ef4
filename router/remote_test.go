package router

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/kv/overlap"
	"github.com/tandem-pd/tandem/pools"
)

// remoteReport is what a remote index answers of ranks: device blocks, -1 for a rank that the index does not list.
func remoteReport(device map[overlap.Rank]int32) *overlap.Report {
	var ranks []overlap.Rank
	for r := range device {
		ranks = append(ranks, r)
	}
	answered := &overlap.Report{Layout: overlap.NewLayout(ranks), Tiers: make([]overlap.Tiers, len(ranks))}
	for i := range answered.Tiers {
		if n := device[answered.Layout.Rank(i)]; n >= 0 {
			answered.Tiers[i] = overlap.Tiers{Known: true, Device: n}
		}
	}
	return answered
}

// What is answered of a rank counts, more or less than is known here; of ranks that it
// is silent about, what is known or predicted here does.
func TestRemoteReportIsPreferred(t *testing.T) {
	idx := index.New(index.Config{})
	prompt := chain(1, 8)
	a, b, c := worker("a", 0, 0, 0), worker("b", 0, 0, 0), silent("c")
	b.DataParallelRanks = 2
	idx.Store(idx.Owner("a", 0), index.Device, prompt)     // all of it, if one asks here
	idx.Store(idx.Owner("b", 0), index.Device, prompt[:2]) // answered of no more
	r := newRouter(t, DefaultConfig(), idx)
	p := poolOf(pools.Both, a, b, c)
	req := Request{ID: "r", ISL: 8 * 16, Hashes: prompt, Explain: true}
	book(t, r, poolOf(pools.Both, c), prompt[:3], noon).Release(noon) // predicted
	for _, tt := range []struct {
		name     string
		answered *overlap.Report
		want     [4]int // a/0, b/0, b/1, c/0
	}{
		{"nothing", nil, [4]int{8, 2, 0, 3}},
		{"less", remoteReport(map[overlap.Rank]int32{{Worker: "a", Rank: 0}: 0}), [4]int{0, 2, 0, 3}},
		{"more, and of strangers", remoteReport(map[overlap.Rank]int32{{Worker: "b", Rank: 1}: 5, {Worker: "zz", Rank: 0}: 8,
			{Worker: "", Rank: 7}: 1}), [4]int{8, 2, 5, 3}},
		{"silent about some", remoteReport(map[overlap.Rank]int32{{Worker: "a", Rank: 0}: -1, {Worker: "b", Rank: 0}: 4,
			{Worker: "b", Rank: 1}: -1, {Worker: "c", Rank: 0}: 6}), [4]int{8, 4, 0, 6}},
		{"of everybody", remoteReport(map[overlap.Rank]int32{{Worker: "a", Rank: 0}: 1, {Worker: "b", Rank: 0}: 0,
			{Worker: "b", Rank: 1}: 99, {Worker: "c", Rank: 0}: 0}), [4]int{1, 0, 8, 0}},
		{"of the wrong length", &overlap.Report{Layout: overlap.NewLayout([]overlap.Rank{{Worker: "a", Rank: 0}})}, [4]int{8, 2, 0, 3}},
	} {
		req.RemoteOverlap = tt.answered
		why := pick(t, r, p, req, noon)
		best := 0
		for i, term := range why.Terms {
			assert.Equal(t, tt.want[i], term.CachedBlocks, "%s: %s rank %d blocks cached", tt.name, term.Worker, term.Rank)
			best = max(best, tt.want[i])
		}
		assert.Equal(t, best, why.Overlap, "%s: chosen for an overlap of X, the best", tt.name)
		if got := r.Look(p, req, noon).Blocks; got < best { // of the prompt's blocks, not bounded by its length
			t.Errorf("%s: best overlap %d, want %d", tt.name, got, best)
		}
	}
}

// Told tiers count as the index's own do, together no more than the prompt, and nonsense does no harm.
func TestRemoteTiers(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Cost = Credited
	r := newRouter(t, cfg, nil)
	p := poolOf(pools.Both, worker("a", 0, 0, 0), worker("b", 0, 0, 0))
	req := Request{ID: "r", ISL: 8 * 16, Hashes: chain(1, 8), Explain: true, RemoteOverlap: &overlap.Report{
		Layout: overlap.NewLayout([]overlap.Rank{{Worker: "a", Rank: 0}, {Worker: "b", Rank: 0}}),
		Tiers:  []overlap.Tiers{{Known: true, Device: 3, Host: 2, Disk: 2, Shared: 9}, {Known: true, Device: -5, Host: 1 << 30}},
	}}
	why := pick(t, r, p, req, noon)
	for i, want := range [][4]int{{3, 2, 2, 1}, {0, 8, 0, 0}} {
		term := why.Terms[i]
		assert.Equal(t, want, [4]int{term.CachedBlocks, term.HostBlocks, term.DiskBlocks, term.SharedBlocks}, term.Worker)
	}
}

// A pair's prefill leg hears it; decode, which does not look at prompts, does not.
func TestRemoteReportOfAPair(t *testing.T) {
	prefill, decode := newRouter(t, DefaultConfig().For(pools.Prefill), nil), newRouter(t, DefaultConfig().For(pools.Decode), nil)
	require.True(t, !prefill.IgnoresOverlap() && decode.IgnoresOverlap(),
		"blind: prefill %v, decode %v", prefill.IgnoresOverlap(), decode.IgnoresOverlap())
	pp, dp := poolOf(pools.Prefill, silent("p1"), silent("p2")), poolOf(pools.Decode, silent("d1"))
	req := Request{ID: "r", ISL: 8 * 16, Hashes: chain(1, 8),
		RemoteOverlap: remoteReport(map[overlap.Rank]int32{{Worker: "p2", Rank: 0}: 6, {Worker: "d1", Rank: 0}: 8})}
	p, d := reservePair(t, prefill, decode, pp, dp, req, req)
	assert.True(t, p.Worker.ID == "p2" && p.Overlap == 6 && d.Overlap == 0,
		"chose %s for an overlap of %d, and decode for %d", p.Worker.ID, p.Overlap, d.Overlap)
}
