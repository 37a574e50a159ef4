package router

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pools"
)

// TestPair reserves a pair from pools in various states: both legs are booked, or neither.
func TestPair(t *testing.T) {
	down := pools.Member{Worker: worker("p", 0, 0, 0), Status: pools.Draining}
	for _, c := range []struct {
		name             string
		prefills         []pools.Member
		decodes          []pools.Member
		busyP, busyD     int // tokens of a prompt booked there before
		isl              int
		want             error
		prefill, decoder string
	}{
		{"both free", members(worker("p", 0, 0, 10)), members(worker("d", 99, 0, 0)), 0, 0, 160, nil, "p", "d"},
		{"prefill busy", members(worker("p", 0, 0, 10)), members(worker("d", 99, 0, 0)), 50, 0, 160, ErrBusy, "", ""},
		{"no room", members(worker("p", 0, 0, 10)), members(worker("d", 20, 0, 0)), 0, 160, 160, ErrNoRoom, "", ""},
		{"prefill gone", []pools.Member{down}, members(worker("d", 99, 0, 0)), 0, 0, 160, ErrNoPrefill, "", ""},
		{"prefill gone and no room", []pools.Member{down}, members(worker("d", 20, 0, 0)), 0, 160, 160, ErrNoPrefill, "", ""},
		{"decode gone", members(worker("p", 0, 0, 10)), nil, 0, 0, 160, ErrNoWorkers, "", ""},
		{"decode gone while prefill is busy", members(worker("p", 0, 0, 10)), nil, 50, 0, 160, ErrNoWorkers, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			prefill := newRouter(t, DefaultConfig().For(pools.Prefill), nil)
			decode := newRouter(t, DefaultConfig().For(pools.Decode), nil)
			pp := &pools.Pool{Model: "m", Role: pools.Prefill, Members: c.prefills}
			dp := &pools.Pool{Model: "m", Role: pools.Decode, Members: c.decodes}
			if c.busyP > 0 {
				reserve(t, prefill, pp, Request{ID: "before", ISL: c.busyP}, noon)
			}
			if c.busyD > 0 {
				reserve(t, decode, dp, Request{ID: "before", ISL: c.busyD}, noon)
			}
			before := prefill.Open() + decode.Open()
			p, d, err := ReservePair(prefill, decode, pp, dp, Request{ID: "r", ISL: c.isl}, Request{ID: "r", ISL: c.isl}, noon)
			require.ErrorIs(t, err, c.want)
			open := prefill.Open() + decode.Open() - before
			if err != nil {
				assert.True(t, p == nil && d == nil && open == 0, "refused, yet leases %v and %v, %d bookings", p, d, open)
				return
			}
			assert.True(t, p.Worker.ID == c.prefill && d.Worker.ID == c.decoder && open == 2,
				"leases on %s and %s, %d bookings", p.Worker.ID, d.Worker.ID, open)
		})
	}
}

func members(ws ...*pools.Worker) []pools.Member { return poolOf("", ws...).Members }

// TestPairTooBig: what fits no decode worker is refused at once, also while there is no prefill worker.
func TestPairTooBig(t *testing.T) {
	prefill := newRouter(t, DefaultConfig().For(pools.Prefill), nil)
	decode := newRouter(t, DefaultConfig().For(pools.Decode), nil)
	_, _, err := ReservePair(prefill, decode, poolOf(pools.Prefill), poolOf(pools.Decode, worker("d", 10, 0, 0)),
		Request{ID: "r", ISL: 1600}, Request{ID: "r", ISL: 1600}, noon)
	var in *PoolError
	require.ErrorAs(t, err, &in)
	assert.Equal(t, pools.Decode, in.Role)
	assert.Equal(t, "request needs 101 blocks, the largest worker has 10", outcome(nil, err))
}

// TestPairUnwinds: the decode leg is booked already, so prefill's must not stay.
func TestPairUnwinds(t *testing.T) {
	prefill := newRouter(t, DefaultConfig().For(pools.Prefill), nil)
	decode := newRouter(t, DefaultConfig().For(pools.Decode), nil)
	pp, dp := poolOf(pools.Prefill, fleet("p", 2)...), poolOf(pools.Decode, fleet("d", 2)...)
	reserve(t, decode, dp, Request{ID: "r", ISL: 16}, noon)
	_, _, err := ReservePair(prefill, decode, pp, dp, Request{ID: "r", ISL: 16}, Request{ID: "r", ISL: 16}, noon)
	assert.True(t, errors.Is(err, ErrBooked) && prefill.Open() == 0, "%v, %d prefill bookings left", err, prefill.Open())
	_, _, err = ReservePair(prefill, prefill, pp, pp, Request{ID: "s"}, Request{ID: "s"}, noon)
	assert.Error(t, err, "one router for both legs")
}

// TestPairTurns: under round-robin both pools keep their own turn.
func TestPairTurns(t *testing.T) {
	prefill, decode := newRouter(t, inMode("round_robin").For(pools.Prefill), nil), newRouter(t, inMode("round-robin").For(pools.Decode), nil)
	pp, dp := poolOf(pools.Prefill, fleet("p", 2)...), poolOf(pools.Decode, fleet("d", 3)...)
	reserve(t, prefill, pp, Request{ID: "alone", ISL: 16}, noon)
	var got []string
	for i := range 4 {
		p, d := reservePair(t, prefill, decode, pp, dp, Request{ID: fmt.Sprint(i), ISL: 16}, Request{ID: fmt.Sprint(i), ISL: 16})
		got = append(got, p.Worker.ID+d.Worker.ID)
	}
	assert.Equal(t, "p0001d0000 p0000d0001 p0001d0002 p0000d0000", strings.Join(got, " "), "pairs %v", got)
}

// Of a mixed fleet only pairs that can hand over are chosen, whatever each pool alone would prefer; full partners are
// waited for, and none at all is another error.
func TestPairsThatHandOver(t *testing.T) {
	kind := func(w *pools.Worker, kind string) *pools.Worker { w.Connector = kind; return w }
	same := func(p, d *pools.Worker) bool { return p.Connector == d.Connector }
	prefill := newRouter(t, DefaultConfig().For(pools.Prefill), nil)
	decode := newRouter(t, DefaultConfig().For(pools.Decode), nil)
	pp := &pools.Pool{Model: "m", Role: pools.Prefill,
		Members: members(kind(worker("pa", 0, 0, 0), "a"), kind(worker("pb", 0, 0, 0), "b"), kind(worker("pc", 0, 0, 0), "c"))}
	dp := &pools.Pool{Model: "m", Role: pools.Decode, Members: members(kind(worker("da", 30, 0, 0), "a"), kind(worker("db", 30, 0, 0), "b"))}
	ask := func(n int) Request { return Request{ID: fmt.Sprint("r", n), ISL: 160, Pairs: same} }
	chosen := map[string]int{}
	var leases []*Lease
	for n := range 4 {
		p, d := reservePair(t, prefill, decode, pp, dp, ask(n), ask(n))
		chosen[p.Worker.ID+d.Worker.ID]++
		leases = append(leases, p, d)
	}
	assert.True(t, chosen["pada"] == 2 && chosen["pbdb"] == 2, "chosen: %v", chosen)
	_, _, err := ReservePair(prefill, decode, pp, dp, ask(9), ask(9), noon)
	assert.ErrorIs(t, err, ErrNoRoom, "with full partners")
	for _, l := range leases {
		l.Release(noon)
	}
	alone := ask(10)
	alone.PickOnly = true
	_, _, err = ReservePair(prefill, decode, &pools.Pool{Model: "m", Role: pools.Prefill, Members: pp.Members[2:]}, dp, alone, ask(10), noon)
	assert.True(t, errors.Is(err, ErrNoPartner) && errors.Is(err, ErrNoPrefill), "without a partner: %v", err)
	only := Request{ID: "r11", ISL: 160, Only: func(w *pools.Worker) bool { return w.ID == "db" }}
	assert.Equal(t, "db", pick(t, decode, dp, only, noon).Worker.ID)
	assert.Zero(t, prefill.Open()+decode.Open(), "bookings")
}
