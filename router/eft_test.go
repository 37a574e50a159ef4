package router

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router/load"
)

// lateConfig is mode eft, where a token takes a millisecond.
func lateConfig() Config {
	cfg := inMode("eft")
	cfg.Forecast = func(_ *pools.Worker, booked, uncached, _ int) (time.Duration, bool) {
		return time.Duration(booked+uncached) * time.Millisecond, true
	}
	return cfg
}

// lateRouter is a prefill pool's router with it.
func lateRouter(t *testing.T) (*Router, *pools.Pool, *index.Index) {
	t.Helper()
	idx := index.New(index.Config{})
	return newRouter(t, lateConfig().For(pools.Prefill), idx), poolOf(pools.Prefill, worker("a", 0, 0, 0), worker("b", 0, 0, 0)), idx
}

// In mode eft a request waits for the worker that would finish it first, even while another is idle, and those behind it
// plan around that: until the worker is done, or by now should be.
func TestEFTBindsLate(t *testing.T) {
	r, p, idx := lateRouter(t)
	cached := chain(1, 20)
	idx.Store(idx.Owner("a", 0), index.Device, cached)
	for _, c := range []struct {
		id    string
		drain uint64
		at    time.Duration // in ms
		want  string
	}{
		{"first", 1, 0, "on a"},                   // 320 of its 420 tokens are cached: 100 ms
		{"second", 2, 0, "in 100ms, takes 100ms"}, // on a it would be done in 100 + 100 ms, on b, which is idle, in 420 ms
		{"third", 2, 0, "in 200ms, takes 100ms"},  // it plans around the second
		{"fourth", 2, 0, "in 300ms, takes 100ms"}, // so does it
		{"fifth", 2, 0, "on b"},                   // where it would be done sooner
		{"second", 3, 40, "in 60ms, takes 100ms"}, // the next drain plans again
		{"third", 0, 40, "in 60ms, takes 100ms"},  // a choice outside of one changes no plan
		{"third", 3, 40, "in 160ms, takes 100ms"}, // in it
		{"second", 4, 110, "on a"},                // a prompt that takes longer than it should keeps no worker from its next one
	} {
		l, err := r.Reserve(p, Request{ID: c.id, ISL: 420, Hashes: cached, Drain: c.drain}, noon.Add(c.at*time.Millisecond))
		got := ""
		if later, ok := errors.AsType[*LaterError](err); ok {
			got = fmt.Sprintf("in %v, takes %v", later.Starts, later.Takes)
		} else {
			require.NoError(t, err)
			got = "on " + l.Worker.ID
		}
		require.Equal(t, c.want, got, "the %s prompt in drain %d at %d ms", c.id, c.drain, c.at)
	}
}

// Short prompts of one drain go to a free worker together, up to 256 tokens, and not past one that waits for it.
func TestShortPromptsJoin(t *testing.T) {
	r, _, _ := lateRouter(t)
	for _, c := range []struct {
		name   string
		isls   []int // at one moment
		drains []uint64
		want   string
	}{
		{"up to 256 tokens", []int{60, 180, 16, 1}, []uint64{1, 1, 1, 1}, "now now now later"},
		{"a later drain finds the worker busy", []int{60, 60}, []uint64{1, 2}, "now later"},
		{"none joins a long one", []int{600, 60}, []uint64{1, 1}, "now later"},
		{"a long one joins none, and goes before those behind it", []int{60, 600, 60}, []uint64{1, 1, 1}, "now later later"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := poolOf(pools.Prefill, worker("w", 0, 0, 0))
			var got []string
			for i, isl := range c.isls {
				l, err := r.Reserve(p, Request{ID: fmt.Sprint(c.name, i), ISL: isl, Drain: c.drains[i]}, noon)
				if _, later := errors.AsType[*LaterError](err); later {
					got = append(got, "later")
					continue
				}
				require.NoError(t, err)
				defer l.Release(noon)
				got = append(got, "now")
			}
			assert.Equal(t, c.want, strings.Join(got, " "), "prompts of %v tokens", c.isls)
		})
	}
}

// Where workers both prefill and decode, modes eft and auto bind at once, and weigh a prompt's work against the answers it delays.
func TestEFTWhereWorkersDoBoth(t *testing.T) {
	for _, mode := range []string{"eft", "auto"} {
		r := newRouter(t, inMode(mode).For(pools.Both), nil)
		p := poolOf(pools.Both, worker("a", 0, 0, 0), worker("b", 0, 0, 0))
		for i, id := range []string{"first", "second", "third", "fourth"} {
			l, err := r.Reserve(p, Request{ID: id, ISL: 1000, Drain: 1}, noon)
			require.True(t, err == nil && l.Policy == "eft", "mode %s, request %d: %v, policy %q", mode, i, err, l.Policy)
		}
		assert.False(t, r.BindsLate(p), "mode %s binds late", mode)
	}
	// 1,000 tokens of which a has 200 cached, among ten answers, cost 3.2 s at 1 ms a token; on b, which has 0.5 s to compute
	// and no answer, 1.5 s. On c, which takes 4 ms a token and has nothing to do, it is 4 s.
	cfg := inMode("eft").For(pools.Both)
	cfg.Forecast = func(w *pools.Worker, _, uncached, _ int) (time.Duration, bool) {
		return time.Duration(uncached*w.MaxNumSeqs) * time.Millisecond, true
	}
	q := &query{Request: &Request{ISL: 1000}, BlockSize: 10, costs: make([]float64, 3), why: &Why{}}
	at, cost, ok := policies["eft"].make(cfg)(q, []candidate{
		{Worker: &pools.Worker{MaxNumSeqs: 1}, Overlap: 20, Load: load.Account{Requests: 10}},
		{Worker: &pools.Worker{MaxNumSeqs: 1}, Left: 500 * time.Millisecond},
		{Worker: &pools.Worker{MaxNumSeqs: 4}},
	})
	assert.True(t, ok && at == 1 && cost == 1.5, "%d at %v", at, cost)
	assert.InDeltaSlice(t, []float64{3.2, 1.5, 4}, q.costs, 1e-9)
}

// Where no time is known, mode eft takes every token to take as long: a burst with one cached prefix does not end on one worker.
func TestEFTWithoutRates(t *testing.T) {
	idx := index.New(index.Config{})
	r := newRouter(t, inMode("eft").For(pools.Prefill), idx)
	p := poolOf(pools.Prefill, worker("a", 0, 0, 0), worker("b", 0, 0, 0))
	cached := chain(1, 20)
	idx.Store(idx.Owner("a", 0), index.Device, cached)
	got := map[string]int{}
	for i := range uint64(20) {
		if l, err := r.Reserve(p, Request{ID: fmt.Sprint(i), ISL: 420, Hashes: cached, Drain: i + 1}, noon); err == nil {
			got[l.Worker.ID]++
		} else if _, later := errors.AsType[*LaterError](err); !later {
			t.Fatal(err)
		}
	}
	assert.True(t, got["a"] == 1 && got["b"] <= 1, "at one moment, prompts were bound to %v", got)
}

// Mode auto is kv in a prefill pool while the speed of none of its workers is known, and eft from then on; each change is
// reported once.
func TestAutoLearns(t *testing.T) {
	var known bool
	var reported []Mode
	cfg := inMode("auto")
	cfg.Forecast = func(w *pools.Worker, _, uncached, _ int) (time.Duration, bool) {
		return time.Duration(uncached) * time.Millisecond, known && w.ID == "b"
	}
	cfg.OnMode = func(_ *pools.Pool, m Mode) { reported = append(reported, m) }
	r := newRouter(t, cfg.For(pools.Prefill), nil)
	p := poolOf(pools.Prefill, worker("a", 0, 0, 0), worker("b", 0, 0, 0))
	for i, want := range []string{"kv", "kv", "eft", "eft", "kv"} {
		known = want == "eft"
		l, err := r.Reserve(p, Request{ID: fmt.Sprint(i), ISL: 100, Drain: uint64(i + 1)}, noon.Add(time.Duration(i)*time.Minute))
		require.True(t, err == nil && l.Policy == want && r.BindsLate(p) == known,
			"request %d: %v, %+v, binds late %v", i, err, l, r.BindsLate(p))
		l.PrefillDone(noon)
	}
	var policies []string
	for _, m := range reported {
		assert.NotEmpty(t, m.Reason, "%+v has no reason", m)
		policies = append(policies, m.Policy)
	}
	want := []string{"kv", "eft", "kv"}
	assert.True(t, slices.Equal(policies, want), "reported %v, want %v", policies, want)
}
