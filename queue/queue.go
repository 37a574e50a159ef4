// Package queue holds requests until there is room for them, and decides which is next. Room is what the caller's reserve
// func can book. [Core] decides, without lock, goroutine or clock; callers wait in [Queue], its shell. DESIGN.md has the
// reasons.
package queue

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxDriven is how many tickets of others a caller tries in one drain before the next in line continues it. It
	// delays the caller's stream by about 10 µs a ticket; a hand-over costs a goroutine's wake-up.
	maxDriven = 16
	// maxSpare is how many waiters are kept for their memory.
	maxSpare = 1024
)

// Drain is the state of a drain when it reserves for one request.
type Drain[R any] struct {
	// Ahead are earlier requests of lanes ([Item.Lane]) that wait in this drain: Reserve leaves their workers to them.
	// It is valid until Reserve returns.
	Ahead []R
	// Round numbers the drain, from 1: plans hold within one.
	Round uint64
	// Planning reports that the drain only plans: Reserve returns the [Later] of the worker to wait for and grants
	// nothing. Requests that would be late are tried first, and the drain continues in the best order.
	Planning bool
	// Yield is the prompt length in tokens of a request at another gateway that goes first, 0 for none. If Reserve
	// leaves the room to it, it returns [ErrYield].
	Yield int
}

// Reserve books a grant for request r, or returns an error: [ErrWait] and a [Later] keep r in the queue, any other ends
// it.
//
// Reserve may be called many times for a request, on another caller's goroutine, and may end after [Queue.Admit] has
// returned; but never by two callers at once, nor under a lock of the queue. It must not wait, and must not call
// [Queue.Wake], not even by a release: that would loop.
type Reserve[R, G any] func(r R, d Drain[R], now time.Time) (G, error)

// PanicError is the panic of [Queue.Admit] if its reserve func panicked, on any goroutine.
type PanicError struct {
	Value any
	Stack []byte // of the goroutine in which reserve ran
}

func (e *PanicError) Error() string {
	return fmt.Sprintf("queue: a reserve func panicked: %v", e.Value)
}

// Queue holds requests of type R until they are granted a G. It is safe for concurrent use and has no goroutine: a caller
// that changes something drains, one at a time; others set again.
type Queue[R, G any] struct {
	reserve Reserve[R, G]
	release func(G)
	pending atomic.Int64 // callers in Admit; with none, Wake has nothing to do

	mu       sync.Mutex // guards all below; not held during callbacks
	core     *Core[*waiter[R, G]]
	onHead   func()
	waker    *time.Timer // at Core.NextDrain; nil before the first
	draining bool        // a caller drains, or will continue a drain (waiter.drive)
	again    bool        // something changed since the last ticket was tried
	closed   bool
	ahead    []R // memory for Drain.Ahead
	spare    []*waiter[R, G]
}

// waiter is a caller in Admit. Queue.mu guards it.
type waiter[R, G any] struct {
	ticket  Ticket[*waiter[R, G]]
	request R

	trying bool // reserve is running
	done   bool // the ticket has ended, with grant or err
	drive  bool // this caller continues the drain
	parked bool // its goroutine waits for wake
	grant  G
	err    error

	wake  chan struct{} // holds at most one; nil until the first wait
	timer *time.Timer
}

// New returns an empty queue, or the error of [Config.Validate]. release releases a grant whose request has left.
func New[R, G any](cfg Config, reserve Reserve[R, G], release func(G)) (*Queue[R, G], error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	q := &Queue[R, G]{reserve: reserve, release: release, onHead: cfg.OnHead}
	core, err := NewCore(cfg, time.Now(), func(t *Ticket[*waiter[R, G]], err error) {
		w := t.Value
		w.done, w.err = true, err
		w.rouse()
	})
	if err != nil {
		return nil, err
	}
	q.core = core
	return q, nil
}

// Admit waits until [Reserve] has booked what r needs, and returns the grant. Otherwise it returns a [*FullError],
// ErrExpired, ErrClosed, the context's cause, or Reserve's error.
func (q *Queue[R, G]) Admit(ctx context.Context, it Item, r R) (G, error) {
	if ctx.Err() != nil {
		var none G
		return none, context.Cause(ctx)
	}
	q.pending.Add(1)
	grant, err := q.admit(ctx, it, r)
	q.pending.Add(-1)
	if thrown, ok := errors.AsType[*PanicError](err); ok {
		panic(thrown)
	}
	return grant, err
}

// Wake retries waiting requests after a first token, a release or a change of a worker. Without waiting callers it is an
// atomic load; otherwise it may drain on the caller's goroutine.
func (q *Queue[R, G]) Wake() {
	if q.pending.Load() == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.core.Len() > 0 {
		q.drain(time.Now())
	}
}

// Heads returns the heads to publish to other gateways: see [Core.Heads].
func (q *Queue[R, G]) Heads() []Head {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.core.Heads()
}

// UpdatePeerHeads sets the heads of another gateway's queue, nil for none. It reports whether to wake the queue.
func (q *Queue[R, G]) UpdatePeerHeads(name string, heads []Head) (wake bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.core.UpdatePeerHeads(name, heads, time.Now())
}

// Close ends every waiting and future request with ErrClosed.
func (q *Queue[R, G]) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.core.endAll(ErrClosed, time.Now())
}

// Stats returns the current state and the totals.
func (q *Queue[R, G]) Stats() Stats {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.core.Stats(time.Now())
}

// Line returns a snapshot of the waiting requests. It visits each of them.
func (q *Queue[R, G]) Line() Line {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.core.Line(time.Now())
}

func (q *Queue[R, G]) admit(ctx context.Context, it Item, r R) (grant G, err error) {
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return grant, ErrClosed
	}
	w := q.borrow()
	w.ticket.Item, w.request = it, r
	now := time.Now()
	if err := q.core.Push(&w.ticket, now); err != nil {
		q.recycle(w)
		q.mu.Unlock()
		return grant, err
	}
	if q.core.Gathers(&w.ticket, now) {
		q.wakeLater(now)
	} else {
		q.drain(now) // usually grants w at once
	}
	var left error
	waited := false
	for !w.done && left == nil {
		if w.drive {
			q.continueDrain(w)
		} else {
			left, waited = q.wait(ctx, w), true
		}
	}
	if !w.done {
		q.leave(w, left)
	}
	if w.drive { // a drain must be continued before its caller leaves
		q.continueDrain(w)
	}
	grant, err = w.grant, w.err
	q.recycle(w)
	q.mu.Unlock()

	if waited {
		q.headed(&it)
	}
	if left != nil && err == nil && ctx.Err() != nil { // granted while it left
		q.release(grant)
		q.Wake()
		var none G
		return none, context.Cause(ctx)
	}
	return grant, err
}

// wait parks the caller until w is woken, and returns nil, or until it leaves, and returns why.
func (q *Queue[R, G]) wait(ctx context.Context, w *waiter[R, G]) error {
	if w.wake == nil {
		w.wake = make(chan struct{}, 1)
		w.timer = time.NewTimer(time.Until(q.core.deadline(&w.ticket)))
	} else {
		w.timer.Reset(time.Until(q.core.deadline(&w.ticket)))
	}
	w.parked = true
	q.mu.Unlock()
	q.headed(&w.ticket.Item)
	var left error
	select {
	case <-w.wake:
	case <-ctx.Done():
		left = context.Cause(ctx)
	case <-w.timer.C:
		left = ErrExpired
	}
	w.timer.Stop()
	q.mu.Lock()
	w.parked = false
	return left
}

// headed runs OnHead for a request that starts or stops waiting.
func (q *Queue[R, G]) headed(it *Item) {
	if it.Strict > 0 && q.onHead != nil {
		q.onHead()
	}
}

// leave removes w, whose caller leaves. If it was first in its lane, those behind it may need less room.
func (q *Queue[R, G]) leave(w *waiter[R, G], why error) {
	now := time.Now()
	lost := q.core.lost
	q.core.Expire(now)
	q.core.cancel(&w.ticket, now) // if it did not expire
	w.done, w.err = true, why
	if q.core.lost != lost && q.core.Len() > 0 {
		q.drain(now)
	}
}

// drain drains, unless another caller does, which then tries once more. It is called and returns with q.mu locked.
func (q *Queue[R, G]) drain(now time.Time) {
	q.again = true
	if !q.draining {
		q.draining = true
		q.run(nil, now)
	}
}

func (q *Queue[R, G]) continueDrain(w *waiter[R, G]) {
	w.drive = false
	q.run(w, time.Now())
}

// run drains for the caller that set q.draining, or for me, to which the drain was handed. It unlocks q.mu during
// reserve. Reading the clock is slow on some machines, so a request that is granted at once costs only its caller's
// reading.
func (q *Queue[R, G]) run(me *waiter[R, G], now time.Time) {
	for n := 0; q.core.Len() > 0; n++ {
		if n > 0 {
			now = time.Now()
		}
		t := q.core.next(now)
		if t == nil {
			if !q.again {
				break
			}
			q.again = false // changes since its first ticket
			q.core.resume()
			continue
		}
		w := t.Value
		if n >= maxDriven && w != me {
			w.drive = true
			w.rouse()
			return
		}
		if !q.core.holding && len(q.core.passed) == 0 {
			q.again = false // no ticket of this drain has missed a change
		}
		clear(q.ahead)
		q.ahead = q.ahead[:0]
		for _, o := range q.core.ahead(t) {
			q.ahead = append(q.ahead, o.request)
		}
		d := Drain[R]{q.ahead, q.core.round, q.core.planning, q.core.way}
		w.trying = true
		q.mu.Unlock()
		grant, err := q.try(w.request, d, now)
		q.mu.Lock()
		w.trying = false

		if q.core.waitsOn(t, err, now) {
			continue
		}
		switch left := !q.core.finish(t, err, now); {
		case err != nil:
		case left: // its caller, during reserve
			q.mu.Unlock()
			q.release(grant)
			q.mu.Lock()
		default:
			w.grant = grant
		}
	}
	if q.core.Len() > 0 {
		now = time.Now() // other callers may have used a later time
	}
	q.core.stop(now)
	q.draining = false
	q.wakeLater(now)
}

// wakeLater schedules the next drain that is due by time alone.
func (q *Queue[R, G]) wakeLater(now time.Time) {
	switch at := q.core.NextDrain(); {
	case at.IsZero():
	case q.waker == nil:
		q.waker = time.AfterFunc(at.Sub(now), q.Wake)
	default:
		q.waker.Reset(at.Sub(now))
	}
}

func (q *Queue[R, G]) borrow() *waiter[R, G] {
	last := len(q.spare) - 1
	if last < 0 {
		w := new(waiter[R, G])
		w.ticket.Value = w
		return w
	}
	w := q.spare[last]
	q.spare = q.spare[:last]
	return w
}

// recycle keeps w for the next caller, unless a drain still uses it.
func (q *Queue[R, G]) recycle(w *waiter[R, G]) {
	if w.trying || len(q.spare) >= maxSpare {
		return
	}
	select {
	case <-w.wake:
	default:
	}
	*w = waiter[R, G]{ticket: Ticket[*waiter[R, G]]{Value: w}, wake: w.wake, timer: w.timer}
	q.spare = append(q.spare, w)
}

// rouse wakes w's goroutine, if it waits.
func (w *waiter[R, G]) rouse() {
	if w.parked {
		w.parked = false
		w.wake <- struct{}{}
	}
}

// try calls reserve for r. A panic ends the request and not the drain, which may be another caller's; Admit panics
// again. The caller drains, so no other goroutine writes d.Ahead.
func (q *Queue[R, G]) try(r R, d Drain[R], now time.Time) (grant G, err error) {
	returned := false
	defer func() {
		if !returned {
			err = &PanicError{Value: recover(), Stack: debug.Stack()}
		}
	}()
	grant, err = q.reserve(r, d, now)
	returned = true
	return grant, err
}
