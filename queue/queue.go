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
	// maxTurns is how many tickets of others a caller asks in one drain before the next in line goes on with it.
	// A stream that wakes the queue at its first token stands still meanwhile, for some 10 µs a ticket; each
	// hand-over costs a goroutine's wake-up.
	maxTurns = 16
	// maxSpare is how many waiters are kept for their memory.
	maxSpare = 1024
)

// Held is what a granted request holds. Release gives it back; whoever gets it out of [Queue.Admit] calls it.
type Held interface{ Release() }

// Reserve books what a request needs, or answers an error: one that is [ErrWait] to stay in the queue, any other to
// end the request. ahead is the claims of requests that go before it and have to wait ([Item.Claim]); what they claim
// is not to be booked. It is good until Reserve returns.
type Reserve func(now time.Time, ahead []any) (Held, error)

// PanicError is what [Queue.Admit] panics with when its reserve func did, in whichever goroutine that was.
type PanicError struct {
	Value any
	Stack []byte // of the goroutine in which reserve ran
}

func (e *PanicError) Error() string { return "queue: a reserve func panicked" }

// Queue is where requests wait. It is safe for concurrent use, and has no goroutine of its own: callers wait in
// theirs, and whoever changes something drains. One at a time does; the others leave word.
type Queue struct {
	onWait  func(time.Duration)
	pending atomic.Int64 // callers in Admit; with none, Wake has nothing to do

	mu       sync.Mutex // guards all below; nothing that is handed in is called under it
	core     *Core
	draining bool // someone drains, or was told to go on with it (waiter.drive)
	again    bool // something changed since the last ticket was asked
	closed   bool
	spare    []*waiter
}

// waiter is a caller in Admit. Queue.mu guards it.
type waiter struct {
	ticket  Ticket
	reserve Reserve

	asked  bool // reserve runs at this moment
	done   bool // the ticket has ended, with held or err
	drive  bool // the drain is this caller's to go on with
	parked bool // its goroutine waits for wake
	held   Held
	err    error
	waited time.Duration

	wake  chan struct{} // holds at most one; nil until the first wait
	timer *time.Timer
}

// New returns an empty queue, or the error of [Config.Validate].
func New(cfg Config) (*Queue, error) {
	q := new(Queue)
	core, err := NewCore(cfg, time.Now(), func(t *Ticket, err error) {
		w := t.Value.(*waiter)
		w.done, w.err = true, err
		w.rouse()
	})
	if err != nil {
		return nil, err
	}
	q.core = core
	return q, nil
}

// OnWait has f called with how long each granted request waited, by the goroutine of that request. It is to be set
// before the first Admit.
func (q *Queue) OnWait(f func(time.Duration)) { q.onWait = f }

// Admit waits until the request's turn has come and reserve has booked what it needs, and returns the booking.
// Otherwise it returns a [*FullError], ErrExpired, ErrClosed, the context's cause, or the error with which reserve
// ended the request. When it returns, the request is out of the queue, and what was booked for a caller that leaves
// is, or is about to be, released.
//
// reserve may be called any number of times and in another caller's goroutine, and its last call may end after Admit
// has returned; but it is never called by two at once, nor with a lock of the queue held. It must be quick and must not wait; and it must not call [Queue.Wake], not by way
// of releasing what it booked in vain either, for it would be asked again at once, without end.
func (q *Queue) Admit(ctx context.Context, it Item, reserve Reserve) (Held, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	q.pending.Add(1)
	held, waited, err := q.admit(ctx, it, reserve)
	q.pending.Add(-1)
	if thrown, ok := errors.AsType[*PanicError](err); ok {
		panic(thrown)
	}
	if err == nil && q.onWait != nil {
		q.onWait(waited)
	}
	return held, err
}

// Wake has the queue look again whether there is room: after a first token, a release, or a change of a worker.
// It is an atomic load when nobody waits, and may drain in the caller's goroutine otherwise.
func (q *Queue) Wake() {
	if q.pending.Load() == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.core.Len() > 0 {
		q.drain(time.Now())
	}
}

// Close ends every waiting request, and all that come later, with ErrClosed.
func (q *Queue) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.core.End(ErrClosed, time.Now())
}

// Stats is the present state and the totals.
func (q *Queue) Stats() Stats {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.core.Stats(time.Now())
}

func (q *Queue) admit(ctx context.Context, it Item, reserve Reserve) (Held, time.Duration, error) {
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return nil, 0, ErrClosed
	}
	w := q.borrow()
	w.ticket.Item, w.reserve = it, reserve
	now := time.Now()
	if err := q.core.Push(&w.ticket, now); err != nil {
		q.giveBack(w)
		q.mu.Unlock()
		return nil, 0, err
	}
	q.drain(now) // usually grants w on the spot
	var left error
	for !w.done && left == nil {
		if w.drive {
			q.goOn(w)
		} else {
			left = q.wait(ctx, w)
		}
	}
	if !w.done {
		q.leave(w, left)
	}
	if w.drive { // nobody leaves with the drain in hand
		q.goOn(w)
	}
	held, waited, err := w.held, w.waited, w.err
	q.giveBack(w)
	q.mu.Unlock()

	if left != nil && held != nil && ctx.Err() != nil { // granted as it left: as if it had not been
		held.Release()
		q.Wake()
		return nil, 0, context.Cause(ctx)
	}
	return held, waited, err
}

// wait parks the caller until there is news for w, and returns nil, or until it leaves, and returns why.
func (q *Queue) wait(ctx context.Context, w *waiter) error {
	if w.wake == nil {
		w.wake = make(chan struct{}, 1)
		w.timer = time.NewTimer(time.Until(q.core.Deadline(&w.ticket)))
	} else {
		w.timer.Reset(time.Until(q.core.Deadline(&w.ticket)))
	}
	w.parked = true
	q.mu.Unlock()
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

// leave takes w out because its caller goes. If it was the first of its lane, those that it held up may need less.
func (q *Queue) leave(w *waiter, why error) {
	now := time.Now()
	lost := q.core.lost
	q.core.Expire(now)
	q.core.Cancel(&w.ticket, now) // if it did not expire
	w.done, w.err = true, why
	if q.core.lost != lost && q.core.Len() > 0 {
		q.drain(now)
	}
}

// drain asks whoever is next, unless someone does already, who then looks once more. It is called, and returns,
// with q.mu locked.
func (q *Queue) drain(now time.Time) {
	q.again = true
	if !q.draining {
		q.draining = true
		q.run(nil, now)
	}
}

// goOn goes on with the drain that was handed to w.
func (q *Queue) goOn(w *waiter) {
	w.drive = false
	q.run(w, time.Now())
}

// run is the drain of whoever has set q.draining, or was handed it: me, if it was. It unlocks q.mu while it asks. A
// look at the clock is dear on some machines; a request that is granted as it comes takes one, its caller's.
func (q *Queue) run(me *waiter, now time.Time) {
	for turns := 0; q.core.Len() > 0; turns++ {
		if turns > 0 {
			now = time.Now()
		}
		t := q.core.Next(now)
		if t == nil {
			if !q.again {
				break
			}
			q.again = false // what changed since the first of them was asked
			q.core.Resume()
			continue
		}
		w := t.Value.(*waiter)
		if turns >= maxTurns && w != me {
			w.drive = true
			w.rouse()
			return
		}
		if !q.core.Holding() {
			q.again = false // what changed until here, the ticket will see
		}
		ahead := q.core.Ahead(t)
		w.asked = true
		q.mu.Unlock()
		held, err := w.ask(now, ahead)
		q.mu.Lock()
		w.asked = false

		if errors.Is(err, ErrWait) {
			q.core.Hold(t)
			continue
		}
		if err != nil {
			held = nil
		}
		if q.core.Settle(t, err, now) {
			w.held, w.waited = held, now.Sub(t.pushed)
		} else if held != nil {
			q.mu.Unlock()
			held.Release() // its caller left while it was asked
			q.mu.Lock()
		}
	}
	if q.core.Len() > 0 {
		now = time.Now() // others may have looked at it since
	}
	q.core.Stop(now)
	q.draining = false
}

// borrow is a waiter that nobody uses.
func (q *Queue) borrow() *waiter {
	last := len(q.spare) - 1
	if last < 0 {
		w := new(waiter)
		w.ticket.Value = w
		return w
	}
	w := q.spare[last]
	q.spare = q.spare[:last]
	return w
}

// giveBack keeps w for the next caller, without what it was used for. One that is being asked is not kept: the
// drain that asks it still holds it.
func (q *Queue) giveBack(w *waiter) {
	if w.asked || len(q.spare) >= maxSpare {
		return
	}
	select {
	case <-w.wake:
	default:
	}
	*w = waiter{ticket: Ticket{Value: w}, wake: w.wake, timer: w.timer}
	q.spare = append(q.spare, w)
}

// rouse wakes w's goroutine, if it waits.
func (w *waiter) rouse() {
	if w.parked {
		w.parked = false
		w.wake <- struct{}{}
	}
}

// ask calls reserve. A panic ends the request and not the drain, which may be another's; Admit raises it again.
func (w *waiter) ask(now time.Time, ahead []any) (held Held, err error) {
	returned := false
	defer func() {
		if !returned {
			held, err = nil, &PanicError{Value: recover(), Stack: debug.Stack()}
		}
	}()
	held, err = w.reserve(now, ahead)
	returned = true
	return held, err
}
