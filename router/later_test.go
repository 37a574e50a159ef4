package router

import (
	"errors"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router/index"
)

// A pair whose decode worker is chosen later books the prefill worker alone, and room in the decode pool as a whole: never
// more than there is, and none of it once the prompt is computed.
func TestDecodePoolKeepsRoom(t *testing.T) {
	prefill, pp, _ := lateRouter(t)
	decode := newRouter(t, DefaultConfig().For(pools.Decode), nil)
	dp := poolOf(pools.Decode, worker("d", 60, 0, 0), worker("e", 60, 0, 0))
	ask := func(id string, at time.Duration) (p, d *Lease, err error) {
		req := Request{ID: id, ISL: 16 * 49, DecodeLater: true} // 49 blocks and one for the answer
		return ReservePair(prefill, decode, pp, dp, req, req, noon.Add(at))
	}
	var leases []*Lease
	for i, id := range []string{"first", "second"} {
		p, d, err := ask(id, 0)
		if err != nil || d != nil || p.Slice != 0 {
			t.Fatalf("request %d: %v, decode %v", i, err, d)
		}
		leases = append(leases, p)
	}
	if decode.Open() != 0 {
		t.Errorf("%d bookings in the decode pool, want none", decode.Open())
	}
	if _, _, err := ask("third", time.Hour); !errors.Is(err, ErrNoRoom) {
		t.Errorf("the third of two: %v, want ErrNoRoom", err)
	}
	for range 2 {
		leases[0].Release(noon) // the second time it does nothing
	}
	p, _, err := ask("third", time.Hour)
	if err != nil {
		t.Fatalf("with room again: %v", err)
	}
	p.Release(noon)
	leases[1].Release(noon)
	if kept := decode.core.promised.Load(); kept != 0 || prefill.Open() != 0 {
		t.Errorf("%d blocks are kept and %d prefills booked at the end", kept, prefill.Open())
	}
}

// A long prompt is booked slice by slice. What a slice has computed counts as cached on its worker before any event reports it.
func TestSlicesGoOnFromEachOther(t *testing.T) {
	const tokens, slice = 1000, 256
	cfg := DefaultConfig()
	cfg.Mode, cfg.Slice = "eft", slice
	prefill := newRouter(t, cfg.For(pools.Prefill), index.New(index.Config{}))
	decode := newRouter(t, DefaultConfig().For(pools.Decode), nil)
	pp, dp := poolOf(pools.Prefill, worker("a", 0, 0, 0), worker("b", 0, 0, 0)), poolOf(pools.Decode, worker("d", 1000, 0, 0))
	req := Request{ID: "long", ISL: tokens, Hashes: chain(1, tokens/16), DecodeLater: true, Sliced: true}
	ends, booked := []int(nil), 0
	for len(ends) < 10 {
		p, _, err := ReservePair(prefill, decode, pp, dp, req, req, noon)
		if err != nil {
			t.Fatal(err)
		}
		p.Release(noon)
		booked += p.PrefillTokens
		ends = append(ends, p.Slice)
		if p.Slice == 0 {
			break
		}
		if req.Done.Tokens > 0 && p.Worker.ID != req.Done.Worker {
			t.Errorf("the slice to %d is computed on %s, the one before on %s", p.Slice, p.Worker.ID, req.Done.Worker)
		}
		req.Done = Done{Worker: p.Worker.ID, Rank: p.Rank, Tokens: p.Slice, Slices: req.Done.Slices + 1}
	}
	if want := []int{256, 512, 768, 0}; len(ends) != 4 || ends[0] != want[0] || ends[1] != want[1] || ends[2] != want[2] || ends[3] != 0 || booked != tokens {
		t.Errorf("slices end at %v, want %v; %d tokens were booked, want %d", ends, want, booked, tokens)
	}
	// Without progress it ends all the same: a worker that caches nothing is not asked for ever.
	req.Done = Done{Slices: tokens/slice + 1}
	if p, _, err := ReservePair(prefill, decode, pp, dp, req, req, noon); err != nil || p.Slice != 0 {
		t.Errorf("after %d slices: %v, another one to %d", req.Done.Slices, err, p.Slice)
	}
}
