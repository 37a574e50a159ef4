package http1

import (
	"context"
	"sync"
	"time"
)

// Lifetime is a [context.Context] that its holder begins and closes, and that may be pooled memory. Its Err and its
// cause ([context.Cause]) are the same. It must not be used before Begin. It is safe for concurrent use, except Begin,
// Limit and Close, which belong to its holder.
type Lifetime struct {
	Refs   // of the holder; of the parent and the timer, which may be about to end it
	parent context.Context
	link   Hook // in the parent's list

	mu       sync.Mutex
	cause    error         // of the end, nil before it
	done     chan struct{} // nil until Done is called
	hooks    *Hook         // to run at the end
	deadline time.Time
	timer    *time.Timer // of Limit; kept for the next one
	limited  bool        // the timer was set
	late     error       // its cause
}

// Begin begins c, which ends with parent at the latest.
func (c *Lifetime) Begin(parent context.Context) {
	if c.free == nil {
		c.n = 1 // of no pool
	}
	c.Retain()
	c.parent, c.cause, c.done, c.deadline, c.limited = parent, nil, nil, time.Time{}, false
	after(parent, &c.link, nil, c)
}

// Limit ends c with cause after d, unless it has ended by then. It is called at most once between Begin and Close.
func (c *Lifetime) Limit(d time.Duration, cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline, c.late, c.limited = time.Now().Add(d), cause, true
	c.Retain()
	if c.timer == nil {
		c.timer = time.AfterFunc(d, c.expire)
	} else {
		c.timer.Reset(d)
	}
}

func (c *Lifetime) expire() {
	c.mu.Lock()
	late := c.late
	c.mu.Unlock()
	c.End(late)
	c.Release()
}

// End ends c with cause, or with context.Canceled where that is nil. Only the first end counts.
func (c *Lifetime) End(cause error) {
	if cause == nil {
		cause = context.Canceled
	}
	c.mu.Lock()
	if c.cause != nil {
		c.mu.Unlock()
		return
	}
	c.cause = cause
	if c.done != nil {
		close(c.done)
	}
	first := c.hooks
	c.hooks = nil
	for h := first; h != nil; h = h.next {
		h.listed = false // from here on its holder leaves it alone
	}
	c.mu.Unlock()
	for h := first; h != nil; {
		next := h.next // h's memory may be released as it runs
		h.run()
		h = next
	}
}

// Close ends c, if it has not ended, removes it from its parent, and releases it. The holder calls it once.
func (c *Lifetime) Close() {
	c.End(nil)
	if c.link.Stop() {
		c.Release() // the parent's
	}
	if c.limited && c.timer.Stop() {
		c.Release() // the timer's
	}
	c.Release()
}

// Done is [context.Context]'s. The channel is made here.
func (c *Lifetime) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done == nil {
		c.done = make(chan struct{})
		if c.cause != nil {
			close(c.done)
		}
	}
	return c.done
}

// Err returns the cause of c's end, nil before.
func (c *Lifetime) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause
}

// Deadline is that of Limit or the parent's, whichever is earlier.
func (c *Lifetime) Deadline() (time.Time, bool) {
	c.mu.Lock()
	own := c.deadline
	c.mu.Unlock()
	if by, ok := c.parent.Deadline(); ok && (own.IsZero() || by.Before(own)) {
		return by, true
	}
	return own, !own.IsZero()
}

// Value returns the parent's value, except for package context's own keys: c has its own end.
func (c *Lifetime) Value(key any) any {
	if key == ownKey {
		return nil
	}
	return c.parent.Value(key)
}

// ownKey is the key by which [context.Cause] finds a context of its own package.
var ownKey = func() any {
	a := &asked{Context: context.Background()}
	_ = context.Cause(a)
	return a.key
}()

// asked records the requested key.
type asked struct {
	context.Context
	key any
}

func (a *asked) Value(key any) any {
	a.key = key
	return nil
}

// AfterFunc runs f on a goroutine of its own when c has ended; stop cancels that and reports whether it did.
// [context.AfterFunc] and contexts derived from c use it.
func (c *Lifetime) AfterFunc(f func()) (stop func() bool) {
	h := new(Hook)
	After(c, h, funcEnder(f))
	return h.Stop
}

type funcEnder func()

func (f funcEnder) Ended() { f() }

// Ender is something to be done when a context has ended.
type Ender interface{ Ended() }

// Hook is an Ender's place among those that wait for a context's end. Its holder embeds it.
type Hook struct {
	of         *Lifetime // nil where the context is none of this package
	listed     bool      // under of's lock, as the list
	next, prev *Hook
	does       Ender
	child      *Lifetime   // which ends with of's cause, where does is nil
	stop       func() bool // where of is nil; nil where the context has no end
}

// After runs does.Ended on a goroutine of its own when ctx has ended. The hook h must be in no other use until Stop has
// reported true.
func After(ctx context.Context, h *Hook, does Ender) { after(ctx, h, does, nil) }

// lifetime returns c, also of a type that embeds it.
func (c *Lifetime) lifetime() *Lifetime { return c }

func after(ctx context.Context, h *Hook, does Ender, child *Lifetime) {
	*h = Hook{does: does, child: child}
	own, ok := ctx.(interface{ lifetime() *Lifetime })
	if !ok {
		if ctx.Done() != nil {
			h.stop = context.AfterFunc(ctx, func() {
				if child != nil {
					child.End(context.Cause(ctx))
					child.Release()
				} else {
					does.Ended()
				}
			})
		}
		return
	}
	of := own.lifetime()
	h.of = of
	of.mu.Lock()
	if of.cause != nil {
		of.mu.Unlock()
		h.run()
		return
	}
	if h.next = of.hooks; h.next != nil {
		h.next.prev = h
	}
	of.hooks, h.listed = h, true
	of.mu.Unlock()
}

func (h *Hook) run() {
	if h.child != nil {
		h.child.End(h.of.Err())
		h.child.Release()
		return
	}
	if h.of.free != nil {
		h.of.Retain()
	}
	go h.of.runs(h.does)
}

// runs holds c while what waits for its end, and may read it, runs.
func (c *Lifetime) runs(does Ender) {
	does.Ended()
	if c.free != nil {
		c.Release()
	}
}

// Stop cancels After. It reports false if the hook has run or is about to, or Stop was called before.
func (h *Hook) Stop() bool {
	if h.of == nil {
		return h.stop == nil || h.stop()
	}
	h.of.mu.Lock()
	defer h.of.mu.Unlock()
	if !h.listed {
		return false
	}
	h.listed = false
	if h.prev != nil {
		h.prev.next = h.next
	} else {
		h.of.hooks = h.next
	}
	if h.next != nil {
		h.next.prev = h.prev
	}
	return true
}
