package router

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/pools"
)

// others is what a router under test knows of its peers.
type others struct {
	unseen float64
	delay  time.Duration
	group  *Group
	cutOff bool
}

func (o *others) Unseen(*pools.Pool) float64 { return o.unseen }
func (o *others) Delay() time.Duration       { return o.delay }
func (o *others) Group() *Group              { return o.group }
func (o *others) CutOff() bool               { return o.cutOff }

// groupOf is n gateways, seen by the one with a number.
func groupOf(n, own int) *Group {
	g := &Group{}
	for i := range n {
		g.Names = append(g.Names, fmt.Sprint("gateway-", i))
	}
	g.Own = g.Names[own]
	return g
}

// withPeers is a router of a gateway among others.
func withPeers(t testing.TB, cfg Config, idx *index.Index, o *others) *Router {
	t.Helper()
	cfg.Peers = o
	return newRouter(t, cfg, idx)
}

// picks counts which workers so many requests would go to.
func picks(t testing.TB, r *Router, p *pools.Pool, req Request, n int) map[string]int {
	t.Helper()
	counts := map[string]int{}
	for i := range n {
		req.ID = fmt.Sprint("pick-", i)
		c, err := r.Pick(p, req, noon)
		if later, ok := errors.AsType[*LaterError](err); ok { // mode eft would wait for it
			c.Worker = p.Members[later.Slot].Worker
		} else if err != nil {
			t.Fatal(err)
		}
		counts[c.Worker.ID]++
	}
	return counts
}

// TestTiesGoByTheRequestsDraw: whatever the policy, requests of one moment spread over equal workers.
func TestTiesGoByTheRequestsDraw(t *testing.T) {
	p := poolOf(pools.Both, fleet("w", 8)...)
	for _, choice := range (Config{}).Choices("") {
		if choice.Name == "round-robin" { // takes turns
			continue
		}
		counts := picks(t, newRouter(t, inMode(choice.Name), nil), p, Request{ISL: 100}, 4000)
		for _, w := range p.Members {
			n := counts[w.Worker.ID]
			assert.True(t, n >= 400 && n <= 600, "%s: %d of 4000 went to %s of 8 equal workers", choice.Name, n, w.Worker.ID)
		}
	}
}

// TestWaterFilling: a draw goes by what workers lack of the level to which the unseen bookings fill them.
func TestWaterFilling(t *testing.T) {
	o := &others{unseen: 2}
	r := withPeers(t, inMode("least-loaded").For(pools.Decode), nil, o)
	p := poolOf(pools.Decode, worker("a", 0, 0, 0), worker("b", 0, 0, 0), worker("c", 0, 0, 0))
	for i, n := range []int{0, 1, 5} {
		for k := range n {
			reserve(t, r, p, Request{ID: fmt.Sprint(i, "-", k), ISL: 20, Pin: &Pin{Worker: p.Members[i].Worker.ID}}, noon)
		}
	}
	for _, c := range []struct {
		unseen float64
		want   [3]float64
	}{
		{0, [3]float64{1, 0, 0}},
		{0.49, [3]float64{1, 0, 0}},
		{1, [3]float64{1, 0, 0}},           // up to the second
		{2, [3]float64{0.75, 0.25, 0}},     // to 1.5
		{9, [3]float64{5. / 9, 4. / 9, 0}}, // to the third
		{15, [3]float64{7. / 15, 6. / 15, 2. / 15}},
	} {
		o.unseen = c.unseen
		counts := picks(t, r, p, Request{ISL: 20}, 4000)
		for i, w := range p.Members {
			if got := float64(counts[w.Worker.ID]) / 4000; math.Abs(got-c.want[i]) > 0.03 {
				t.Errorf("%v unseen: %.3f went to %s, want %.3f", c.unseen, got, w.Worker.ID, c.want[i])
			}
		}
	}
	assert.Zero(t, r.Draws(), "draws are counted, and what was booked was pinned or only picked")
	for i, unseen := range []float64{0, 2, 0.49, 15} {
		o.unseen = unseen
		reserve(t, r, p, Request{ID: fmt.Sprint("drawn-", i), ISL: 20}, noon.Add(time.Duration(i)*time.Second))
		assert.Equal(t, uint64((i+1)/2), r.Draws(), "draws after %d bookings", i+1)
	}
}

// TestEveryCostFills: a policy's own unit makes no difference to whether requests spread, and a long prefix keeps its
// worker.
func TestEveryCostFills(t *testing.T) {
	p := poolOf(pools.Prefill, fleet("w", 16)...)
	busy := []string{}
	for _, w := range p.Members[8:] {
		busy = append(busy, w.Worker.ID)
	}
	for _, mode := range []string{"kv", "credit", "least-loaded", "lmetric", "min-ttft", "eft"} {
		idx := index.New(index.Config{})
		cfg := DefaultConfig()
		if cfg.Mode = mode; mode == "credit" {
			cfg.Mode, cfg.Cost, cfg.Credit.Decay = "kv", Credited, 1
		}
		cfg.PrefillLoad = online // mode eft knows how long all takes
		cfg.Forecast = func(_ *pools.Worker, booked, uncached, _ int) (time.Duration, bool) {
			return time.Duration(booked+uncached) * 50 * time.Microsecond, true
		}
		o := &others{}
		r := withPeers(t, cfg.For(pools.Prefill), idx, o)
		for k := range 3 {
			for i, w := range p.Members {
				id := w.Worker.ID
				if k > 0 && !slices.Contains(busy, id) {
					continue
				}
				isl := 1600
				if i == 3 && k == 0 {
					isl = 800 // the least of all
				}
				late := r.core.plan
				r.core.plan = nil // mode eft would wait
				if _, err := r.Reserve(p, Request{ID: fmt.Sprint(id, k), ISL: isl, Pin: &Pin{Worker: id}}, noon); err != nil {
					t.Fatal(mode, err)
				}
				r.core.plan = late
			}
		}
		n := len(picks(t, r, p, Request{ISL: 1600}, 200))
		assert.True(t, n == 1 || mode == "least-loaded", "%s: %d workers were picked, want the least loaded one alone", mode, n)
		o.unseen = 6
		counts := picks(t, r, p, Request{ISL: 1600}, 4000)
		for i, w := range p.Members[:8] {
			n := counts[w.Worker.ID]
			assert.True(t, n >= 300 && n <= 1100, "%s: %d of 4000 went to worker %d, want about an eighth", mode, n, i)
		}
		for _, id := range busy {
			assert.LessOrEqual(t, counts[id], 40, "%s of 4000 went to %s, which has three times the load", mode, id)
		}
		if mode == "least-loaded" {
			continue
		}
		prompt := chain(1, 1000)
		idx.Store(idx.Owner("w0005", 0), index.Device, prompt)
		assert.GreaterOrEqual(t, picks(t, r, p, Request{ISL: 16_000, Hashes: prompt}, 200)["w0005"], 150,
			"%s of 200 went to the worker that holds the prompt", mode)
	}
}

// TestFewUnseenChangeNothing: below half a booking each request goes where it would without peers.
func TestFewUnseenChangeNothing(t *testing.T) {
	p := poolOf(pools.Both, fleet("w", 20)...)
	for _, choice := range (Config{}).Choices("") {
		alone := newRouter(t, inMode(choice.Name), nil)
		among := withPeers(t, inMode(choice.Name), nil, &others{unseen: 0.49, group: groupOf(3, 0)})
		for i := range 300 {
			req := Request{ID: fmt.Sprint(i), ISL: 100 + i}
			a, err := alone.Reserve(p, req, noon)
			b, berr := among.Reserve(p, req, noon)
			require.True(t, err == nil && berr == nil && a.Worker.ID == b.Worker.ID && a.Cost == b.Cost,
				"%s: request %d: %v %v and %v %v", choice.Name, i, a, err, b, berr)
		}
	}
}

// TestLowestOfMany: the lowest costs are found as by sorting.
func TestLowestOfMany(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 3))
	for range 300 {
		c := newScratch()
		for range 1 + rng.IntN(300) {
			c.costs = append(c.costs, float64(rng.IntN(200)))
		}
		want := slices.Sorted(slices.Values(c.costs))
		want = want[:min(len(want), widest)]
		var got []float64
		seen := map[int]bool{}
		for _, l := range c.lowest() {
			got = append(got, l.cost)
			require.True(t, !seen[l.index] && c.costs[l.index] == l.cost, "candidate %d at %v", l.index, l.cost)
			seen[l.index] = true
		}
		require.True(t, slices.Equal(got, want), "%v, want %v", got, want)
	}
}

// TestEachWorkerHasOneOwner: the gateways of a group divide the workers in equal shares, each by itself; one that comes
// takes little more than its share.
func TestEachWorkerHasOneOwner(t *testing.T) {
	for _, c := range []struct{ workers, gateways int }{{64, 3}, {64, 10}, {7, 3}, {2, 3}, {1000, 7}} {
		p := poolOf(pools.Both, fleet("w", c.workers)...)
		owner := map[string]int{}
		for own := range c.gateways {
			r := withPeers(t, DefaultConfig(), nil, &others{group: groupOf(c.gateways, own)})
			v, has := r.see(p), 0
			for i, mine := range r.core.owns(v) {
				if !mine {
					continue
				}
				has++
				other, taken := owner[v.slots[i].worker.ID]
				assert.False(t, taken, "%v: gateways %d and %d own %s", c, own, other, v.slots[i].worker.ID)
				owner[v.slots[i].worker.ID] = own
			}
			assert.True(t, has >= c.workers/c.gateways && has <= c.workers/c.gateways+1, "%v: gateway %d owns %d", c, own, has)
		}
		assert.Len(t, owner, c.workers, "%v workers have an owner", c)
		moved := 0
		for own := range c.gateways {
			r := withPeers(t, DefaultConfig(), nil, &others{group: groupOf(c.gateways+1, own)})
			v := r.see(p)
			for i, mine := range r.core.owns(v) {
				if owner[v.slots[i].worker.ID] == own && !mine {
					moved++
				}
			}
		}
		assert.LessOrEqual(t, moved, 2*c.workers/(c.gateways+1)+2,
			"%v workers have another owner once a gateway more is there, want at most", c)
	}
}

// TestCutOffGatewaysDivideTheWorkers: each goes to its own, or to where most of the prompt is, and is refused nothing
// that others have room for.
func TestCutOffGatewaysDivideTheWorkers(t *testing.T) {
	idx := index.New(index.Config{})
	o := &others{group: groupOf(2, 0), cutOff: true, unseen: 1000}
	r := withPeers(t, DefaultConfig(), idx, o)
	var ws []*pools.Worker
	for i := range 4 {
		ws = append(ws, worker(fmt.Sprint("w", i), 20, 0, 0))
	}
	p := poolOf(pools.Both, ws...)
	owns := r.core.owns(r.see(p))
	for id, n := range picks(t, r, p, Request{ISL: 100}, 400) {
		i := int(id[1] - '0')
		assert.True(t, owns[i] && n >= 150, "%d of 400 went to %s, own: %v", n, id, owns[i])
	}
	other := slices.Index(owns, false)
	prompt := chain(1, 8)
	idx.Store(idx.Owner(ws[other].ID, 0), index.Device, prompt[:4])
	assert.Zero(t, picks(t, r, p, Request{ISL: 128, Hashes: prompt}, 100)[ws[other].ID],
		"of 100 went to a peer's worker for half of their prompt")
	idx.Store(idx.Owner(ws[other].ID, 0), index.Device, prompt)
	assert.Equal(t, 100, picks(t, r, p, Request{ISL: 128, Hashes: prompt}, 100)[ws[other].ID],
		"of 100 went to the peer's worker that holds their prompt")
	booked := map[string]int{}
	for i := range 8 {
		l, err := r.Reserve(p, Request{ID: fmt.Sprint("full-", i), ISL: 140}, noon)
		require.NoError(t, err, "request %d", i)
		booked[l.Worker.ID]++
	}
	for _, w := range ws {
		if booked[w.ID] != 2 {
			t.Errorf("booked %v: once the own workers are full, the others should be taken", booked)
			break
		}
	}
	o.group = groupOf(1, 0)
	assert.Equal(t, 4, len(picks(t, r, poolOf(pools.Both, fleet("x", 4)...), Request{ISL: 100}, 200)),
		"a gateway that knows of no other uses N of 4 workers")
}

// TestLastRoomIsItsOwners: two gateways that do not see each other's latest bookings never both grant a worker's last room.
func TestLastRoomIsItsOwners(t *testing.T) {
	cfg := DefaultConfig().For(pools.Decode)
	p := poolOf(pools.Decode, worker("a", 100, 0, 0))
	var granted []int
	for own := range 3 {
		o := &others{group: groupOf(3, own)}
		r := withPeers(t, cfg, nil, o)
		reserve := func(i int) error {
			_, err := r.Reserve(p, Request{ID: fmt.Sprint(i), ISL: 48}, noon) // 3 blocks, and one for the first token
			return err
		}
		for i := range 31 { // 93 blocks
			require.NoError(t, reserve(i))
		}
		o.unseen = 0.4 // of 3 blocks: two
		assert.NoError(t, reserve(31), "what leaves the reserve whole is refused")
		o.unseen = 50 // as much as a tenth
		err := reserve(32)
		switch {
		case err == nil:
			granted = append(granted, own)
		case !errors.Is(err, ErrNoRoom):
			t.Error(err)
		}
	}
	assert.Len(t, granted, 1, "gateways N granted the last room, want its owner alone")
	for own := range 3 {
		r := withPeers(t, cfg, nil, &others{group: groupOf(3, own), unseen: 50})
		reserve(t, r, p, Request{ID: "1", ISL: 48}, noon)
		idle := poolOf(pools.Decode, worker("b", 100, 0, 0))
		_, err := r.Reserve(idle, Request{ID: "2", ISL: 99 * 16}, noon)
		assert.NoError(t, err, "gateway %d is refused a prompt that takes an idle worker whole", own)
	}
}

// TestABurstSpreads: what comes within the delay of a word comes to the other gateways too, before any of them has heard of it. A gateway
// that has booked some requests in one moment draws for the next, and no longer once the others' words have come.
func TestABurstSpreads(t *testing.T) {
	p := poolOf(pools.Both, fleet("w", 8)...)
	r := withPeers(t, DefaultConfig(), nil, &others{delay: time.Millisecond, group: groupOf(3, 0)})
	for i := range 4 {
		assert.Equal(t, float64(2*i), r.core.unseen(p, noon),
			"%d are booked in this moment, and N of two others' are unseen", i)
		reserve(t, r, p, Request{ID: fmt.Sprint(i), ISL: 16 * (1 + i)}, noon)
	}
	later := noon.Add(time.Millisecond)
	assert.EqualValues(t, 0, r.core.unseen(p, later), "a word's delay later N are unseen")
	assert.GreaterOrEqual(t, len(picks(t, r, p, Request{ISL: 1600}, 100)), 3,
		"in the moment of a burst the next ones go to N workers")
	for i := range 100 {
		reserve(t, r, p, Request{ID: fmt.Sprint("more-", i), ISL: 16}, later)
	}
	assert.Equal(t, float64(2*len(moments{}.at)), r.core.unseen(p, later),
		"are unseen in a burst that is longer than what is kept of it")
}
