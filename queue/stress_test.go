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

// TestManyCallers has callers come, wait, leave and release all at once: every place is there in the end, no caller
// hangs, and nothing is booked twice. Where there is one place, and no caller leaves, one release without effect would
// have all hang. Real time, so that nothing waits for anything but the queue.
func TestManyCallers(t *testing.T) {
	for name, c := range map[string]struct {
		callers, rounds, places, limit int
		leaves                         func(rng *rand.Rand) bool
	}{
		"some leave":  {100, 60, 3, 60, func(rng *rand.Rand) bool { return rng.IntN(3) == 0 }},
		"none leaves": {2 * maxDriven, 300, 1, DefaultConfig().Limit, func(*rand.Rand) bool { return false }},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := DefaultConfig()
			cfg.Limit, cfg.Classes = c.limit, families(3, 2)
			r := newRoom(t, c.places, cfg)
			var granted, refused, left atomic.Int64
			var all sync.WaitGroup
			for number := range c.callers {
				all.Go(func() {
					rng := rand.New(rand.NewPCG(11, uint64(number)))
					for range c.rounds {
						ctx, cancel := context.WithCancelCause(context.Background())
						leaves := c.leaves(rng)
						if leaves {
							time.AfterFunc(time.Duration(rng.IntN(300))*time.Microsecond, func() { cancel(errBored) })
						}
						held, err := r.q.Admit(ctx, Item{Priority: float64(rng.IntN(4)), Retry: rng.IntN(9) == 0, Lane: someLane(number),
							Class: number % 2}, &caller{reserve: r.reserve})
						switch {
						case err == nil:
							granted.Add(1)
							runtime.Gosched()
							held.Release()
						case isFull(err):
							refused.Add(1)
						case errors.Is(err, errBored) && leaves:
							left.Add(1)
						default:
							t.Error(err)
						}
						cancel(nil)
					}
				})
			}
			all.Wait()
			total := int64(c.callers * c.rounds)
			assert.Equal(t, total, granted.Load()+refused.Load()+left.Load(), "granted, refused and left")
			assert.True(t, granted.Load() > 0 && (c.limit == 60 || granted.Load() == total), "%d granted of %d", granted.Load(), total)
			r.quiet(c.places)
		})
	}
}
