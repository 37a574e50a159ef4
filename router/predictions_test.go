package router

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pools"
)

// silent is a worker that publishes no KV events.
func silent(id string) *pools.Worker {
	w := worker(id, 0, 0, 0)
	w.KVEvents = "none"
	return w
}

// book reserves in p, releases, and returns the lease.
func book(t *testing.T, r *Router, p *pools.Pool, hashes []uint64, now time.Time) *Lease {
	t.Helper()
	l := reserve(t, r, p, Request{ID: "r", ISL: 16 * len(hashes), Hashes: hashes}, now)
	l.Release(now)
	return l
}

// TestPrediction sends a prompt, finds it where it was sent until its time is over, and finds it longer if it is sent again.
func TestPrediction(t *testing.T) {
	for _, role := range []pools.Role{pools.Prefill, pools.Both} {
		r := newRouter(t, DefaultConfig().For(role), nil)
		p := poolOf(role, silent("a"), silent("b"), silent("c"))
		hashes := chain(1, 20)
		first := book(t, r, p, hashes, noon)
		require.True(t, first.Overlap == 0 && r.Sources().Size().Predicted == 20 && r.Predicts(p),
			"%s: overlap %d, %d predicted", role, first.Overlap, r.Sources().Size().Predicted)
		again := book(t, r, p, hashes, noon.Add(100*time.Second))
		assert.True(t, again.Overlap == 20 && again.Worker == first.Worker && again.PrefillTokens == 0,
			"%s: overlap %d on %s, was sent to %s", role, again.Overlap, again.Worker.ID, first.Worker.ID)
		assert.Equal(t, 10, r.Look(p, Request{Hashes: append(hashes[:10:10], 1, 2)}, noon.Add(219*time.Second)).Blocks,
			"%s: best overlap N of half the prompt, want 10", role)
		if got := r.Look(p, Request{Hashes: hashes}, noon.Add(220*time.Second)).Blocks; got != 0 || r.Sources().Size().Predicted != 0 {
			t.Errorf("%s: overlap %d when its time was over, %d predicted", role, got, r.Sources().Size().Predicted)
		}
	}
}

// What was predicted ends with the worker's process: when it left, and when it
// restarted. A stale snapshot changes nothing of that.
func TestPredictionsEndWithTheWorker(t *testing.T) {
	r := newRouter(t, DefaultConfig().For(pools.Prefill), nil)
	hashes := chain(1, 20)
	now := poolOf(pools.Prefill, silent("a"), silent("b"))
	for _, id := range []string{"a", "b"} {
		reserve(t, r, now, Request{ID: id, ISL: 320, Hashes: hashes, Pin: &Pin{Worker: id}}, noon)
	}
	second := silent("a")
	second.Incarnation = "second"
	restarted := poolOf(pools.Prefill, second, now.Members[1].Worker)
	restarted.Version = 2
	overlaps := func(p *pools.Pool) (list []int) {
		for _, m := range p.Members {
			w := pick(t, r, p, Request{ID: "x", ISL: 320, Hashes: hashes, Pin: &Pin{Worker: m.Worker.ID}}, noon)
			list = append(list, w.Overlap)
		}
		return list
	}
	assert.Equal(t, "[20 20] [0 20] [0 20] [0 20]", fmt.Sprint(overlaps(now), overlaps(restarted), overlaps(now), overlaps(restarted)),
		"overlaps before, after, on the old snapshot, after")
	left := poolOf(pools.Prefill, second)
	left.Version = 3
	overlaps(left)
	assert.True(t, r.Sources().Size().Predicted == 0, "%d blocks are predicted for no worker", r.Sources().Size().Predicted)
}

// A pin narrows the choice and nothing else: a pinned worker still has to be there, up, and have room.
func TestPins(t *testing.T) {
	small := worker("small", 10, 0, 0)
	wide := worker("wide", 0, 0, 0)
	wide.DataParallelRanks = 3
	down := pools.Member{Worker: worker("down", 0, 0, 0), Status: pools.Draining}
	for _, c := range []struct {
		name string
		pin  Pin
		isl  int
		want string
	}{
		{"a worker", Pin{Worker: "small"}, 20, "small/0"},
		{"a rank", Pin{Ranked: true, Rank: 2}, 20, "wide/2"},
		{"both", Pin{Worker: "wide", Ranked: true, Rank: 1}, 20, "wide/1"},
		{"no such worker", Pin{Worker: "unknown"}, 20, ErrNoWorkers.Error()},
		{"no such rank", Pin{Worker: "small", Ranked: true, Rank: 1}, 20, ErrNoWorkers.Error()},
		{"draining", Pin{Worker: "down"}, 20, ErrNoWorkers.Error()},
		{"too big for it", Pin{Worker: "small"}, 1600, "request needs 101 blocks, the largest worker has 10"},
		{"no room beside another", Pin{Worker: "small"}, 96, ErrNoRoom.Error()},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRouter(t, DefaultConfig(), nil)
			p := poolOf(pools.Both, small, wide)
			p.Members = append([]pools.Member{down}, p.Members...)
			reserve(t, r, p, Request{ID: "beside", ISL: 64, Pin: &Pin{Worker: "small"}}, noon)
			l, err := r.Reserve(p, Request{ID: "r", ISL: c.isl, Pin: &c.pin}, noon)
			got := outcome(l, err)
			if err == nil {
				got += fmt.Sprint("/", l.Rank)
			}
			assert.Equal(t, c.want, got)
		})
	}
}
