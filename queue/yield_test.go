package queue

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// rooms is how many places there are for requests here, and whether those of other gateways fit in them too.
type rooms struct {
	t      *testing.T
	core   *Core[string]
	now    time.Time
	places int
	fits   bool // what waits elsewhere
	served []string
}

func newRooms(t *testing.T) *rooms {
	r := &rooms{t: t, now: start, fits: true}
	r.core = newCore(t, DefaultConfig(), func(k *Ticket[string], err error) { r.served = append(r.served, k.ID) })
	return r
}

// reserve is as the gateway's: with room, but for another gateway's request.
func (r *rooms) reserve(_ *Ticket[string], d Drain[string]) error {
	switch {
	case r.places == 0:
		return ErrWait
	case d.Yield > 0 && r.fits:
		return fmt.Errorf("%w: %w", ErrYield, ErrWait)
	}
	r.places--
	return nil
}

func (r *rooms) push(items ...Item) {
	r.t.Helper()
	for _, it := range items {
		push(r.t, r.core, r.now, &Ticket[string]{Item: it})
	}
}

// elsewhere says what waits at another gateway.
func (r *rooms) elsewhere(heads ...Head) (gone bool) {
	return r.core.UpdatePeerHeads("b", heads, r.now)
}

// pass lets time go by, with a drain at each due moment and word of the other gateway each 20 ms.
func (r *rooms) pass(d time.Duration, heads ...Head) {
	for end := r.now.Add(d); ; {
		if len(heads) > 0 {
			r.elsewhere(heads...)
		}
		r.core.Drain(r.now, r.reserve)
		next := min(20*time.Millisecond, end.Sub(r.now))
		if wake := r.core.NextWake(); !wake.IsZero() && wake.Sub(r.now) < next {
			next = wake.Sub(r.now)
		}
		if next <= 0 {
			require.False(r.t, r.now.Before(end), "a drain is due at once, for ever: at %v", r.now.Sub(start))
			return
		}
		r.now = r.now.Add(next)
	}
}

func (r *rooms) are(want string) {
	r.t.Helper()
	assert.Equal(r.t, want, strings.Join(r.served, " "), "served after %v", r.now.Sub(start))
}

// TestRoomIsLeftToOthers: what has come to wait for a place leaves it to a request of a higher strict priority at
// another gateway, takes it when that has gone, and leaves the next place again.
func TestRoomIsLeftToOthers(t *testing.T) {
	r := newRooms(t)
	r.push(Item{ID: "plain"}, Item{ID: "equal", Strict: 10}, Item{ID: "retry", Retry: true}, Item{ID: "higher", Strict: 11})
	r.pass(time.Second, Head{Strict: 10, Tokens: 100}) // nothing is left while there is no room
	r.places = 3
	r.core.Drain(r.now, r.reserve)
	r.are("retry higher equal")
	for range 50 { // the other gateway takes each place within 15 ms: it keeps its priority for as long
		r.places = 1
		r.pass(15*time.Millisecond, Head{Strict: 10, Tokens: 100})
		r.places = 0
		r.pass(100*time.Millisecond, Head{Strict: 10, Tokens: 100})
	}
	r.elsewhere(Head{Strict: 10, Tokens: 100})
	for range 3 { // or does, and nothing is heard of it that is a reason to drain
		r.places = 1
		r.core.Drain(r.now, r.reserve)
		r.places = 0
		r.now = r.now.Add(yieldFor)
		assert.False(t, r.elsewhere(Head{Strict: 10, Tokens: 100}), "woken, though the same waits there")
		r.core.Drain(r.now, r.reserve)
	}
	r.places = 1
	r.core.Drain(r.now, r.reserve)
	assert.True(t, r.elsewhere(Head{Strict: 10, Tokens: 100, Key: 1}),
		"the queue is not woken though something has been served there")
	r.are("retry higher equal")
	r.places = 1
	r.pass(10*time.Millisecond, Head{Strict: 10, Tokens: 100})
	assert.True(t, r.elsewhere(), "the queue is not woken")
	r.core.Drain(r.now, r.reserve)
	r.are("retry higher equal plain")
	s := r.core.Stats(r.now)
	assert.True(t, s.YieldedTotal == 1 && s.YieldsUnusedTotal == 0, "%+v", s)
	r.elsewhere()
	assert.Empty(t, r.core.peers, "gateways are kept at which nothing waits")
}

// TestRoomIsLeftForAMoment: a gateway that takes nothing of what is left to it costs a request 20 ms, and no other for
// a second; one that falls silent no more than that.
func TestRoomIsLeftForAMoment(t *testing.T) {
	r := newRooms(t)
	r.places = 100
	head := Head{Strict: 10, Tokens: 100}
	r.push(Item{ID: "1"}, Item{ID: "2"})
	r.pass(19*time.Millisecond, head)
	r.push(Item{ID: "3"})
	r.are("")
	r.pass(time.Millisecond, head)
	r.are("1 2 3")
	r.push(Item{ID: "4"})
	r.pass(0, head)
	r.are("1 2 3 4")
	r.pass(time.Second, head)
	r.push(Item{ID: "5"})
	r.pass(0, head)
	r.are("1 2 3 4")
	r.pass(20 * time.Millisecond)
	r.are("1 2 3 4 5")
	if s := r.core.Stats(r.now); s.YieldedTotal != 2 || s.YieldsUnusedTotal != 2 { // 2 and 3 were behind 1
		t.Errorf("%+v", s)
	}

	r.pass(2 * time.Second)
	left := &Ticket[string]{}
	push(t, r.core, r.now, left)
	r.pass(0, head)
	r.core.cancel(left, r.now) // which ends its moment
	r.now = r.now.Add(time.Second)
	r.push(Item{ID: "waits"})
	r.pass(5*time.Millisecond, head)
	r.are("1 2 3 4 5")
	r.elsewhere()
	r.pass(0)
	r.served = r.served[:5]
	r.elsewhere(head)
	r.now = r.now.Add(headAge)
	r.push(Item{ID: "6"})
	r.pass(0)
	r.are("1 2 3 4 5 6") // what was said is too old
	r.places, r.fits = 1, false
	r.elsewhere(head)
	r.push(Item{ID: "7"})
	r.pass(0)
	r.are("1 2 3 4 5 6 7") // it would not fit
}

// TestLiarsAreBounded has gateways say, drop and change whatever they like, thousands of times a second: with room no
// request waits for more than 20 ms, and what is kept of them is bounded.
func TestLiarsAreBounded(t *testing.T) {
	const seed = 7
	rng := rand.New(rand.NewPCG(seed, 0))
	r := newRooms(t)
	arrived, longest, n := map[string]time.Time{}, time.Duration(0), 0
	for step := range 100_000 {
		r.places = 1 << 20
		var heads []Head
		for range rng.IntN(3) {
			heads = append(heads, Head{Lane: uint64(rng.IntN(2)) * laneID("A"), Retry: rng.IntN(2) == 0, Key: rng.Uint64N(3),
				Strict: uint32(rng.IntN(5)), Tokens: rng.IntN(3)})
		}
		gone := r.core.UpdatePeerHeads(fmt.Sprint("liar ", rng.IntN(4)), heads, r.now)
		if wake := r.core.NextWake(); gone || !wake.IsZero() && !r.now.Before(wake) {
			r.core.Drain(r.now, r.reserve)
		}
		if step%13 == 0 {
			it := Item{ID: fmt.Sprint(n), Strict: uint32(rng.IntN(4)), Lane: []string{"", "A", "B"}[rng.IntN(3)], Retry: rng.IntN(4) == 0}
			n++
			arrived[it.ID] = r.now
			r.push(it)
			r.core.Drain(r.now, r.reserve)
		}
		for _, id := range r.served {
			longest = max(longest, r.now.Sub(arrived[id]))
		}
		r.served = r.served[:0]
		r.now = r.now.Add(time.Duration(rng.IntN(200)) * time.Microsecond)
	}
	t.Logf("seed %d: of %d requests %+v; the longest wait is %v", seed, n, r.core.Stats(r.now), longest)
	assert.LessOrEqual(t, longest, yieldFor+200*time.Microsecond, "that is too long")
	assert.True(t, r.core.stats.YieldedTotal != 0 && r.core.stats.YieldsUnusedTotal != 0 && len(r.core.peers) <= 4,
		"nothing was shown: %d others", len(r.core.peers))
}

// TestHeads: of each lane the highest strict priority counts, and what has none is no head.
func TestHeads(t *testing.T) {
	r := newRooms(t)
	r.push(Item{ID: "a", ISL: 1}, Item{ID: "b", ISL: 1, Lane: "A"})
	r.pass(0)
	assert.Nil(t, r.core.Heads())
	r.push(Item{Strict: 2, ISL: 30}, Item{Strict: 3, ISL: 50}, Item{Strict: 3, ISL: 40}, Item{Strict: 1, ISL: 9, Lane: "A"},
		Item{Strict: 2, ISL: 8, Lane: "A", Retry: true})
	r.pass(0)
	want := []Head{{0, false, 3, 4, 50}, {laneID("A"), false, 1, 6, 9}, {laneID("A"), true, 2, 7, 8}}
	heads := r.core.Heads()
	assert.True(t, slices.Equal(heads, want) && want[1].Lane != 0, "%v, want %v", heads, want)
}

// TestWhatYieldsToWhat: a request that is bound to some workers goes before those that are bound to the same, and one
// that takes any worker before all. A retry goes before all that are none wherever they wait, and among retries the
// strict priority decides.
func TestWhatYieldsToWhat(t *testing.T) {
	lanes := []Item{{ID: "any"}, {ID: "A", Lane: "A"}, {ID: "B", Lane: "B"}}
	retries := []Item{{ID: "plain"}, {ID: "retry", Strict: 1, Retry: true}}
	for _, c := range []struct {
		here      []Item
		elsewhere Head
		served    string
	}{
		{lanes, Head{Lane: laneID("A"), Strict: 10, Tokens: 1}, "any B"},
		{lanes, Head{Lane: laneID("no such lane"), Strict: 10, Tokens: 1}, "any A B"},
		{lanes, Head{Strict: 10, Tokens: 1}, ""},
		{retries, Head{Strict: 10}, "retry"},
		{retries, Head{Strict: 10, Retry: true}, ""},
		{retries, Head{Strict: 1, Retry: true}, "retry"},
	} {
		r := newRooms(t)
		r.places = len(c.here)
		r.push(c.here...)
		r.pass(10*time.Millisecond, c.elsewhere)
		r.are(c.served)
	}
}

// TestPlannedRequestsYield: in mode eft what waits for a worker by a plan leaves it for 20 ms as well, and holds up none.
func TestPlannedRequestsYield(t *testing.T) {
	r := newRooms(t)
	r.push(Item{ID: "1"}, Item{ID: "2"})
	reserve := func(k *Ticket[string], d Drain[string]) error {
		if k.ID == "1" && d.Yield > 0 {
			return fmt.Errorf("%w: %w", ErrYield, &laterError{})
		}
		return nil
	}
	r.elsewhere(Head{Strict: 1, Tokens: 1})
	r.core.Drain(r.now, reserve)
	r.are("2")
	assert.Equal(t, yieldFor, r.core.NextWake().Sub(r.now), "the queue is woken after")
	r.now = r.now.Add(yieldFor)
	r.core.Drain(r.now, reserve)
	r.are("2 1")
}

// TestCallersYield has callers of the shell leave room: 20 ms where the other gateway takes nothing, and until it has
// what it waits for where it does. The hook is called for requests with a strict priority that wait, and for no others.
func TestCallersYield(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, headed := DefaultConfig(), 0
		cfg.OnHead = func() { headed++ }
		r := newRoom(t, 1, cfg)
		leaves := func(now time.Time, d Drain[*caller]) (*place, error) {
			if d.Yield > 0 && r.free.Load() > 0 {
				return nil, fmt.Errorf("%w: %w", ErrYield, ErrWait)
			}
			return r.reserve(now, d)
		}
		r.q.UpdatePeerHeads("b", []Head{{Strict: 10, Tokens: 1}})
		began := time.Now()
		first := r.admitWith(t.Context(), Item{}, leaves)
		got := <-first
		assert.Equal(t, yieldFor, time.Since(began), "it waited")
		time.Sleep(2 * distrust)
		second := r.admitWith(t.Context(), Item{}, leaves)
		assert.Zero(t, headed, "the hook was called N times though nothing has a strict priority")
		third := r.admitWith(t.Context(), Item{Strict: 10, ISL: 7}, leaves)
		if heads := r.q.Heads(); headed != 1 || len(heads) != 1 || heads[0] != (Head{Strict: 10, Key: 3, Tokens: 7}) {
			t.Errorf("%v, and the hook was called %d times", heads, headed)
		}
		r.q.UpdatePeerHeads("b", []Head{{Strict: 10, Tokens: 1}})
		got.release(t)
		(<-third).release(t) // no lower than the other's
		assert.True(t, headed == 2 && r.q.Heads() == nil, "%v, and the hook was called %d times", r.q.Heads(), headed)
		began = time.Now()
		time.Sleep(5 * time.Millisecond)
		assert.True(t, r.q.UpdatePeerHeads("b", nil), "the queue is not to be woken")
		r.q.Wake()
		(<-second).release(t)
		assert.Equal(t, 5*time.Millisecond, time.Since(began), "it waited")
		r.quiet(1)
	})
}

// TestYieldingCostsNothing: a drain in which nothing waits elsewhere, or what waits does not go before, allocates
// nothing for it.
func TestYieldingCostsNothing(t *testing.T) {
	r := newRooms(t)
	r.push(Item{ID: "1", Strict: 3})
	drain := func() { r.core.Drain(r.now, r.reserve) }
	drain()
	assert.EqualValues(t, 0, testing.AllocsPerRun(100, drain), "allocations")
	r.elsewhere(Head{Strict: 2, Tokens: 1})
	assert.EqualValues(t, 0, testing.AllocsPerRun(100, drain), "allocations with a head")
}
