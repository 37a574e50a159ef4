package router

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/pools"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// worker is a registration with block size 16 and the given limits, of one that publishes its KV events.
func worker(id string, blocks, seqs, batch int) *pools.Worker {
	return &pools.Worker{
		ID: id, Model: "m", BlockSize: 16, TotalKVBlocks: blocks, MaxNumSeqs: seqs, MaxNumBatchedTokens: batch, KVEvents: "nats",
	}
}

// poolOf returns a pool in which all workers are up.
func poolOf(role pools.Role, ws ...*pools.Worker) *pools.Pool {
	p := &pools.Pool{Model: "m", Role: role, Version: 1}
	for _, w := range ws {
		p.Members = append(p.Members, pools.Member{Worker: w})
	}
	return p
}

// fleet returns n workers without limits.
func fleet(prefix string, n int) []*pools.Worker {
	ws := make([]*pools.Worker, n)
	for i := range ws {
		ws[i] = worker(fmt.Sprintf("%s%04d", prefix, i), 0, 0, 0)
	}
	return ws
}

// inMode is the default settings but for the policy.
func inMode(mode string) Config {
	cfg := DefaultConfig()
	cfg.Mode = mode
	return cfg
}

func newRouter(t testing.TB, cfg Config, idx *index.Index) *Router {
	t.Helper()
	r, err := New(cfg, idx)
	require.NoError(t, err)
	return r
}

// reserve books in p.
func reserve(t testing.TB, r *Router, p *pools.Pool, req Request, now time.Time) *Lease {
	t.Helper()
	l, err := r.Reserve(p, req, now)
	require.NoError(t, err)
	return l
}

// pick chooses in p, and books nothing.
func pick(t testing.TB, r *Router, p *pools.Pool, req Request, now time.Time) Choice {
	t.Helper()
	why, err := r.Pick(p, req, now)
	require.NoError(t, err)
	return why
}

// reservePair books in pp and dp.
func reservePair(t testing.TB, prefill, decode *Router, pp, dp *pools.Pool, preq, dreq Request) (p, d *Lease) {
	t.Helper()
	p, d, err := ReservePair(prefill, decode, pp, dp, preq, dreq, noon)
	require.NoError(t, err)
	return p, d
}

// mustPolicy is the policy of valid settings.
func mustPolicy(t testing.TB, cfg Config) policy {
	t.Helper()
	p, err := newPolicy(cfg)
	require.NoError(t, err)
	return p
}

// chain returns n hashes that are a prompt's for all a router knows.
func chain(seed uint64, n int) []uint64 {
	rng := rand.New(rand.NewPCG(seed, 1))
	hashes := make([]uint64, n)
	for i := range hashes {
		hashes[i] = rng.Uint64()
	}
	return hashes
}

// TestEligibility reserves once in a pool whose workers are down, draining or excluded.
func TestEligibility(t *testing.T) {
	a, b := worker("a", 0, 0, 0), worker("b", 0, 0, 0)
	until := noon.Add(time.Second)
	for _, c := range []struct {
		name    string
		members []pools.Member
		exclude []string
		want    string // worker or error
	}{
		{"none", nil, nil, ErrNoWorkers.Error()},
		{"one", []pools.Member{{Worker: a}}, nil, "a"},
		{"down", []pools.Member{{Worker: a, Status: pools.Down, DownUntil: until}, {Worker: b}}, nil, "b"},
		{"down no more", []pools.Member{{Worker: a, Status: pools.Down, DownUntil: noon}}, nil, "a"},
		{"draining", []pools.Member{{Worker: a, Status: pools.Draining}, {Worker: b}}, nil, "b"},
		{"excluded", []pools.Member{{Worker: a}, {Worker: b}}, []string{"a"}, "b"},
		{"all excluded", []pools.Member{{Worker: a}, {Worker: b}}, []string{"b", "a"}, ErrNoWorkers.Error()},
		{"down and excluded", []pools.Member{{Worker: a, Status: pools.Down, DownUntil: until}, {Worker: b}}, []string{"b"},
			ErrNoWorkers.Error()},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRouter(t, DefaultConfig(), nil)
			p := &pools.Pool{Model: "m", Role: pools.Both, Members: c.members}
			l, err := r.Reserve(p, Request{ID: "r", ISL: 20, Exclude: c.exclude}, noon)
			assert.Equal(t, c.want, outcome(l, err))
		})
	}
}

// outcome is the worker of a lease, or the innermost error.
func outcome(l *Lease, err error) string {
	var in *PoolError
	switch {
	case errors.As(err, &in):
		return in.Err.Error()
	case err != nil:
		return err.Error()
	}
	return l.Worker.ID
}

// TestThreshold fills two prefill workers one after the other: requests pass
// while one of them is not above threshold × max_num_batched_tokens.
func TestThreshold(t *testing.T) {
	for _, c := range []struct {
		name      string
		threshold float64
		batch     int
		prompts   []int // tokens, each on the worker with fewer booked
		want      error // of one more
	}{
		{"nothing booked", 4, 100, nil, nil},
		{"at the limit is not above", 4, 100, []int{400, 400}, nil},
		{"one above", 4, 100, []int{401, 400}, nil},
		{"both above", 4, 100, []int{401, 401}, ErrBusy},
		{"unknown batch is 8192", 4, 0, []int{32_768, 32_769}, nil},
		{"unknown batch, both above", 4, 0, []int{32_769, 32_769}, ErrBusy},
		{"zero waits for anything booked", 0, 100, []int{1, 1}, ErrBusy},
		{"off", -1, 100, []int{1e6, 1e6}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := DefaultConfig().For(pools.Prefill)
			cfg.QueueThreshold = c.threshold
			r := newRouter(t, cfg, nil)
			p := poolOf(pools.Prefill, worker("a", 0, 0, c.batch), worker("b", 0, 0, c.batch))
			var leases []*Lease
			for i, isl := range c.prompts {
				leases = append(leases, reserve(t, r, p, Request{ID: fmt.Sprint(i), ISL: isl}, noon))
			}
			_, err := r.Reserve(p, Request{ID: "more", ISL: 16}, noon)
			assert.ErrorIs(t, err, c.want, "one more")
			for _, l := range leases {
				l.PrefillDone(noon)
			}
			reserve(t, r, p, Request{ID: "after", ISL: 16}, noon)
		})
	}
}

// TestRoom checks decode's room and the request that is too big: block size 16, room for booked + prompt + 1 blocks.
func TestRoom(t *testing.T) {
	small, large, endless := worker("small", 10, 0, 0), worker("large", 20, 0, 0), worker("endless", 0, 0, 0)
	single := worker("single", 0, 1, 0)
	for _, c := range []struct {
		name    string
		workers []*pools.Worker
		booked  []int // tokens of prompts booked before
		isl     int
		exclude []string
		want    string // worker or error
	}{
		{"fits exactly", []*pools.Worker{small}, nil, 144, nil, "small"},
		{"too big by the first token's block", []*pools.Worker{small}, nil, 145, nil, "request needs 11 blocks, the largest worker has 10"},
		{"too big for one, fits another", []*pools.Worker{large, small}, nil, 160, nil, "large"},
		{"too big for all", []*pools.Worker{large, small}, nil, 1600, nil, "request needs 101 blocks, the largest worker has 20"},
		{"room beside another", []*pools.Worker{small}, []int{64}, 80, nil, "small"},
		{"no room beside another", []*pools.Worker{small}, []int{64}, 96, nil, ErrNoRoom.Error()},
		{"no limit known", []*pools.Worker{endless}, []int{1 << 30}, 1 << 30, nil, "endless"},
		{"all sequences taken", []*pools.Worker{single}, []int{1}, 1, nil, ErrNoRoom.Error()},
		{"the one that fits was tried", []*pools.Worker{large, small}, nil, 160, []string{"large"}, ErrNoWorkers.Error()},
		{"an empty prompt", []*pools.Worker{small}, nil, 0, nil, "small"},
		{"a negative length counts as none", []*pools.Worker{small}, nil, -5, nil, "small"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRouter(t, DefaultConfig().For(pools.Decode), nil)
			p := poolOf(pools.Decode, c.workers...)
			for i, isl := range c.booked {
				reserve(t, r, p, Request{ID: fmt.Sprint(i), ISL: isl}, noon)
			}
			l, err := r.Reserve(p, Request{ID: "r", ISL: c.isl, Exclude: c.exclude}, noon)
			assert.Equal(t, c.want, outcome(l, err))
		})
	}
}

// TestSeed: what was chosen can be chosen again, and another seed chooses otherwise.
func TestSeed(t *testing.T) {
	picks := func(seed uint64, model string) string {
		cfg := DefaultConfig()
		cfg.Seed = seed
		r := newRouter(t, cfg, nil)
		p := poolOf(pools.Both, fleet("w", 16)...)
		p.Model = model
		var ids strings.Builder
		for i := range 20 {
			ids.WriteString(pick(t, r, p, Request{ID: fmt.Sprint(i), ISL: 100}, noon).Worker.ID)
		}
		return ids.String()
	}
	first := picks(1, "m")
	assert.Equal(t, first, picks(1, "m"), "the same seed picks otherwise")
	assert.True(t, picks(2, "m") != first && picks(1, "other") != first, "another seed, or another pool, picks the same")
}

// TestViewFollows: owners and workers that come later are seen, ranks are
// candidates of their own, and accounts of those that left are closed.
func TestViewFollows(t *testing.T) {
	idx := index.New(index.Config{})
	r := newRouter(t, DefaultConfig(), idx)
	a, b := worker("a", 0, 0, 0), worker("b", 0, 0, 0)
	b.DataParallelRanks = 2
	prompt := chain(1, 4)
	p := poolOf(pools.Both, a, b)
	assert.Zero(t, r.Look(p, Request{Hashes: prompt}, noon).Blocks, "best overlap N before anything is known")
	idx.Store(idx.Owner("b", 1), index.Device, prompt[:3])
	assert.Equal(t, 3, r.Look(p, Request{Hashes: prompt}, noon).Blocks, "best overlap X, want 3")
	l := reserve(t, r, p, Request{ID: "r", ISL: 64, Hashes: prompt}, noon)
	assert.True(t, l.Worker.ID == "b" && l.Rank == 1 && l.Overlap == 3 && l.Candidates == 3,
		"chose %s rank %d of %d for overlap %d", l.Worker.ID, l.Rank, l.Candidates, l.Overlap)
	left := poolOf(pools.Both, a)
	assert.Zero(t, r.Look(left, Request{Hashes: prompt}, noon).Blocks, "best overlap N on a worker that has left")
	l.Release(noon)
	got := r.Loads(p)
	assert.True(t, got[1].Requests == 0 && got[1].CachedBlocks == 3, "back again: %+v", got[1])
}

// TestDebugLog reads the line of the documents.
func TestDebugLog(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
	r := newRouter(t, DefaultConfig().logTo(log), nil)
	l := reserve(t, r, poolOf(pools.Both, worker("worker_1", 0, 0, 0)), Request{ID: "r", ISL: 24}, noon)
	assert.Contains(t, out.String(), `msg="Formula for worker_1: 3.5 = 1.0 * 1.5 + 2.0 (cached_blocks: 0)"`, "X\nhas no")
	assert.Nil(t, l.Terms, "the lease keeps terms without a request for them")
	l = reserve(t, r, poolOf(pools.Both, worker("worker_1", 0, 0, 0)), Request{ID: "s", ISL: 24, Explain: true}, noon)
	assert.True(t, len(l.Terms) == 1 && l.Terms[0].Cost == l.Cost, "terms %+v for cost %v", l.Terms, l.Cost)
}

// TestManyAtOnce reserves, grows and releases from many goroutines over pools that change meanwhile: at the end every book is
// empty, and what is predicted is of workers that are there.
func TestManyAtOnce(t *testing.T) {
	idx := index.New(index.Config{})
	prefill := newRouter(t, DefaultConfig().For(pools.Prefill), idx)
	decode := newRouter(t, DefaultConfig().For(pools.Decode), idx)
	ps, ds := append(fleet("p", 5), silent("q0"), silent("q1")), fleet("d", 6)
	for _, d := range ds {
		d.MaxNumSeqs, d.TotalKVBlocks = 4, 200
	}
	snapshots := make([]*pools.Pool, 15) // each without another worker, and with another process of one that is predicted
	for i := range snapshots {
		ws, next := slices.Clone(ps), *ps[6]
		next.Incarnation, ws[6] = fmt.Sprint(i), &next
		snapshots[i] = poolOf(pools.Prefill, slices.Delete(ws, i%6, i%6+1)...)
		snapshots[i].Version = uint64(i)
	}
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			for i := range 150 {
				gone := (g + i/10) % 6
				dp := poolOf(pools.Decode, slices.Delete(slices.Clone(ds), gone, gone+1)...)
				req := Request{ID: fmt.Sprint(g, "/", i), ISL: 500, Hashes: chain(uint64(i%7), 31)}
				now := noon.Add(time.Duration(i) * 100 * time.Millisecond)
				p, d, err := ReservePair(prefill, decode, snapshots[i/10], dp, req, req, now)
				if err != nil {
					assert.True(t, errors.Is(err, ErrNoRoom) || errors.Is(err, ErrBusy), err)
					continue
				}
				idx.Store(idx.Owner(p.Worker.ID, p.Rank), index.Device, req.Hashes)
				var legs sync.WaitGroup
				for range 2 { // the holder, and one that is late
					legs.Go(func() { p.PrefillDone(now); p.Release(now) })
					legs.Go(func() { d.PrefillDone(now); d.Grow(2, now); d.Release(now) })
				}
				if i%3 == 0 {
					p.Invalidate()
				}
				if i%20 == 0 {
					idx.Drop(p.Worker.ID)
				}
				legs.Wait()
			}
		})
	}
	all.Wait()
	predicted := func() int { return prefill.Sources().Size().Predicted }
	assert.True(t, predicted() > 0 && predicted() <= 2*7*31, "%d blocks are predicted of 7 prompts on two workers", predicted())
	end := poolOf(pools.Prefill, ps[:5]...)
	end.Version = 99
	for pool, r := range map[*pools.Pool]*Router{end: prefill, poolOf(pools.Decode, ds...): decode} {
		assert.Zero(t, r.Open(), "%s: bookings", pool.Name())
		for _, l := range r.Loads(pool) {
			assert.True(t, l.ActiveBlocks == 0 && l.PrefillTokens == 0 && l.Requests == 0, "%s: %+v is left", pool.Name(), l)
		}
	}
	assert.Zero(t, predicted(), "blocks are predicted for no worker")
}
