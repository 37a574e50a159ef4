package router

import (
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/pools"
)

func tainted(id string, taints ...string) *pools.Worker {
	w := worker(id, 100, 0, 0)
	w.Taints = taints
	return w
}

// TestTaints: what is required filters, a pinned worker too; what is preferred weighs, but for a pinned one.
func TestTaints(t *testing.T) {
	r := newRouter(t, DefaultConfig().For(pools.Decode), nil)
	p := poolOf(pools.Decode, tainted("plain"), tainted("gold", "tier=gold"), tainted("both", "tier=gold", "eu"))
	p.Members[1].Worker.Adapters, p.Members[2].Worker.Adapters = []string{"sql"}, []string{"math", "sql"}
	for _, c := range []struct {
		name string
		req  Request
		want string // worker
		err  error
	}{
		{"all of those required", Request{Required: []string{"eu", "tier=gold"}}, "both", nil},
		{"none has it", Request{Required: []string{"moon"}}, "", ErrTaints},
		{"the only one was tried", Request{Required: []string{"eu"}, Exclude: []string{"both"}}, "", ErrTaints},
		{"pinned without it", Request{Required: []string{"eu"}, Pin: &Pin{Worker: "gold"}}, "", ErrTaints},
		{"an adapter", Request{Adapter: "math"}, "both", nil},
		{"an adapter and a taint", Request{Adapter: "sql", Required: []string{"eu"}}, "both", nil},
		{"an adapter that is loaded nowhere", Request{Adapter: "cook"}, "", ErrTaints},
		{"pinned without the adapter", Request{Adapter: "sql", Pin: &Pin{Worker: "plain"}}, "", ErrTaints},
		{"the only one with the adapter was tried", Request{Adapter: "math", Exclude: []string{"both"}}, "", ErrTaints},
		{"preferred", Request{Preferred: map[string]float64{"eu": 2}}, "both", nil},
		{"preferred against", Request{Preferred: map[string]float64{"tier=gold": -1}}, "plain", nil},
		{"pinned whatever is preferred", Request{Preferred: map[string]float64{"eu": 2}, Pin: &Pin{Worker: "plain"}}, "plain", nil},
		{"too big for those with it", Request{ISL: 16 * 100, Required: []string{"eu"}}, "", &TooBigError{}},
	} {
		c.req.ID = c.name
		if c.req.ISL == 0 {
			c.req.ISL = 64
		}
		w, err := r.Pick(p, c.req, noon)
		var big *TooBigError
		switch {
		case c.err == nil && (err != nil || w.Worker.ID != c.want):
			t.Errorf("%s: %v, %v, want %s", c.name, w.Worker, err, c.want)
		case errors.As(c.err, &big):
			assert.True(t, errors.As(err, &big) && big.LargestBlocks == 100, "%s: %v", c.name, err)
		case c.err != nil && (!errors.Is(err, c.err) || !errors.Is(err, ErrNoWorkers)):
			t.Errorf("%s: %v, want %v", c.name, err, c.err)
		}
	}
	if w, _ := r.Pick(p, Request{ID: "x", ISL: 64, Preferred: map[string]float64{"eu": 2}, Pin: &Pin{Worker: "both"}, Explain: true},
		noon); w.Terms[0].Favour != 0 || w.Cost != 4 {
		t.Errorf("a pinned worker is favoured by %v and costs %v, want 4 blocks", w.Terms[0].Favour, w.Cost)
	}
}

// TestThresholds: above one a worker is out; when all are, the request is
// refused at once, and served again when the threshold is changed.
func TestThresholds(t *testing.T) {
	set, err := NewSet(map[pools.Role]Config{pools.Both: DefaultConfig(), pools.Decode: DefaultConfig().For(pools.Decode)},
		slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	require.NoError(t, set.SetThresholds("m", Thresholds{DecodeBlocks: 0.5, PrefillTokens: 500}))
	r := set.For("m", pools.Both) // made after
	p := poolOf(pools.Both, worker("a", 100, 0, 0), worker("b", 100, 0, 0))
	reserve := func(id string, isl int, pin string) (*Lease, error) {
		req := Request{ID: id, ISL: isl}
		if pin != "" {
			req.Pin = &Pin{Worker: pin}
		}
		return r.Reserve(p, req, noon)
	}
	first, err := reserve("1", 501, "a") // 501 tokens, 32 blocks
	require.NoError(t, err)
	for _, id := range []string{"2", "3"} {
		l, err := reserve(id, 16, "")
		require.True(t, err == nil && l.Worker.ID == "b" && l.Candidates == 1, "%v, %v: a is above 500 tokens", l, err)
	}
	refused := func(step, reason string, err error) {
		t.Helper()
		var over *OverloadedError
		assert.True(t, errors.As(err, &over) && over.Reason == reason, "%s: %v, want it refused for %s", step, err, reason)
	}
	_, err = reserve("4", 16, "a")
	refused("the pinned one is over", OverPrefillTokens, err)
	first.PrefillDone(noon)
	first.Grow(18, noon) // exactly half
	_, err = reserve("5", 16, "a")
	assert.NoError(t, err, "at the threshold")
	first.Grow(1, noon)
	_, err = reserve("6", 16, "a")
	refused("over half the blocks", OverDecodeBlocks, err)
	require.NoError(t, set.SetThresholds("m", Thresholds{}))
	_, err = reserve("7", 16, "a")
	assert.NoError(t, err, "without thresholds")
	assert.Error(t, set.SetThresholds("m", Thresholds{DecodeBlocks: 1.5}), "a share of 1.5 is taken")
}

// TestTiersAreCredited: what slower tiers hold counts under the cost credit, in the choice and, in part, in what is booked.
func TestTiersAreCredited(t *testing.T) {
	hashes := chain(1, 10)
	for cost, want := range map[string]struct {
		worker string
		tokens int
	}{
		Credited: {"slow", 160 - 2*16 - 4*12 - 2*4}, // 8 blocks: 2 whole, 4 at 0.75, 2 at 0.25
		Classic:  {"fast", 160 - 3*16},
	} {
		idx := index.New(index.Config{})
		slow, fast := idx.Owner("slow", 0), idx.Owner("fast", 0)
		idx.Store(slow, index.Device, hashes[:2])
		idx.Store(slow, index.Host, hashes[:6])
		idx.Store(slow, index.Disk, hashes[:8])
		idx.Store(fast, index.Device, hashes[:3])
		cfg := DefaultConfig()
		cfg.Cost = cost
		r := newRouter(t, cfg, idx)
		p := poolOf(pools.Both, worker("slow", 0, 0, 0), worker("fast", 0, 0, 0))
		l, err := r.Reserve(p, Request{ID: "1", ISL: 160, Hashes: hashes}, noon)
		assert.True(t, err == nil && l.Worker.ID == want.worker && l.PrefillTokens == want.tokens,
			"%s: %+v, %v, want %+v", cost, l, err, want)
	}
}

// TestPrefillLoadOnline: two workers with the same prompts booked differ once the one is nearly done.
func TestPrefillLoadOnline(t *testing.T) {
	cfg := DefaultConfig().For(pools.Prefill)
	cfg.PrefillLoad = online
	cfg.Forecast = func(w *pools.Worker, booked, uncached, cached int) (time.Duration, bool) {
		return time.Duration(booked+uncached) * time.Millisecond, w.ID != "unknown"
	}
	r := newRouter(t, cfg, nil)
	p := poolOf(pools.Prefill, worker("a", 0, 0, 0), worker("b", 0, 0, 0))
	at := func(s int) time.Time { return noon.Add(time.Duration(s) * time.Second) }
	a := reserve(t, r, p, Request{ID: "1", ISL: 16_000, Pin: &Pin{Worker: "a"}}, at(0))
	b := reserve(t, r, p, Request{ID: "2", ISL: 16_000, Pin: &Pin{Worker: "b"}}, at(8))
	w, err := r.Pick(p, Request{ID: "3", ISL: 16, Explain: true}, at(12))
	assert.True(t, err == nil && w.Worker.ID == "a" && w.Terms[0].PrefillBlocks == (4_000+16)/16 && w.Cost == 251,
		"%v of %v, %v: want a with 4,000 tokens left", w, w.Terms, err)
	again, _ := r.Pick(p, Request{ID: "3", ISL: 16, Explain: true}, at(12))
	assert.True(t, again.Worker == w.Worker && again.Cost == w.Cost, "at the same moment %v, then %v", w, again)
	a.Release(at(12))
	b.Release(at(12))
	for _, l := range r.Loads(p) {
		assert.Zero(t, l.PrefillTokens, "tokens are left on %s", l.Worker)
	}
}

// TestOutputIsWeighed: blocks of an answer that nears its expected length count for less, those of a pool that does not
// track output for nothing; room is taken by all of them.
func TestOutputIsWeighed(t *testing.T) {
	for _, c := range []struct {
		track bool
		osl   int
		cost  float64 // of a prompt of one block on a worker with one of 4 blocks and 3 of output
	}{
		{true, 0, 8}, {true, 96, 8 - 3.5}, {true, 48, 1}, {true, 1, 1}, {false, 0, 5}, {false, 96, 5},
	} {
		cfg := DefaultConfig().For(pools.Decode)
		cfg.TrackOutputBlocks = c.track
		r := newRouter(t, cfg, nil)
		p := poolOf(pools.Decode, worker("a", 9, 0, 0))
		l := reserve(t, r, p, Request{ID: "1", ISL: 64, Hashes: chain(1, 4), OSL: c.osl}, noon)
		l.Grow(3, noon)
		assert.Equal(t, c.cost, pick(t, r, p, Request{ID: "2", ISL: 16}, noon).Cost, "%+v", c)
		_, err := r.Pick(p, Request{ID: "3", ISL: 32}, noon)
		assert.ErrorIs(t, err, ErrNoRoom, "%+v: 3 blocks in 2", c)
		l.Release(noon)
		assert.EqualValues(t, 1, pick(t, r, p, Request{ID: "2", ISL: 16}, noon).Cost, "%+v: once it is released", c)
	}
}

// TestOverridesBookNothing walks the fields of an override: whatever a request wants
// otherwise, what is booked for it is what is booked without.
func TestOverridesBookNothing(t *testing.T) {
	hashes := chain(1, 4)
	p := poolOf(pools.Both, worker("a", 0, 0, 0))
	book := func(cost string, o *Override) (WorkerLoad, int) {
		cfg := DefaultConfig()
		cfg.Cost = cost
		r := newRouter(t, cfg, nil)
		var last *Lease
		for i := range 3 {
			last = reserve(t, r, p, Request{ID: fmt.Sprint(i), ISL: 70, Hashes: hashes, Override: o}, noon)
		}
		return r.Loads(p)[0], last.PrefillTokens
	}
	for _, cost := range []string{Classic, Credited} {
		load, tokens := book(cost, nil)
		require.True(t, load.PrefillTokens != 0 && load.ActiveBlocks != 0, "%+v is booked", load)
		kind := reflect.TypeFor[Override]()
		for i := range kind.NumField() {
			for _, value := range []any{new(false), new(true), new(0.), new(1e6)} {
				if reflect.TypeOf(value) != kind.Field(i).Type {
					continue
				}
				var o Override
				reflect.ValueOf(&o).Elem().Field(i).Set(reflect.ValueOf(value))
				if got, n := book(cost, &o); got != load || n != tokens {
					t.Errorf("%s=%v books %+v and %d tokens, want %+v and %d", kind.Field(i).Name, reflect.ValueOf(value).Elem(), got, n, load, tokens)
				}
			}
		}
	}
}

// TestReuseCanBeDenied: a request that assumes none is weighed as if no other request held any of its blocks.
func TestReuseCanBeDenied(t *testing.T) {
	r := newRouter(t, DefaultConfig().For(pools.Decode), nil)
	p := poolOf(pools.Decode, worker("a", 0, 0, 0))
	hashes := chain(1, 4)
	reserve(t, r, p, Request{ID: "1", ISL: 64, Hashes: hashes}, noon)
	for i, reuse := range []*bool{nil, new(true), new(false)} {
		req := Request{ID: "2", ISL: 64, Hashes: hashes, Override: &Override{AssumeReuse: reuse}}
		assert.Equal(t, []float64{4, 4, 8}[i], pick(t, r, p, req, noon).Cost, "request %d", i)
	}
}

// TestTermsAreBounded: of many candidates the chosen and the cheapest are kept.
func TestTermsAreBounded(t *testing.T) {
	r := newRouter(t, DefaultConfig(), nil)
	p := poolOf(pools.Both, fleet("w", 200)...)
	for i := range 150 {
		reserve(t, r, p, Request{ID: "r", Attempt: i, ISL: 16 * (1 + i%9)}, noon)
	}
	w, err := r.Pick(p, Request{ID: "x", ISL: 64, Explain: true}, noon)
	require.True(t, err == nil && len(w.Terms) == MaxTerms && w.Candidates == 200,
		"%d terms of %d candidates, %v", len(w.Terms), w.Candidates, err)
	if first := w.Terms[0]; first.Worker != w.Worker.ID || first.Cost != w.Cost {
		t.Errorf("the first is %s at %v, the chosen %s at %v", first.Worker, first.Cost, w.Worker.ID, w.Cost)
	}
	for i, term := range w.Terms[1:] {
		assert.True(t, term.Worker != w.Worker.ID && (i <= 0 || term.Cost >= w.Terms[i].Cost), "term %d is %s", i+1, term)
	}
}

// TestFitsIneligibleWorkersOnly: a prompt that fits no worker which takes requests is refused at once, although it
// would fit another, and thresholds and queues of workers that are too small for it do not count.
func TestFitsIneligibleWorkersOnly(t *testing.T) {
	until := noon.Add(time.Second)
	for _, c := range []struct {
		name  string
		big   pools.Member
		taint []string
		fills int // tokens booked on the big one
		want  error
	}{
		{"draining", pools.Member{Status: pools.Draining}, nil, 0, ErrNoWorkers},
		{"down", pools.Member{Status: pools.Down, DownUntil: until}, nil, 0, ErrNoWorkers},
		{"draining, of those with the taint", pools.Member{Status: pools.Draining}, []string{"gold"}, 0, ErrTaints},
		{"up and full", pools.Member{}, nil, 900, ErrNoRoom},
		{"up, its threshold passed", pools.Member{}, nil, 1440, &OverloadedError{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := DefaultConfig().For(pools.Decode)
			cfg.Thresholds.DecodeBlocks = .8
			r := newRouter(t, cfg, nil)
			big, small := worker("big", 100, 0, 0), worker("small", 20, 0, 0)
			big.Taints, small.Taints = []string{"gold"}, []string{"gold"}
			p := poolOf(pools.Decode, big, small)
			if c.fills > 0 {
				reserve(t, r, p, Request{ID: "filler", ISL: c.fills}, noon)
			}
			c.big.Worker = big
			p = &pools.Pool{Model: "m", Role: pools.Decode, Version: 2, Members: []pools.Member{c.big, {Worker: small}}}
			_, err := r.Reserve(p, Request{ID: "r", ISL: 16 * 50, Required: c.taint}, noon)
			var over *OverloadedError
			wants := errors.As(c.want, &over)
			assert.True(t, wants == errors.As(err, &over) && (wants || errors.Is(err, c.want)), "%v, want %v", err, c.want)
		})
	}
}
