// Package queue holds requests until there is room for them, and decides which is next. A request waits before
// prefill and never after it. Room is what the caller's reserve func can book. [Core] decides, without lock,
// goroutine or clock; callers wait in [Queue], its shell. DESIGN.md has the reasons.
package queue

import (
	"context"
	"errors"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxTurns is how many tickets of others a caller asks in one drain before the next in line continues it. The
	// caller's stream stands still meanwhile, about 10 µs a ticket; a hand-over costs a goroutine's wake-up.
	maxTurns = 16
	// maxSpare is how many waiters are kept for their memory.
	maxSpare = 1024
)

// Drain is the state of a drain when it reserves for one request.
type Drain[R any] struct {
	// Ahead are the requests of lanes ([Item.Lane]) that go before it and wait in this drain: Reserve leaves to them what
	// they wait for. It is valid until Reserve returns.
	Ahead []R
	// Round numbers the drain, from 1: plans hold within one.
	Round uint64
	// Planning reports that the drain only plans: Reserve returns the [Later] of the worker to wait for and grants none.
	// Requests that would be late by that are tried before the order, and the drain continues in the best order.
	Planning bool
	// Yield is the prompt's length in tokens of a request at another gateway that goes first; 0 for none. If room is left
	// to it, Reserve returns [ErrYield].
	Yield int
}

// Reserve books a grant for request r, or returns an error: [ErrWait] and a [Later] keep r in the queue, any other ends it.
//
// Reserve may be called many times for a request, on another caller's goroutine, and may end after [Queue.Admit] has
// returned; but never by two callers at once, nor under a lock of the queue. It must not wait, and must not call
// [Queue.Wake], not even by a release: it would be asked again without end.
type Reserve[R, G any] func(r R, d Drain[R], now time.Time) (G, error)

// PanicError is what [Queue.Admit] panics with when its reserve func did, in whichever goroutine that was.
type PanicError struct {
	Value any
	Stack []byte // of the goroutine in which reserve ran
}

func (e *PanicError) Error() string { return "queue: a reserve func panicked" }

// Queue is where requests of type R wait until they are granted a G. It is safe for concurrent use and has no
// goroutine: the caller that changes something drains, one at a time; the others set again.
type Queue[R, G any] struct {
	reserve Reserve[R, G]
	release func(G)
	pending atomic.Int64 // callers in Admit; with none, Wake has nothing to do

	mu       sync.Mutex // guards all below; nothing that is handed in is called under it
	core     *Core[*waiter[R, G]]
	onHead   func()
	waker    *time.Timer // at Core.NextDrain; nil until there is one
	draining bool        // a caller drains, or is to continue one (waiter.drive)
	again    bool        // something changed since the last ticket was asked
	closed   bool
	ahead    []R // memory for Reserve's
	spare    []*waiter[R, G]
}

// waiter is a caller in Admit. Queue.mu guards it.
type waiter[R, G any] struct {
	ticket  Ticket[*waiter[R, G]]
	request R

	asked  bool // reserve is running
	done   bool // the ticket has ended, with grant or err
	drive  bool // the drain is this caller's to continue
	parked bool // its goroutine waits for wake
	grant  G
	err    error

	wake  chan struct{} // holds at most one; nil until the first wait
	timer *time.Timer
}

// New returns an empty queue, or the error of [Config.Validate]. reserve decides who is granted what, and release
// takes back a grant whose request has left meanwhile.
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
// ErrExpired, ErrClosed, the context's cause, or the error with which Reserve ended r. The grant of a caller that
// leaves is released.
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

// Wake has the queue look again whether there is room: after a first token, a release, or a change of a worker. It is
// an atomic load when no caller waits, and may drain in the caller's goroutine otherwise.
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

// Close ends every waiting request, and all that come later, with ErrClosed.
func (q *Queue[R, G]) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.core.endAll(ErrClosed, time.Now())
}

// Stats is the present state and the totals.
func (q *Queue[R, G]) Stats() Stats {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.core.Stats(time.Now())
}

// Line is who waits now. It looks at every waiting request.
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
		q.drain(now) // usually grants w on the spot
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
	if w.drive { // no caller leaves with the drain in hand
		q.continueDrain(w)
	}
	grant, err = w.grant, w.err
	q.recycle(w)
	q.mu.Unlock()

	if waited {
		q.headed(&it)
	}
	if left != nil && err == nil && ctx.Err() != nil { // granted as it left: as if it had not been
		q.release(grant)
		q.Wake()
		var none G
		return none, context.Cause(ctx)
	}
	return grant, err
}

// wait parks the caller until there is news for w, and returns nil, or until it leaves, and returns why.
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

// headed calls the hook for a request that begins or ends to wait.
func (q *Queue[R, G]) headed(it *Item) {
	if it.Strict > 0 && q.onHead != nil {
		q.onHead()
	}
}

// leave takes w out because its caller goes. If it was the first of its lane, those that it held up may need less.
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

// drain asks the next tickets, unless another caller does so already, which then looks once more. It is called, and
// returns, with q.mu locked.
func (q *Queue[R, G]) drain(now time.Time) {
	q.again = true
	if !q.draining {
		q.draining = true
		q.run(nil, now)
	}
}

// continueDrain continues the drain that was handed to w.
func (q *Queue[R, G]) continueDrain(w *waiter[R, G]) {
	w.drive = false
	q.run(w, time.Now())
}

// run is the drain of the caller that has set q.draining, or of me, to which it was handed. It unlocks q.mu while it
// asks. A look at the clock is dear on some machines; a request that is granted as it comes takes one, its caller's.
func (q *Queue[R, G]) run(me *waiter[R, G], now time.Time) {
	for turns := 0; q.core.Len() > 0; turns++ {
		if turns > 0 {
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
		if turns >= maxTurns && w != me {
			w.drive = true
			w.rouse()
			return
		}
		if !q.core.asked() {
			q.again = false // what changed until here, the ticket will see
		}
		clear(q.ahead)
		q.ahead = q.ahead[:0]
		for _, o := range q.core.ahead(t) {
			q.ahead = append(q.ahead, o.request)
		}
		d := Drain[R]{q.ahead, q.core.round, q.core.planning, q.core.way}
		w.asked = true
		q.mu.Unlock()
		grant, err := q.ask(w.request, d, now)
		q.mu.Lock()
		w.asked = false

		if q.core.waitsOn(t, err, now) {
			continue
		}
		switch left := !q.core.settle(t, err, now); {
		case err != nil:
		case left: // its caller, while it was asked
			q.mu.Unlock()
			q.release(grant)
			q.mu.Lock()
		default:
			w.grant = grant
		}
	}
	if q.core.Len() > 0 {
		now = time.Now() // others may have looked at it since
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

// borrow is an unused waiter.
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

// recycle keeps w for the next caller, unless the drain that asks it still holds it.
func (q *Queue[R, G]) recycle(w *waiter[R, G]) {
	if w.asked || len(q.spare) >= maxSpare {
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

// ask calls reserve for r. A panic ends the request and not the drain, which may be another's; Admit raises it again.
// The caller drains, so no other goroutine writes d.Ahead.
func (q *Queue[R, G]) ask(r R, d Drain[R], now time.Time) (grant G, err error) {
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
