package router

import (
	"errors"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router/index"
)

// lateRouter is a prefill pool's router in mode eft, where a token takes a millisecond.
func lateRouter(t *testing.T) (*Router, *pools.Pool, *index.Index) {
	t.Helper()
	cfg := DefaultConfig()
	cfg.Mode = "eft"
	cfg.Forecast = func(_ *pools.Worker, booked, uncached, _ int) (time.Duration, bool) {
		return time.Duration(booked+uncached) * time.Millisecond, true
	}
	idx := index.New(index.Config{})
	return newRouter(t, cfg.For(pools.Prefill), idx), poolOf(pools.Prefill, worker("a", 0, 0, 0), worker("b", 0, 0, 0)), idx
}

// In mode eft a request waits for the worker that would finish it first, even while another is idle, and those behind it
// plan around that: until the worker is done, or by now should be.
func TestEFTBindsLate(t *testing.T) {
	r, p, idx := lateRouter(t)
	cached := chain(1, 20)
	idx.Store(idx.Owner("a", 0), index.Device, cached)
	ask := func(id string, drain uint64, hashes []uint64, isl int, at time.Duration) (string, *LaterError) {
		t.Helper()
		l, err := r.Reserve(p, Request{ID: id, ISL: isl, Hashes: hashes, Drain: drain}, noon.Add(at))
		if later, ok := errors.AsType[*LaterError](err); ok {
			return "later", later
		}
		if err != nil {
			t.Fatal(err)
		}
		return l.Worker.ID, nil
	}
	if got, _ := ask("first", 1, cached, 420, 0); got != "a" { // 320 of its tokens are cached: 100 ms
		t.Fatalf("the first prompt goes to %s", got)
	}
	// On a it would be done in 100 + 100 ms, on b, which is idle, in 420 ms.
	got, later := ask("second", 2, cached, 420, 0)
	if got != "later" || later.Starts != 100*time.Millisecond || later.Takes != 100*time.Millisecond {
		t.Fatalf("the second: %s, %+v", got, later)
	}
	// A third plans around it, a fourth as well, and a fifth would be done sooner on b.
	if got, later = ask("third", 2, cached, 420, 0); got != "later" || later.Starts != 200*time.Millisecond {
		t.Errorf("the third: %s, %+v", got, later)
	}
	if got, later = ask("fourth", 2, cached, 420, 0); got != "later" || later.Starts != 300*time.Millisecond {
		t.Errorf("the fourth: %s, %+v", got, later)
	}
	if got, _ = ask("fifth", 2, cached, 420, 0); got != "b" {
		t.Errorf("the fifth goes to %s", got)
	}
	// The next drain plans again; a choice outside of one changes no plan.
	if got, later = ask("second", 3, cached, 420, 40*time.Millisecond); got != "later" || later.Starts != 60*time.Millisecond {
		t.Errorf("40 ms later the second: %s, %+v", got, later)
	}
	if got, later = ask("third", 0, cached, 420, 40*time.Millisecond); got != "later" || later.Starts != 60*time.Millisecond {
		t.Errorf("outside of a drain the third: %s, %+v", got, later)
	}
	if got, later = ask("third", 3, cached, 420, 40*time.Millisecond); got != "later" || later.Starts != 160*time.Millisecond {
		t.Errorf("in it the third: %s, %+v", got, later)
	}
	// A prompt that takes longer than it should keeps no worker from its next one.
	if got, _ = ask("second", 4, cached, 420, 110*time.Millisecond); got != "a" {
		t.Errorf("once a should be done, the second goes to %s", got)
	}
}
