package router

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router/load"
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
		require.True(t, err == nil && d == nil && p.Slice == 0, "request %d: %v, decode %v", i, err, d)
		leases = append(leases, p)
	}
	assert.Zero(t, decode.Open(), "bookings in the decode pool, want none")
	_, _, err := ask("third", time.Hour)
	assert.ErrorIs(t, err, ErrNoRoom, "the third of two")
	for range 2 {
		leases[0].Release(noon) // the second time it does nothing
	}
	p, _, err := ask("third", time.Hour)
	require.NoError(t, err, "with room again")
	p.Release(noon)
	leases[1].Release(noon)
	kept := decode.core.promised.Load()
	assert.True(t, kept == 0 && prefill.Open() == 0, "%d blocks are kept and %d prefills booked at the end", kept, prefill.Open())
}

// A long prompt is booked slice by slice. What a slice has computed counts as cached on its worker before any event reports it.
func TestSlicesGoOnFromEachOther(t *testing.T) {
	const tokens, slice = 1000, 256
	cfg := inMode("eft")
	cfg.Slice = slice
	prefill := newRouter(t, cfg.For(pools.Prefill), index.New(index.Config{}))
	decode := newRouter(t, DefaultConfig().For(pools.Decode), nil)
	pp, dp := poolOf(pools.Prefill, worker("a", 0, 0, 0), worker("b", 0, 0, 0)), poolOf(pools.Decode, worker("d", 1000, 0, 0))
	req := Request{ID: "long", ISL: tokens, Hashes: chain(1, tokens/16), DecodeLater: true, Sliced: true}
	ends, booked := []int(nil), 0
	for len(ends) < 10 {
		p, _ := reservePair(t, prefill, decode, pp, dp, req, req)
		booked += p.PrefillTokens
		ends = append(ends, p.Slice)
		if p.Slice == 0 {
			p.Release(noon)
			break
		}
		assert.True(t, req.Done.Tokens <= 0 || p.Worker.ID == req.Done.Worker,
			"the slice to %d is computed on %s, the one before on %s", p.Slice, p.Worker.ID, req.Done.Worker)
		req.Done = p.Computed(req.Done, noon)
	}
	if want := []int{256, 512, 768, 0}; len(ends) != 4 || ends[0] != want[0] || ends[1] != want[1] || ends[2] != want[2] ||
		ends[3] != 0 || booked != tokens {
		t.Errorf("slices end at %v, want %v; %d tokens were booked, want %d", ends, want, booked, tokens)
	}
	// Without progress it ends all the same: a worker that caches nothing is not asked for ever.
	req.Done = Done{Slices: tokens/slice + 1}
	p, _ := reservePair(t, prefill, decode, pp, dp, req, req)
	assert.Zero(t, p.Slice, "after %d slices another one", req.Done.Slices)
}

// Between two slices a worker stays wanted for the rest of its prompt: a prompt that would delay the rest goes elsewhere where it
// is done little later. Nothing is awaited once the next part is booked, or the prompt given up.
func TestARestKeepsItsWorker(t *testing.T) {
	const tokens, slice = 10_000, 1000
	prefill, pp, _ := lateRouter(t)
	prefill.core.cfg.Slice = slice
	decode := newRouter(t, DefaultConfig().For(pools.Decode), nil)
	dp := poolOf(pools.Decode, worker("d", 2000, 0, 0))
	long := Request{ID: "long", ISL: tokens, Hashes: chain(1, tokens/16), DecodeLater: true, Sliced: true}
	book := func(req Request) *Lease {
		t.Helper()
		l, _ := reservePair(t, prefill, decode, pp, dp, req, req)
		return l
	}
	first := book(long)
	page := func() *load.Page { return prefill.core.book.Page(first.Worker.ID, first.Rank) }
	goes := func(what, id string, drain uint64, elsewhere bool) {
		t.Helper()
		// The other worker computes for 20 ms more, the one that has the rest for none: that tells them apart by less than
		// a fifth of the 120 ms that the short prompt takes.
		l, _, err := ReservePair(prefill, decode, pp, dp, Request{ID: id, ISL: 120, DecodeLater: true, Drain: drain, PlanOnly: true},
			Request{ID: id, ISL: 120}, noon)
		later, ok := errors.AsType[*LaterError](err)
		require.True(t, ok, "%s: %v, %v", what, l, err)
		assert.Equal(t, elsewhere, later.Starts > 0, "%s: the short prompt starts after %v, want elsewhere", what, later.Starts)
	}
	other := book(Request{ID: "other", ISL: 20, DecodeLater: true})
	require.True(t, other.Worker != first.Worker, "both are on one worker")
	long.Done = first.Computed(Done{}, noon)
	assert.True(t, long.Done.Worker == first.Worker.ID && long.Done.Tokens == first.Slice && long.Done.Slices == 1 && prefill.Open() == 1,
		"%+v is done of a slice to %d, %d bookings", long.Done, first.Slice, prefill.Open())
	goes("between two slices", "short", 1, true)
	planned := long
	planned.Drain, planned.PlanOnly = 2, true
	_, _, err := ReservePair(prefill, decode, pp, dp, planned, planned, noon)
	require.Error(t, err, "a plan was booked")
	assert.True(t, page().Delays("short", time.Second, 2) == 0 && page().Delays("short", time.Second, 3) == time.Second &&
		page().Delays("long", time.Second, 3) == 0,
		"the rest counts where it is planned, or delays itself, or does not count in the next drain")
	long.Done.End()
	long.Done.End()
	goes("given up", "short", 4, false)

	second := book(long)
	long.Done = second.Computed(long.Done, noon)
	third := book(long)
	if got := page().Delays("short", time.Hour, 0); !page().Awaits() || got != time.Duration(tokens-third.Slice)*time.Millisecond {
		t.Errorf("%v is awaited behind the third slice, want what follows it", got)
	}
	third.Release(noon)
	assert.False(t, page().Awaits(), "a slice that failed is awaited")
	long.Done.End() // of the second, whose rest ended when the third was booked
	other.Release(noon)
	assert.Zero(t, prefill.Open(), "bookings are open")
}
