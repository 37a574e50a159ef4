package placement

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
)

// linked are links between workers that compute a token in 25 µs, as a 7B model on an H200 does, at the test's own time.
type linked struct {
	*Links
	now     time.Time
	workers map[string]*pools.Worker
}

func newLinked() *linked {
	l := &linked{now: start, workers: map[string]*pools.Worker{}}
	l.Links = NewLinks(func(_ *pools.Worker, tokens int) (time.Duration, bool) {
		return 10*time.Millisecond + time.Duration(tokens)*25*time.Microsecond, true
	})
	for _, m := range append(fleetOf(nil, "p1", "p2").Prefill.Members, fleetOf(nil, "d1", "d2").Decode.Members...) {
		l.workers[m.Worker.ID] = m.Worker
	}
	return l
}

// move has a prompt be handed over within took.
func (l *linked) move(p, d string, tokens int, took time.Duration) {
	var t Transfer
	l.Begin(&t, l.workers[p], l.workers[d], tokens, 0, l.now)
	l.now = l.now.Add(took)
	l.Arrived(&t, l.now, l.now)
}

func (l *linked) opens(p, d string, tokens int) bool {
	return l.Opens(l.workers[p], l.workers[d], tokens, l.now)
}

// A request's look at the pairs costs nothing for those that are quick, however many there are: 64 prefill by 64 decode workers.
func TestQuickPairsAreNotLookedAt(t *testing.T) {
	looked := 0
	l := NewLinks(func(_ *pools.Worker, tokens int) (time.Duration, bool) {
		looked++
		return time.Duration(tokens) * 25 * time.Microsecond, true
	})
	move := func(p, d int, took time.Duration) {
		var t Transfer
		l.Begin(&t, &pools.Worker{ID: fmt.Sprint("p", p), Model: "m"}, &pools.Worker{ID: fmt.Sprint("d", d), Model: "m"}, 4000, 0, start)
		l.Arrived(&t, start.Add(took), start.Add(took))
	}
	for p := range 64 {
		for d := range 64 {
			move(p, d, leastOwn)
		}
	}
	looked = 0
	assert.False(t, l.Shut("m", 4000, start))
	assert.Zero(t, looked)
	for range few {
		move(7, 9, time.Second)
	}
	looked = 0
	assert.True(t, l.Shut("m", 4000, start))
	assert.Equal(t, 1, looked)
}

// Three first events that are late by less than a step and the way there shut no pair for prompts that this delays no more: a busy
// machine is late too, and moves nothing slowly. (Expected: 74 tokens are computed in 12 ms.)
func TestSmallSavingsShutNoPair(t *testing.T) {
	l := newLinked()
	for range few {
		l.move("p1", "d1", 74, leastOwn+45*time.Millisecond)
	}
	assert.True(t, l.opens("p1", "d1", 74))
	for range few {
		l.move("p1", "d1", 74, leastOwn+80*time.Millisecond)
	}
	assert.False(t, l.opens("p1", "d1", 74), "it saves 68 ms")
}

// A transfer that ends after its pair's worker has gone leaves nothing behind.
func TestTransfersOfThoseThatAreGone(t *testing.T) {
	l := newLinked()
	l.OnChange = func(p, d *pools.Worker, reason string) { t.Errorf("%s to %s, which has gone: %q", p.ID, d.ID, reason) }
	var under [few]Transfer
	for i := range under {
		l.Begin(&under[i], l.workers["p1"], l.workers["d1"], 4000, 0, l.now)
	}
	l.Forget(func(worker, _ string) bool { return worker == "d1" })
	for i := range under {
		l.Arrived(&under[i], l.now.Add(time.Minute), l.now.Add(time.Minute))
	}
	assert.False(t, l.Shut(l.workers["d1"].Model, 4000, l.now))
	assert.True(t, l.opens("p1", "d1", 4000))
}

// A pair is shut by three transfers that cost more than the computation, never by one or two, whatever comes between; for
// prompts alone that are dearer to move; and no other pair is. A quick one opens it. (Expected: 4,000 tokens are computed in
// 110 ms, 64 in 12 ms.)
func TestSlowTransfersShutTheirPair(t *testing.T) {
	l := newLinked()
	l.move("p1", "d1", 4000, 2*time.Second) // a handshake
	l.move("p1", "d1", 64, 40*time.Millisecond)
	l.move("p1", "d1", 4000, time.Second)
	assert.True(t, l.opens("p1", "d1", 4000), "after two")
	l.move("p1", "d1", 64, 40*time.Millisecond) // says nothing of long ones
	l.move("p1", "d1", 4000, time.Second)
	assert.False(t, l.opens("p1", "d1", 4000), "after three")
	assert.True(t, l.opens("p1", "d1", 64), "a short one")
	assert.True(t, l.opens("p2", "d1", 4000) && l.opens("p1", "d2", 4000), "other pairs")
	reason, price := l.Why(fleetOf(nil, "p1").Prefill, l.workers["d1"], 4000, l.now)
	assert.Equal(t, ReasonSlow, reason)
	assert.InDelta(t, .95, price.Transfer.Seconds(), .01)
	assert.Equal(t, 110*time.Millisecond, price.Compute)
	l.move("p1", "d1", 2000, 60*time.Millisecond)
	assert.True(t, l.opens("p1", "d1", 4000), "after a quick one")
}

// Transfers that have not come yet shut their pair by their age: no request waits for them. Each is given up once it has
// taken as long as the computation, and not before.
func TestTransfersUnderWayCount(t *testing.T) {
	l := newLinked()
	under := make([]Transfer, 3)
	for i := range under {
		l.Begin(&under[i], l.workers["p1"], l.workers["d1"], 4000, 0, l.now)
	}
	l.now = l.now.Add(100 * time.Millisecond)
	assert.True(t, l.opens("p1", "d1", 4000) && !l.Leave(&under[0], l.now), "after 100 ms")
	l.now = l.now.Add(time.Second)
	assert.False(t, l.opens("p1", "d1", 4000) || !l.Leave(&under[0], l.now), "after 1.1 s")
	for i := range under {
		l.Left(&under[i], l.now)
	}
	assert.False(t, l.opens("p1", "d1", 4000), "after they were given up")
}

// Three failures in a row shut a pair for every prompt, and a hand-off that goes well opens it.
func TestFailuresShutTheirPair(t *testing.T) {
	l := newLinked()
	var changes []string
	l.OnChange = func(p, d *pools.Worker, reason string) { changes = append(changes, fmt.Sprint(p.ID, d.ID, reason)) }
	fail := func() { l.Failed(l.workers["p1"], l.workers["d1"], l.now) }
	l.move("p1", "d1", 100, 20*time.Millisecond)
	l.move("p1", "d2", 100, 20*time.Millisecond)
	fail()
	fail()
	l.move("p1", "d1", 100, 20*time.Millisecond)
	fail()
	fail()
	assert.True(t, l.opens("p1", "d1", 100), "two in a row")
	fail()
	assert.False(t, l.opens("p1", "d1", 100), "three in a row")
	assert.True(t, l.Works(l.workers["p1"], l.workers["d1"]), "its KV reaches d2")
	l.move("p1", "d1", 100, 20*time.Millisecond)
	assert.True(t, l.opens("p1", "d1", 100), "after one that went well")
	assert.Equal(t, []string{"p1d1failing_transfer", "p1d1"}, changes)
}

// A shut pair has a probe for one of 64 placed requests, and no second one while the first is under way; what was booked as
// one and never begun is given up after a minute.
func TestProbesAreFew(t *testing.T) {
	l := newLinked()
	for range 3 {
		l.move("p1", "d1", 4000, 2*time.Second)
	}
	p, d := l.workers["p1"], l.workers["d1"]
	probes := 0
	for range 10 * probeOf {
		if l.opens("p1", "d1", 4000) {
			probes++
			l.Placed(p, d, 4000, l.now)
			assert.False(t, l.opens("p1", "d1", 4000), "one at a time")
			l.move("p1", "d1", 4000, 2*time.Second)
		} else {
			l.Placed(nil, d, 4000, l.now)
		}
	}
	assert.Equal(t, 9, probes)
	l.Placed(nil, d, 4000, l.now)
	for !l.opens("p1", "d1", 4000) {
		l.Placed(nil, d, 4000, l.now)
	}
	l.Placed(p, d, 4000, l.now) // never begins
	for range 2 * probeOf {
		l.Placed(nil, d, 4000, l.now)
	}
	assert.False(t, l.opens("p1", "d1", 4000))
	l.now = l.now.Add(probeLost + 1)
	assert.True(t, l.opens("p1", "d1", 4000))
}

// The speed at which decode computes is its own: where it has too much to do, a hand-off that is as slow for that alone is
// worth it. Pairs of processes that have gone are forgotten.
func TestDecodeIsPricedByItsOwnSpeed(t *testing.T) {
	l := newLinked()
	for range 3 {
		l.move("p1", "d1", 4000, time.Second)
	}
	require.False(t, l.opens("p1", "d1", 4000))
	for range 20 {
		l.Computed(l.workers["d1"], 4000, 1100*time.Millisecond)
	}
	assert.True(t, l.opens("p1", "d1", 4000))
	l.Forget(func(worker, _ string) bool { return worker == "p1" })
	assert.Empty(t, l.models)
}

// Where a pair is shut its prompts are handed over by others; a decode worker without any computes them itself, where it can
// and may. A pin, and a fleet that has no better, use the pair all the same.
func TestPlacementAroundShutPairs(t *testing.T) {
	for _, c := range []struct {
		name     string
		shut     []string
		fleet    []string
		engine   string
		fallback bool
		ask      func(a *Ask)
		placed   string
	}{
		{name: "other prefill", shut: []string{"p1-d1"}, fleet: []string{"p1", "p2", "d1"}, fallback: true, placed: "p2 d1 "},
		{name: "other decode", shut: []string{"p1-d1"}, fleet: []string{"p1", "d1", "d2"}, fallback: true,
			ask: func(a *Ask) { a.Want, a.Partner = Decode, &pools.Worker{ID: "p1"} }, placed: "- d2 "},
		{name: "none", shut: []string{"p1-d1"}, fleet: []string{"p1", "d1"}, fallback: true, placed: "- d1 slow_transfer"},
		{name: "none of the decode worker's", shut: []string{"p1-d1", "p2-d1"}, fleet: []string{"p1", "p2", "d1", "d2"}, fallback: true,
			ask: func(a *Ask) { bind(a, "", "d1") }, placed: "- d1 slow_transfer"},
		{name: "none, without fallback", shut: []string{"p1-d1"}, fleet: []string{"p1", "d1"}, placed: "p1 d1 "},
		{name: "none, sglang", shut: []string{"p1-d1"}, fleet: []string{"p1", "d1"}, engine: "sglang", fallback: true, placed: "p1 d1 "},
		{name: "pinned", shut: []string{"p1-d1"}, fleet: []string{"p1", "p2", "d1"}, fallback: true,
			ask: func(a *Ask) { bind(a, "p1", "") }, placed: "p1 d1 "},
		{name: "staged", shut: []string{"p1-d1"}, fleet: []string{"p1", "d1"}, fallback: true,
			ask: func(a *Ask) { a.Want, a.Partner = Decode, &pools.Worker{ID: "p1"} }, placed: "- d1 "},
	} {
		t.Run(c.name, func(t *testing.T) {
			place := newPlacer(t, c.fallback, nil)
			place.Transfers = closed(c.shut)
			fleet := fleetOf(func(m *pools.Member) { m.Worker.Engine = c.engine }, c.fleet...)
			ask := newAsk(Any, c.ask)
			picked, err := place.Pick(fleet, ask, start)
			require.NoError(t, err)
			assert.Equal(t, c.placed, ids(&picked), "picked")
			out, err := place.Book(fleet, ask, nil, start)
			require.NoError(t, err)
			assert.Equal(t, c.placed, ids(&out))
			out.Release(start)
			for _, role := range []pools.Role{pools.Prefill, pools.Decode} {
				assert.Zero(t, place.Routers.(*router.Set).For("m", role).Open())
			}
		})
	}
}

// In mode eft the decode worker is chosen once the prompt is computed: a pair that is shut, in a fleet that has no other and no
// fallback, books the prefill worker alone.
func TestShutPairsWhereDecodeIsChosenLater(t *testing.T) {
	cfg := router.DefaultConfig()
	cfg.Mode = "eft"
	set, err := router.NewSet(cfg.ByRole(), slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	place := &Placer{Routers: set, Transfers: closed{"p1-d1"}}
	out, err := place.Book(fleetOf(nil, "p1", "d1"), newAsk(Any, func(a *Ask) { a.DecodeLater = true }), nil, start)
	require.NoError(t, err)
	assert.Equal(t, "p1 - ", ids(&out))
	out.Release(start)
}

// closed are pairs that are shut.
type closed []string

func (c closed) Shut(string, int, time.Time) bool                  { return true }
func (c closed) Placed(_, _ *pools.Worker, _ int, _ time.Time)     {}
func (c closed) Opens(p, d *pools.Worker, _ int, _ time.Time) bool { return !c.has(p, d) }
func (c closed) has(p, d *pools.Worker) (has bool) {
	for _, pair := range c {
		has = has || pair == fmt.Sprint(p.ID, "-", d.ID)
	}
	return has
}

func (c closed) Why(*pools.Pool, *pools.Worker, int, time.Time) (string, Price) {
	return ReasonSlow, Price{}
}
