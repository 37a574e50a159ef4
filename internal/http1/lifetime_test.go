package http1_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/http1"
)

var errOver = errors.New("over")

type bell chan struct{}

func (b bell) Ended() { close(b) }

func begun(parent context.Context) *http1.Lifetime {
	c := new(http1.Lifetime)
	c.Begin(parent)
	return c
}

// A context ends with its parent, of whichever package that is, and what follows it gets the cause.
func TestEndsReachAll(t *testing.T) {
	for name, root := range map[string]func() (context.Context, func(error)){
		"ours": func() (context.Context, func(error)) {
			c := begun(context.Background())
			return c, c.End
		},
		"the library's": func() (context.Context, func(error)) {
			ctx, end := context.WithCancelCause(context.Background())
			return ctx, end
		},
		"the library's below ours": func() (context.Context, func(error)) {
			c := begun(context.Background())
			ctx, end := context.WithCancel(c)
			context.AfterFunc(ctx, end)
			return ctx, c.End
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				parent, end := root()
				c := begun(parent)
				grandchild, stop := context.WithCancel(c)
				defer stop()
				rings, stopped := make(bell), make(bell)
				var h, other http1.Hook
				http1.After(c, &h, rings)
				http1.After(c, &other, stopped)
				require.True(t, c.Err() == nil && context.Cause(c) == nil && other.Stop() && !other.Stop(), "ended before its end")
				end(errOver)
				<-rings
				<-c.Done()
				<-grandchild.Done()
				synctest.Wait()
				assert.ErrorIs(t, c.Err(), errOver)
				assert.Equal(t, c.Err(), context.Cause(c))
				assert.ErrorIs(t, context.Cause(grandchild), errOver)
				select {
				case <-stopped:
					t.Error("a hook that was stopped ran")
				default:
				}
				assert.False(t, h.Stop(), "it was stopped though it ran")
				c.Close()
			})
		})
	}
}

// Only the first end counts, and one that has ended runs hooks at once.
func TestFirstEndCounts(t *testing.T) {
	c := begun(context.Background())
	c.End(errOver)
	c.End(nil)
	rings := make(bell)
	http1.After(c, new(http1.Hook), rings)
	<-rings
	assert.ErrorIs(t, context.Cause(begun(c)), errOver)
	c = begun(context.Background())
	c.Close()
	assert.ErrorIs(t, c.Err(), context.Canceled)
}

// A limit ends it to the moment, the parent's deadline is its own, and so are the parent's values but for its end.
func TestLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		parent, cancel := context.WithTimeout(context.WithValue(context.Background(), key{}, 1), time.Hour)
		defer cancel()
		c := begun(parent)
		by, ok := c.Deadline()
		assert.True(t, ok && time.Until(by) == time.Hour && c.Value(key{}) == 1, "%v %v %v", by, ok, c.Value(key{}))
		for range 3 { // again and again
			began := time.Now()
			c.Limit(time.Minute, errOver)
			by, _ := c.Deadline()
			assert.Equal(t, time.Minute, time.Until(by))
			time.Sleep(time.Minute - 1)
			require.NoError(t, c.Err(), "ended early")
			c.Close()
			c.Begin(parent)
			c.Limit(time.Second, errOver)
			<-c.Done()
			d := time.Since(began)
			assert.True(t, d == time.Minute-1+time.Second && errors.Is(context.Cause(c), errOver), "%v %v", d, context.Cause(c))
			c.Close()
			c = begun(parent)
		}
		c.Close()
	})
}

// life is a pooled Lifetime.
type life struct{ http1.Lifetime }

func (*life) Reset() {}

// A pooled context is not ended by what was to end its memory before, be it the parent or the limit, in either order.
func TestPooledLifetimesEndOnce(t *testing.T) {
	var lives http1.Pool[life, *life]
	for i := range 1000 {
		parent := begun(context.Background())
		c, racing := lives.Take(), sync.WaitGroup{}
		c.Begin(parent)
		if i%2 == 0 {
			c.Limit(time.Duration(i)*time.Nanosecond, errOver)
		}
		racing.Go(func() { parent.End(errOver) })
		c.Close()
		next := lives.Take()
		next.Begin(context.Background())
		racing.Wait()
		require.NoError(t, next.Err(), "ended by an earlier parent or limit")
		next.Close()
	}
}

// What runs at the end of a lifetime may read it, as contexts of package context that derive from it do: its memory does
// not begin again before they have.
func TestHooksHoldTheirLifetime(t *testing.T) {
	var lives http1.Pool[life, *life]
	for range 1000 {
		c, ended := lives.Take(), make(chan error)
		c.Begin(context.Background())
		c.AfterFunc(func() {
			runtime.Gosched()
			ended <- c.Err()
		})
		derived, cancel := context.WithCancel(c)
		c.Close()
		next := lives.Take()
		next.Begin(context.Background())
		require.Error(t, <-ended, "its end is another's beginning")
		<-derived.Done()
		cancel()
		next.Close()
	}
}

// Nothing is allocated for a lifetime whose channel nobody requests, also one that another type embeds.
func TestNothingIsAllocated(t *testing.T) {
	var root, c http1.Lifetime
	var embeds struct{ http1.Lifetime }
	var h http1.Hook
	does := make(bell)
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		root.Begin(context.Background())
		c.Begin(&root)
		c.Limit(time.Hour, errOver)
		http1.After(&c, &h, does)
		assert.True(t, h.Stop(), "not stopped")
		embeds.Begin(&c)
		http1.After(&embeds, &h, does)
		assert.True(t, h.Stop(), "not stopped")
		embeds.Close()
		c.Close()
		root.Close()
	}))
}
