package queue

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/stretchr/testify/require"

	"github.com/stretchr/testify/assert"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// room is what requests book: so many places. It checks what a reserve func may rely on.
type room struct {
	t    testing.TB
	q    *Queue[*caller, *place]
	free atomic.Int64
	busy atomic.Bool // reserve runs
}

// caller is a request of the tests.
type caller struct {
	at      string // the worker it is bound to
	reserve func(now time.Time, d Drain[*caller]) (*place, error)
}

// place is a booking; one without a room is not counted.
type place struct {
	room     *room
	released atomic.Bool
}

func newRoom(t testing.TB, places int, cfg Config) *room {
	q, err := New(cfg, func(c *caller, d Drain[*caller], now time.Time) (*place, error) { return c.reserve(now, d) }, (*place).Release)
	require.NoError(t, err)
	r := &room{t: t, q: q}
	r.free.Store(int64(places))
	return r
}

// grow makes room for so many more, and wakes the queue.
func (r *room) grow(places int64) { r.free.Add(places); r.q.Wake() }

func (r *room) reserve(time.Time, Drain[*caller]) (*place, error) {
	assert.True(r.t, r.busy.CompareAndSwap(false, true), "two reserve funcs run at once")
	defer r.busy.Store(false)
	if r.free.Load() <= 0 {
		return nil, fmt.Errorf("no place: %w", ErrWait)
	}
	r.free.Add(-1)
	return &place{room: r}, nil
}

func (p *place) Release() {
	if p.room == nil {
		return
	}
	assert.False(p.room.t, p.released.Swap(true), "a place was released twice")
	p.room.free.Add(1)
	p.room.q.Wake()
}

// admit has a goroutine wait for a place, and returns what comes of it.
func (r *room) admit(ctx context.Context, it Item) <-chan result {
	return r.admitWith(ctx, it, r.reserve)
}

func (r *room) admitWith(ctx context.Context, it Item, reserve func(time.Time, Drain[*caller]) (*place, error)) <-chan result {
	c := make(chan result, 1)
	go func() {
		held, err := r.q.Admit(ctx, it, &caller{at: it.Lane, reserve: reserve})
		c <- result{held, err}
	}()
	synctest.Wait()
	return c
}

type result struct {
	held *place
	err  error
}

// release gives back what was granted.
func (got result) release(t *testing.T) {
	t.Helper()
	require.NoError(t, got.err)
	got.held.Release()
}

// quiet checks that nothing is left behind in an unused queue.
func (r *room) quiet(places int) {
	r.t.Helper()
	r.q.mu.Lock()
	defer r.q.mu.Unlock()
	assert.True(r.t, !r.q.draining && !r.q.core.draining && r.q.pending.Load() == 0 && r.q.core.Len() == 0 && r.q.core.kept == 0 &&
		r.q.core.keptBytes == 0,
		"left behind: draining %t, %d pending, %d waiting", r.q.draining, r.q.pending.Load(), r.q.core.Len())
	assert.Equal(r.t, int64(places), r.free.Load(), "of %d places are free", places)
}

// TestAdmitAtOnce takes no goroutine, and would hang if reserve were called under the lock.
func TestAdmitAtOnce(t *testing.T) {
	r := newRoom(t, 1, DefaultConfig())
	before := runtime.NumGoroutine()
	held, err := r.q.Admit(t.Context(), Item{}, &caller{reserve: func(now time.Time, d Drain[*caller]) (*place, error) {
		assert.Equal(t, 1, r.q.Stats().Waiting)
		return r.reserve(now, d)
	}})
	require.NoError(t, err)
	assert.LessOrEqual(t, runtime.NumGoroutine(), before)
	held.Release()
	s := r.q.Stats()
	assert.True(t, s.GrantedTotal == 1 && s.Waiting == 0, "stats %+v", s)
	r.quiet(1)
}

var errBored = errors.New("bored")

func TestWhoLeavesIsOutAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := DefaultConfig()
		cfg.Limit = 1
		r := newRoom(t, 0, cfg)
		ctx, cancel := context.WithCancelCause(t.Context())
		left := r.admit(ctx, Item{})
		full := <-r.admit(t.Context(), Item{})
		if fullErr, ok := errors.AsType[*FullError](full.err); !ok || fullErr.Limit != LimitRequests || fullErr.RetryAfter < time.Second {
			t.Errorf("the second of one got %v", full.err)
		}
		cancel(errBored)
		assert.Equal(t, result{err: errBored}, <-left, "the context's cause")
		s := r.q.Stats()
		assert.True(t, s.Waiting == 0 && s.CancelledTotal == 1 && s.RefusedTotal == 1, "stats after it left: %+v", s)
		assert.Equal(t, result{err: errBored}, <-r.admit(ctx, Item{}), "one that had left before it came")
		next := r.admit(t.Context(), Item{})
		time.Sleep(3 * time.Second)
		room := time.Now()
		r.grow(1)
		(<-next).release(t)
		assert.Zero(t, time.Since(room), "it was granted N after there was room")
		r.quiet(1)
	})
}

// TestNextIsTriedWhenTheFirstLeaves: the first, a retry or not, needs more room than there is, the one behind it does
// not.
func TestNextIsTriedWhenTheFirstLeaves(t *testing.T) {
	for _, c := range []struct {
		name string
		it   Item
		goes func(cancel context.CancelCauseFunc)
		err  error
	}{
		{"it leaves", Item{}, func(cancel context.CancelCauseFunc) { cancel(errBored) }, errBored},
		{"it expires", Item{}, nil, ErrExpired},
		{"a retry expires", Item{Retry: true}, nil, ErrExpired},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRoom(t, 1, DefaultConfig())
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				came := time.Now()
				big := r.admitWith(ctx, c.it, func(time.Time, Drain[*caller]) (*place, error) { return nil, ErrWait })
				time.Sleep(time.Second)
				small := r.admit(t.Context(), Item{})
				assert.Equal(t, 2, r.q.Stats().Waiting, "none overtakes")
				if c.goes != nil {
					c.goes(cancel)
				}
				got := <-big
				assert.ErrorIs(t, got.err, c.err)
				assert.Nil(t, got.held)
				if s := r.q.Stats(); c.goes == nil && (time.Since(came) != time.Minute || s.ExpiredTotal != 1 || s.CancelledTotal != 0) {
					t.Errorf("after %v: %+v", time.Since(came), s)
				}
				(<-small).release(t)
				r.quiet(1)
			})
		})
	}
}

func TestAnErrorEndsTheRequestAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRoom(t, 0, DefaultConfig())
		turns := 0
		bad := r.admitWith(t.Context(), Item{}, func(time.Time, Drain[*caller]) (*place, error) {
			if turns++; turns == 1 {
				return nil, ErrWait
			}
			return &place{room: r}, errNoFit // whatever comes beside an error is no booking
		})
		good := r.admit(t.Context(), Item{})
		r.grow(1)
		assert.Equal(t, result{err: errNoFit}, <-bad)
		(<-good).release(t)
		r.quiet(1)
	})
}

// TestDrainsAreShared: Wake asks maxDriven tickets and leaves the next to its own caller. The question after
// those does not return until Wake has: a deadlock, if Wake asked it.
func TestDrainsAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRoom(t, 0, DefaultConfig())
		const callers = 5 * maxDriven
		woken := make(chan struct{})
		asked := 0 // by one at a time
		var all sync.WaitGroup
		for range callers {
			all.Go(func() {
				_, err := r.q.Admit(t.Context(), Item{}, &caller{reserve: func(now time.Time, d Drain[*caller]) (*place, error) {
					if r.free.Load() > 0 {
						if asked++; asked > maxDriven {
							<-woken
						}
					}
					return r.reserve(now, d)
				}})
				if err != nil { // else it keeps its place for good
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		r.grow(callers)
		close(woken)
		all.Wait()
		r.quiet(0)
	})
}

func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRoom(t, 0, DefaultConfig())
		waiting := r.admit(t.Context(), Item{})
		r.q.Close()
		r.q.Close()
		r.free.Store(1)
		for _, c := range []<-chan result{waiting, r.admit(t.Context(), Item{}), r.admit(t.Context(), Item{Retry: true})} {
			assert.ErrorIs(t, (<-c).err, ErrClosed)
		}
		r.quiet(1)
	})
}

func TestAPanicIsItsOwnersAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRoom(t, 0, DefaultConfig())
		turns := 0
		raised := make(chan any, 1)
		go func() {
			defer func() { raised <- recover() }()
			_, _ = r.q.Admit(t.Context(), Item{}, &caller{reserve: func(time.Time, Drain[*caller]) (*place, error) {
				if turns++; turns == 1 {
					return nil, ErrWait
				}
				panic("oops")
			}})
		}()
		synctest.Wait()
		behind := r.admit(t.Context(), Item{})
		r.grow(1) // asks the panicking one, in this goroutine
		thrown, ok := (<-raised).(*PanicError)
		assert.True(t, ok && thrown.Value == "oops" && len(thrown.Stack) != 0 && thrown.Error() != "",
			"its owner saw %v", thrown)
		(<-behind).release(t)
		r.quiet(1)
	})
}

func TestWakeOfAnIdleQueueIsFree(t *testing.T) {
	r := newRoom(t, 1, DefaultConfig())
	r.q.mu.Lock() // Wake would hang on it
	defer r.q.mu.Unlock()
	assert.EqualValues(t, 0, testing.AllocsPerRun(100, r.q.Wake), "allocations")
}
