package router

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/kv/overlap"
	"github.com/tandem-pd/tandem/pools"
)

// siblings is a burst of 20 requests of one prompt of 40 blocks that no worker has seen, at four workers that publish. It
// returns how many went to each, and how many prompt tokens were booked in all.
func siblings(t *testing.T, cfg Config, afterFirst func(r *Router, first *Lease)) (r *Router, each map[string]int, tokens int) {
	t.Helper()
	idx := index.New(index.Config{})
	r = newRouter(t, cfg.For(pools.Prefill), idx)
	ws := fleet("w", 4)
	for _, w := range ws {
		idx.Owner(w.ID, 0) // its events are followed, and none has come
	}
	p := poolOf(pools.Prefill, ws...)
	hashes := chain(1, 40)
	each = map[string]int{}
	for i := range 20 {
		l := reserve(t, r, p, Request{ID: fmt.Sprint(i), ISL: 645, Hashes: hashes}, noon)
		each[l.Worker.ID]++
		tokens += l.PrefillTokens
		if i == 0 && afterFirst != nil {
			afterFirst(r, l)
		}
	}
	return r, each, tokens
}

// TestSiblingsLandTogether: before the first event arrives, what was sent is what there is to go by.
func TestSiblingsLandTogether(t *testing.T) {
	classic, credit := DefaultConfig(), DefaultConfig()
	credit.Cost, credit.Credit.Overlap = Credited, 2 // a hit makes up for a backlog as long as itself
	computed := func(_ *Router, first *Lease) { first.PrefillDone(noon) }
	for _, c := range []struct {
		name                 string
		cfg                  Config
		first                func(*Router, *Lease)
		without, with        int // most on one worker
		tokens, tokensBeside int
	}{
		// The first is being computed: a place behind it costs what computing the
		// prompt again costs, so each worker gets it once, and none twice.
		{"at once, classic", classic, nil, 5, 5, 20 * 645, 4*645 + 16*5},
		// It is computed, and its event is under way.
		{"behind the first, classic", classic, computed, 6, 20, 20 * 645, 645 + 19*5},
		{"at once, credit 2", credit, nil, 5, 20, 20 * 645, 645 + 19*5},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, each, tokens := siblings(t, c.cfg, c.first)
			assert.True(t, len(each) == 4 && tokens == c.tokens,
				"without: %v, %d tokens to compute, want %d over four workers", each, tokens, c.tokens)
			for id, n := range each {
				assert.LessOrEqual(t, n, c.without, "without on %s, want at most", id)
			}
			c.cfg.PredictedTTL = 2 * time.Second
			r, each, tokens := siblings(t, c.cfg, c.first)
			most := 0
			for _, n := range each {
				most = max(most, n)
			}
			assert.True(t, most >= c.with && tokens == c.tokensBeside,
				"with: %v, %d tokens to compute, want %d and %d on one", each, tokens, c.tokensBeside, c.with)
			assert.Equal(t, Overlaps{Recent: uint64(20*645-tokens) / 16}, r.Overlaps())
		})
	}
}

// aside is a router with predictions beside events of one worker with two ranks, and a silent one.
func aside(t *testing.T) (*Router, *index.Index, *pools.Pool) {
	idx := index.New(index.Config{})
	cfg := DefaultConfig()
	cfg.PredictedTTL, cfg.Cost = 2*time.Second, Credited
	r := newRouter(t, cfg, idx)
	loud := worker("loud", 0, 0, 0)
	loud.DataParallelRanks, loud.Taints = 2, []string{"gold"}
	return r, idx, poolOf(pools.Both, loud, silent("quiet"))
}

// at is the candidate that is one rank of loud.
func at(t *testing.T, r *Router, p *pools.Pool, rank int, hashes []uint64, now time.Time) candidate {
	t.Helper()
	c := r.begin(p, Request{
		ID: "x", ISL: 16 * len(hashes), Hashes: hashes, Pin: &Pin{Worker: "loud", Ranked: true, Rank: rank}, Required: []string{"gold"},
	}, now)
	defer r.end(c)
	r.mu.Lock()
	defer r.mu.Unlock()
	i, err := r.core.pick(c, now)
	require.NoError(t, err)
	return c.ws[i]
}

// send books hashes there, and releases them.
func send(t *testing.T, r *Router, p *pools.Pool, worker string, rank int, hashes []uint64) *Lease {
	t.Helper()
	l := reserve(t, r, p, Request{ID: fmt.Sprint(worker, rank, len(hashes)), ISL: 16 * len(hashes), Hashes: hashes,
		Pin: &Pin{Worker: worker, Ranked: true, Rank: rank}}, noon)
	l.Release(noon)
	return l
}

// TestSentIsBesideEvents: of each rank what is believed is the more of what it
// said and what it was sent, for as long as the TTL.
func TestSentIsBesideEvents(t *testing.T) {
	r, idx, p := aside(t)
	hashes := chain(1, 40)
	send(t, r, p, "loud", 1, hashes[:30])
	send(t, r, p, "quiet", 0, hashes)
	assert.True(t, r.Sources().Size().Recent == 30 && r.Sources().Size().Predicted == 40,
		"%d blocks sent, %d predicted", r.Sources().Size().Recent, r.Sources().Size().Predicted)
	loads := r.Loads(p)
	assert.True(t, loads[0].RecentBlocks == 30 && loads[0].CachedBlocks == 0 && loads[1].RecentBlocks == 0 && loads[1].CachedBlocks == 40,
		"loads %+v", loads)
	check := func(when string, rank int, now time.Time, overlap, foreseen int) {
		t.Helper()
		if w := at(t, r, p, rank, hashes, now); w.Overlap != overlap || int(w.Predicted) != foreseen {
			t.Errorf("%s: %d blocks on rank %d, %d foreseen; want %d, %d", when, w.Overlap, rank, w.Predicted, overlap, foreseen)
		}
	}
	check("sent", 1, noon, 30, 30)
	check("not sent", 0, noon, 0, 0)
	owner := idx.Owner("loud", 1)
	idx.Store(owner, index.Device, hashes[:10])
	check("it said 10", 1, noon, 30, 20)
	idx.Extend(owner, index.Device, hashes[9], hashes[10:35])
	check("it said 35", 1, noon, 35, 0)
	idx.Remove(owner, index.Device, hashes[5:35])
	check("it evicted", 1, noon, 30, 25)
	check("it evicted, and the time is over", 1, noon.Add(2*time.Second), 5, 0)
	assert.Equal(t, 40, r.Look(p, Request{Hashes: hashes}, noon.Add(2*time.Second)).Blocks,
		"best overlap X, want the silent worker's 40")
}

// Slower tiers go on where the device's run has ended by what was said: what is foreseen on the device covers them first.
func TestForeseenCoversSlowerTiers(t *testing.T) {
	r, idx, p := aside(t)
	hashes := chain(1, 40)
	owner := idx.Owner("loud", 1)
	idx.Store(owner, index.Device, hashes[:5])
	idx.Place(owner, index.Host, hashes[5:25])
	for _, c := range []struct{ sent, device, host int }{{0, 5, 20}, {15, 15, 10}, {30, 30, 0}} {
		send(t, r, p, "loud", 1, hashes[:c.sent])
		w := at(t, r, p, 1, hashes, noon)
		assert.Equal(t, [2]int{c.device, c.host}, [2]int{int(w.Overlap), int(w.Host)}, "blocks on the device and on the host, %d sent", c.sent)
	}
}

// A request that never reached the worker is taken back; and a distrusted rank is
// predicted in place of followed, and the other way round.
func TestSentIsInvalidatedAndCompared(t *testing.T) {
	r, _, p := aside(t)
	hashes := chain(1, 40)
	l := send(t, r, p, "loud", 1, hashes)
	send(t, r, p, "loud", 1, hashes[:5])
	l.Invalidate()
	l.Invalidate()
	if w := at(t, r, p, 1, hashes, noon); w.Overlap != 5 || r.Sources().Size().Recent != 5 {
		t.Errorf("%d blocks are left of it, %d in all, want the sibling's 5", w.Overlap, r.Sources().Size().Recent)
	}
	r.Sources().SetStale(map[overlap.Rank]struct{}{{Worker: "loud", Rank: 1}: {}})
	assert.Zero(t, at(t, r, p, 1, hashes, noon).Overlap, "distrusted, it begins with N blocks")
	send(t, r, p, "loud", 1, hashes[:20])
	send(t, r, p, "loud", 0, hashes[:25])
	assert.True(t, r.Sources().Size().Predicted == 20 && r.Sources().Size().Recent == 5+25,
		"%d predicted, %d sent", r.Sources().Size().Predicted, r.Sources().Size().Recent)
	assert.Equal(t, Overlaps{Recent: 5}, r.Overlaps(), "the sibling found five blocks that were sent")
	assert.Equal(t, 20, at(t, r, p, 1, hashes, noon).Overlap, "distrusted: blocks, want the 20 predicted")
	both := map[overlap.Rank]struct{}{{Worker: "loud", Rank: 0}: {}, {Worker: "loud", Rank: 1}: {}}
	r.Sources().SetStale(both)
	at(t, r, p, 1, hashes, noon)
	assert.True(t, r.Sources().Size().Recent == 0, "%d blocks beside events that do not count", r.Sources().Size().Recent)
	r.Sources().SetStale(map[overlap.Rank]struct{}{})
	if w := at(t, r, p, 1, hashes, noon); w.Overlap != 0 || r.Sources().Size().Predicted != 0 {
		t.Errorf("trusted again: %d blocks, %d predicted", w.Overlap, r.Sources().Size().Predicted)
	}
}

// With lru each rank is predicted to hold no more than it can, and for as long as nothing else is sent there.
func TestPredictionsBoundByTheWorker(t *testing.T) {
	cfg := DefaultConfig().For(pools.Prefill)
	cfg.Predictions.LRU, cfg.Predictions.MaxBlocks = true, 50
	r := newRouter(t, cfg, nil)
	small, open := silent("small"), silent("open")
	small.TotalKVBlocks, small.DataParallelRanks = 100, 2
	p := poolOf(pools.Prefill, open, small)
	for i := range 5 {
		for rank := range 2 {
			send(t, r, p, "small", rank, chain(uint64(i), 41+rank))
		}
		send(t, r, p, "open", 0, chain(uint64(i), 43))
	}
	loads := r.Loads(p)
	if loads[1].CachedBlocks != 200 || loads[0].CachedBlocks != 40 { // the open one is pruned
		t.Errorf("loads %+v", loads)
	}
	assert.Equal(t, 42, r.Look(p, Request{Hashes: chain(4, 43)}, noon.Add(1000*time.Hour)).Blocks,
		"after weeks N blocks of the latest prompt, want all 42 that rank 1 was sent")
	larger := silent("small")
	larger.TotalKVBlocks, larger.DataParallelRanks = 1000, 2
	p = poolOf(pools.Prefill, open, larger)
	p.Version = 2
	for i := range 5 {
		send(t, r, p, "small", 0, chain(uint64(i+10), 44))
	}
	assert.Equal(t, 200+220, r.Loads(p)[1].CachedBlocks, "blocks when it has become larger, want 420")
}
