package queue

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// someLane spreads callers over the main line and two lanes.
func someLane(number int) string { return []string{"", "a", "b"}[number%3] }

// TestManyCallers has callers come, wait, leave and release all at once: every place is there in the end, nobody
// hangs, and nothing is booked twice. Real time, so that nothing waits for anything but the queue.
func TestManyCallers(t *testing.T) {
	const callers, rounds, places = 100, 60, 3
	cfg := DefaultConfig()
	cfg.Limit, cfg.Classes = 60, families(3, 2)
	r := newRoom(t, places, cfg)
	var granted, refused, left atomic.Int64
	var all sync.WaitGroup
	for number := range callers {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(11, uint64(number)))
			for range rounds {
				ctx, cancel := context.WithCancelCause(context.Background())
				leave := rng.IntN(3) == 0
				if leave {
					time.AfterFunc(time.Duration(rng.IntN(300))*time.Microsecond, func() { cancel(errBored) })
				}
				held, err := r.q.Admit(ctx, Item{Priority: float64(rng.IntN(4)), Retry: rng.IntN(9) == 0, Lane: someLane(number), Class: number % 2}, &caller{reserve: r.reserve})
				switch {
				case err == nil:
					granted.Add(1)
					runtime.Gosched()
					held.Release()
				case isFull(err):
					refused.Add(1)
				case errors.Is(err, errBored) && leave:
					left.Add(1)
				default:
					t.Error(err)
				}
				cancel(nil)
			}
		})
	}
	all.Wait()
	if total := granted.Load() + refused.Load() + left.Load(); total != callers*rounds || granted.Load() == 0 {
		t.Errorf("%d granted, %d refused, %d left", granted.Load(), refused.Load(), left.Load())
	}
	r.quiet(places)
}

// TestNoWakeIsLost has every caller come back until it has been served often enough, with one place and nobody
// who leaves: one release that nobody acts on, and all hang.
func TestNoWakeIsLost(t *testing.T) {
	const callers, rounds = 2 * maxTurns, 300
	cfg := DefaultConfig()
	cfg.Classes = families(3, 2)
	r := newRoom(t, 1, cfg)
	var all sync.WaitGroup
	for number := range callers {
		all.Go(func() {
			for range rounds {
				held, err := r.q.Admit(context.Background(), Item{Lane: someLane(number), Class: number % 2}, &caller{reserve: r.reserve})
				if !assert.NoError(t, err) {
					return
				}
				held.Release()
			}
		})
	}
	all.Wait()
	assert.EqualValues(t, callers*rounds, r.q.Stats().GrantedTotal)
	r.quiet(1)
}
