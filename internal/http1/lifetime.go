package http1

import (
	"context"
	"sync"
	"time"
)

// Lifetime is a [context.Context] with explicit Begin and Close, so that its memory may be pooled. Err returns the cause
// ([context.Cause]). It must not be used before Begin. It is safe for concurrent use, except Begin,
// Limit and Close, which belong to its holder.
type Lifetime struct {
	Refs   // of the holder, the parent and the timer
	parent context.Context
	link   Hook // in the parent's list

	mu       sync.Mutex
	cause    error         // nil before the end
	done     chan struct{} // nil until Done is called
	hooks    *Hook         // to run at the end
	deadline time.Time
	timer    *time.Timer // of Limit; reused
	limited  bool        // the timer is set
	late     error       // its cause
}

// Begin starts c, which ends with parent at the latest.
func (c *Lifetime) Begin(parent context.Context) {
	if c.free == nil {
		c.n = 1 // not pooled
	}
	c.Retain()
	c.parent, c.cause, c.done, c.deadline, c.limited = parent, nil, nil, time.Time{}, false
	after(parent, &c.link, nil, c)
}

// Limit ends c with cause after d. Call it at most once between Begin and Close.
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

// End ends c with cause, nil meaning context.Canceled. Only the first call counts.
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
		h.listed = false // from now on Stop does not touch it
	}
	c.mu.Unlock()
	for h := first; h != nil; {
		next := h.next // h's memory may be released by run
		h.run()
		h = next
	}
}

// Close ends c if it has not ended, detaches it from its parent, and releases it. Call it once.
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

// Done implements [context.Context]. It creates the channel.
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

// Deadline returns the earlier of Limit's and the parent's deadline.
func (c *Lifetime) Deadline() (time.Time, bool) {
	c.mu.Lock()
	own := c.deadline
	c.mu.Unlock()
	if by, ok := c.parent.Deadline(); ok && (own.IsZero() || by.Before(own)) {
		return by, true
	}
	return own, !own.IsZero()
}

// Value returns the parent's value, except for package context's own key: c has its own end.
func (c *Lifetime) Value(key any) any {
	if key == ownKey {
		return nil
	}
	return c.parent.Value(key)
}

// ownKey is the key by which [context.Cause] finds a context of package context.
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

// AfterFunc runs f on its own goroutine when c has ended; stop cancels that and reports whether it did. [context.AfterFunc] and
// contexts derived from c use it.
func (c *Lifetime) AfterFunc(f func()) (stop func() bool) {
	h := new(Hook)
	After(c, h, funcEnder(f))
	return h.Stop
}

type funcEnder func()

func (f funcEnder) Ended() { f() }

// Ender runs when a context has ended.
type Ender interface{ Ended() }

// Hook is a registered Ender of a context. Its holder embeds it.
type Hook struct {
	of         *Lifetime // nil for a context of another type
	listed     bool      // guarded by of's lock, like the list
	next, prev *Hook
	does       Ender
	child      *Lifetime   // ends with of's cause, if does is nil
	stop       func() bool // if of is nil; nil if the context never ends
}

// After runs does.Ended on its own goroutine when ctx has ended. h must not be reused before Stop has reported true.
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

// runs keeps c alive while does runs, which may read it.
func (c *Lifetime) runs(does Ender) {
	does.Ended()
	if c.free != nil {
		c.Release()
	}
}

// Stop cancels After. It reports false if the hook has run or is about to, or was stopped before.
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
