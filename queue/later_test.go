package queue

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// laterError answers that a request waits on by a plan.
type laterError struct{ plan }

func (*laterError) Error() string { return "later" }

func (e *laterError) Later() (starts, takes, then, free time.Duration) {
	return e.starts, e.takes, e.then, e.free
}

// newLine is a core with tickets of these names, pushed one after the other at start, and the list of what ended.
func newLine(t *testing.T, cfg Config, ids ...string) (core *Core[string], tickets map[string]*Ticket[string], ended *[]string) {
	t.Helper()
	ended, tickets = new([]string), map[string]*Ticket[string]{}
	core = newCore(t, cfg, func(t *Ticket[string], err error) { *ended = append(*ended, t.ID+" "+fate(err)) })
	for _, id := range ids {
		tickets[id] = &Ticket[string]{Item: Item{ID: id}}
		push(t, core, start, tickets[id])
	}
	return core, tickets, ended
}

// A request that is planned for later may leave, and its time may end, before the drain that planned it does.
func TestPlannedRequestsLeaveAndExpire(t *testing.T) {
	core, tickets, ended := newLine(t, DefaultConfig(), "left", "expired", "granted")
	for _, id := range []string{"left", "expired"} {
		require.Same(t, tickets[id], core.next(start))
		require.True(t, core.waitsOn(tickets[id], &laterError{}, start), id)
	}
	assert.True(t, core.cancel(tickets["left"], start) && !core.cancel(tickets["left"], start), "it does not leave once")
	tickets["granted"].pushed = start.Add(time.Hour)
	now := start.Add(DefaultConfig().Timeout)
	require.Same(t, tickets["granted"], core.next(now))
	require.True(t, core.finish(tickets["granted"], nil, now))
	core.stop(now)
	assert.Equal(t, []string{"expired expired", "granted granted"}, *ended)
	assert.Zero(t, core.Len(), "wait")
}

// Each drain is a round of its own, and so is what is asked again because something has changed.
func TestRounds(t *testing.T) {
	core, _, _ := newLine(t, DefaultConfig(), "a")
	rounds := map[uint64]int{}
	for range 3 {
		core.Drain(start, func(_ *Ticket[string], d Drain[string]) error { rounds[d.Round]++; return &laterError{} })
	}
	core.next(start)
	rounds[core.round]++
	core.resume()
	core.next(start)
	rounds[core.round]++
	core.stop(start)
	assert.True(t, len(rounds) == 5 && rounds[0] == 0, rounds)
}

// planner is a worker that is busy for a while: in each round it plans one request behind the other.
func planner(busy time.Duration, takes map[string]time.Duration) func(t *Ticket[string], d Drain[string]) error {
	var round uint64
	var left time.Duration
	return func(t *Ticket[string], d Drain[string]) error {
		if d.Round != round {
			round, left = d.Round, busy
		}
		starts := left
		left += takes[t.ID]
		return &laterError{plan{starts: starts, takes: takes[t.ID]}}
	}
}

// A request that its order would make late goes first where fewer are late for that, and goes back where it is late all
// the same.
func TestPromotion(t *testing.T) {
	const target = 2 * time.Second
	for _, c := range []struct {
		name   string
		long   time.Duration // what the long prompt takes; three short ones before it take 300 ms each, the first 200 ms from now
		target time.Duration
		own    time.Duration // the long one's own target
		shorts time.Duration // theirs
		goes   bool          // the long one is first
	}{
		{"in time where it is", 500 * time.Millisecond, target, 0, 0, false},
		{"nearly late where it is", 800 * time.Millisecond, target, 0, 2 * target, true},
		{"late where it is, in time at the front", 950 * time.Millisecond, target, 0, 2 * target, true},
		{"another would be late", 1300 * time.Millisecond, target, 0, target + 100*time.Millisecond, false},
		{"late at the front", 1900 * time.Millisecond, target, 0, 2 * target, false},
		{"no target", 950 * time.Millisecond, 0, 0, 0, false},
		{"a target of its own", 500 * time.Millisecond, target, time.Second, 0, true},
		{"a target of its own alone", 950 * time.Millisecond, 0, target, 0, true},
		{"a longer target of its own", 950 * time.Millisecond, target, 2 * target, 2 * target, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := DefaultConfig()
			cfg.Target = c.target
			core, tickets, _ := newLine(t, cfg)
			for _, id := range []string{"a", "b", "c", "long"} {
				ticket := &Ticket[string]{Item: Item{ID: id, Target: c.shorts}}
				if tickets[id] = ticket; id == "long" {
					ticket.Target = c.own
				}
				push(t, core, start, ticket)
			}
			takes := map[string]time.Duration{"a": 300 * time.Millisecond, "b": 300 * time.Millisecond, "c": 300 * time.Millisecond, "long": c.long}
			for range 2 { // the first shows that there are plans
				core.Drain(start, planner(200*time.Millisecond, takes))
			}
			require.Equal(t, c.goes, core.head().ID == "long", "%s is first", core.head().ID)
			core.Drain(start.Add(10*time.Second), planner(0, takes))
			assert.Equal(t, "a", core.head().ID, "long is late all the same")
		})
	}
}

// However often the queue drains, few drains plan before they grant.
func TestPlanningIsBounded(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Target = 2 * time.Second
	core, _, _ := newLine(t, cfg, "a", "b", "c")
	planned := map[uint64]bool{}
	for i := range 2000 { // 0.5 ms apart
		core.Drain(start.Add(time.Duration(i)*time.Millisecond/2), func(_ *Ticket[string], d Drain[string]) error {
			if d.Planning {
				planned[core.promotion.drain] = true
			}
			return &laterError{}
		})
	}
	if most := planRate + planBurst; len(planned) > most || len(planned) < planRate {
		t.Errorf("%d of 2000 drains in a second plan, want %d to %d", len(planned), planRate, most)
	}
}

// counted is an order that ages and counts its keys.
type counted struct {
	hrrn
	keys *int
}

func (o counted) Key(it Item, now time.Time) float64 {
	*o.keys++
	return o.hrrn.Key(it, now)
}

// What a drain does stays bounded as the queue grows: so many requests are asked, and the keys of a long queue stand
// for a while. Room that comes is the first ones'.
func TestADrainsWorkIsBounded(t *testing.T) {
	const drains = 200 // 1 ms apart
	for _, waiting := range []int{100, 1000, 10_000} {
		cfg := DefaultConfig()
		cfg.Limit, cfg.Policy, cfg.Target = waiting, "hrrn", 2*time.Second
		var granted []string
		core := newCore(t, cfg, func(t *Ticket[string], err error) { granted = append(granted, t.ID+" "+fate(err)) })
		keys, asked := 0, 0
		core.classes[0].order = counted{keys: &keys}
		for i := range waiting {
			push(t, core, start, &Ticket[string]{Item: Item{ID: fmt.Sprint(i), Uncached: i}})
		}
		keys = 0
		now := start
		for range drains {
			before := asked
			core.Drain(now, func(_ *Ticket[string], d Drain[string]) error { asked++; return &laterError{} })
			require.LessOrEqual(t, asked-before, (3+maxTried)*maxPlanned, "%d wait are asked in a drain", waiting)
			now = now.Add(time.Millisecond)
		}
		assert.LessOrEqual(t, asked, drains*2*maxPlanned, "%d wait are asked in %d drains, want at most", waiting, drains)
		assert.LessOrEqual(t, keys, max(drains*maxPlanned, waiting*(drains/50+1)),
			"%d wait keys are computed in %d drains, want at most", waiting, drains)
		room := 3
		core.Drain(now, func(_ *Ticket[string], d Drain[string]) error {
			if d.Planning || room == 0 {
				return &laterError{}
			}
			room--
			return nil
		})
		assert.Equal(t, []string{"0 granted", "1 granted", "2 granted"}, granted)
	}
}

// A change that comes while a request is planned is seen by that request too, though what is asked behind it ends
// without a grant and nothing happens after it.
func TestAChangeInMidDrainReachesThePlanned(t *testing.T) {
	errGone := errors.New("it can be served no more")
	synctest.Test(t, func(t *testing.T) {
		var q *Queue[string, string]
		free, armed := false, false
		cfg := DefaultConfig()
		cfg.Target = 0 // no drain plans first
		q, err := New(cfg, func(id string, _ Drain[string], _ time.Time) (string, error) {
			if id != "planned" {
				return "", errGone
			}
			if free {
				return id, nil
			}
			if armed { // the worker becomes free behind this one's back, and who frees it does not drain, for this one does
				free = true
				var woken sync.WaitGroup
				woken.Go(q.Wake)
				woken.Wait()
			}
			return "", &laterError{}
		}, func(string) {})
		require.NoError(t, err)
		var waiting sync.WaitGroup
		waiting.Go(func() {
			_, err := q.Admit(t.Context(), Item{ID: "planned"}, "planned")
			assert.NoError(t, err)
		})
		synctest.Wait()
		armed = true
		_, err = q.Admit(t.Context(), Item{ID: "behind"}, "behind")
		assert.ErrorIs(t, err, errGone)
		synctest.Wait()
		assert.Zero(t, q.Stats().Waiting, "waits, and nothing will wake it")
		waiting.Wait()
	})
}
