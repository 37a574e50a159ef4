package queue

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A request that arrives while all workers are taken is drained for 5 ms later, or when something changes. One that may be
// granted at once is drained for at once.
func TestRequestsGather(t *testing.T) {
	const ms = time.Millisecond
	wait := func(free time.Duration) func(_ *Ticket[string], d Drain[string]) error {
		return func(_ *Ticket[string], d Drain[string]) error {
			return &laterError{plan{starts: 50 * ms, takes: ms, free: free}}
		}
	}
	for _, c := range []struct {
		name    string
		free    time.Duration // of the first worker, at start
		at      time.Duration // when the other comes
		other   Item
		gathers bool
	}{
		{"no worker is free", 50 * ms, 10 * ms, Item{}, true},
		{"a worker is free", 0, 10 * ms, Item{}, false},
		{"a worker should be free soon", 12 * ms, 10 * ms, Item{}, true},
		{"a worker should be free by now", 50 * ms, 50 * ms, Item{}, false},
		{"it lacks decode alone", 50 * ms, 10 * ms, Item{Retry: true}, false},
		{"it goes before all", 50 * ms, 10 * ms, Item{Strict: 1}, false},
		{"it is bound to workers", 50 * ms, 10 * ms, Item{Lane: "w"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			core, _, _ := newLine(t, DefaultConfig(), "first")
			core.Drain(start, wait(c.free))
			now := start.Add(c.at)
			other := &Ticket[string]{Item: c.other}
			push(t, core, now, other)
			require.Equal(t, c.gathers, core.Gathers(other, now), "gathers")
			want := time.Time{}
			if c.gathers {
				want = now.Add(min(5*ms, c.free-c.at))
			}
			assert.Equal(t, want, core.NextDrain(), "the next drain")
			core.Drain(now, wait(c.free))
			assert.Zero(t, core.NextDrain(), "another is due after the drain")
		})
	}
	t.Run("the first", func(t *testing.T) {
		core, tickets, _ := newLine(t, DefaultConfig(), "first")
		assert.False(t, core.Gathers(tickets["first"], start), "one that comes to an empty queue gathers")
	})
	t.Run("a full queue", func(t *testing.T) {
		cfg := DefaultConfig()
		cfg.Limit = 2
		core, _, _ := newLine(t, cfg, "first")
		core.Drain(start, wait(time.Second))
		other := &Ticket[string]{}
		err := core.Push(other, start)
		assert.True(t, err == nil && !core.Gathers(other, start), "%v; the last place gathers: limits are checked at drains", err)
	})
}

// Those that gather are looked at 5 ms after the first of them came, in one drain, and none is lost that leaves meanwhile.
func TestTheQueueGathers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		begun, free, asked := time.Now(), time.Hour, []time.Duration(nil)
		q, err := New(DefaultConfig(), func(name string, _ Drain[string], now time.Time) (string, error) {
			mu.Lock()
			defer mu.Unlock()
			asked = append(asked, now.Sub(begun))
			if free == 0 {
				return name, nil
			}
			return "", &laterError{plan{starts: free, takes: time.Second, free: free}}
		}, func(string) {})
		require.NoError(t, err)
		ctx, leave := context.WithCancelCause(t.Context())
		left := errors.New("left")
		var all sync.WaitGroup
		for i := range 4 {
			all.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				in := t.Context()
				if i == 3 {
					in = ctx
				}
				_, err := q.Admit(in, Item{ID: fmt.Sprint(i)}, fmt.Sprint(i))
				assert.True(t, (err == nil || errors.Is(err, left)) && (i == 3) == (err != nil), "request %d: %v", i, err)
			})
		}
		time.Sleep(4 * time.Millisecond)
		synctest.Wait()
		assert.Len(t, asked, 1, "after 4 ms, requests were asked N after the first came")
		leave(left)
		time.Sleep(2 * time.Millisecond) // the second request came at 1 ms
		synctest.Wait()
		for _, at := range asked[1:] {
			assert.Equal(t, 6*time.Millisecond, at, "a request was asked N after the first came, want 6 ms")
		}
		assert.GreaterOrEqual(t, len(asked), 4, "of 4 looks")
		mu.Lock()
		free = 0
		mu.Unlock()
		q.Wake()
		all.Wait()
	})
}

// Where no worker is free, a drain asks no more than it grants and one besides, in each lane, however many wait. Where one is free,
// each is asked: it may be the one that takes that worker.
func TestOneDrainForABusyFleet(t *testing.T) {
	ids := make([]string, 100)
	for i := range ids {
		ids[i] = fmt.Sprint(i)
	}
	for _, c := range []struct {
		name          string
		free          time.Duration // of the first worker, once those are granted that can be
		grants, asked int
	}{
		{"nothing is granted", time.Second, 0, 1},
		{"three are", time.Second, 3, 4},
		{"a worker is free for others", 0, 3, 100},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := DefaultConfig()
			cfg.Target = 0 // or some drains would plan, which asks all
			core, _, _ := newLine(t, cfg, ids...)
			for range 2 { // as often as drains come
				asked := 0
				granted := core.Drain(start, func(_ *Ticket[string], d Drain[string]) error {
					if asked++; asked <= c.grants {
						return nil
					}
					return &laterError{plan{starts: time.Second, takes: time.Second, free: c.free}}
				})
				assert.True(t, granted == c.grants && asked == min(c.asked, granted+core.Len()),
					"asked %d and granted %d, want %d and %d; %d wait on", asked, granted, c.asked, c.grants, core.Len())
			}
		})
	}
}
