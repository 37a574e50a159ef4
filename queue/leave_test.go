package queue

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestAGrantAfterTheCallerLeft has another goroutine ask for a caller that leaves meanwhile: what was booked is
// released once, and the room goes to the next.
func TestAGrantAfterTheCallerLeft(t *testing.T) {
	for name, goes := range map[string]func(q *Queue[*caller, *place], cancel context.CancelCauseFunc){
		"it leaves":           func(_ *Queue[*caller, *place], cancel context.CancelCauseFunc) { cancel(errBored) },
		"it expires":          func(*Queue[*caller, *place], context.CancelCauseFunc) { time.Sleep(time.Minute) },
		"the queue is closed": func(q *Queue[*caller, *place], _ context.CancelCauseFunc) { q.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRoom(t, 0, DefaultConfig())
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				answer := make(chan struct{})
				turns := 0
				gone := r.admitWith(ctx, Item{}, func(now time.Time, d Drain[*caller]) (*place, error) {
					if turns++; turns > 1 {
						<-answer
					}
					return r.reserve(now, d)
				})
				r.free.Store(1)
				go r.q.Wake() // asks, and hangs in the asking
				synctest.Wait()
				goes(r.q, cancel)
				got := <-gone
				assert.Error(t, got.err)
				assert.Nil(t, got.held)
				assert.Zero(t, r.q.Stats().Waiting, "wait after it went")
				behind := r.admit(t.Context(), Item{}) // while the question is open
				close(answer)
				if got := <-behind; got.err == nil {
					got.held.Release()
				}
				synctest.Wait()
				r.quiet(1)
			})
		})
	}
}

// TestDecidedToLeave settles races in the ways that are hardest to meet: a caller has decided to leave, and before it
// could say so it is granted a place, or handed the drain.
func TestDecidedToLeave(t *testing.T) {
	for name, meanwhile := range map[string]func(r *room, w *waiter[*caller, *place]){
		"granted": func(r *room, w *waiter[*caller, *place]) {
			w.grant = &place{room: r}
			r.q.core.finish(&w.ticket, nil, time.Now())
		},
		"with the drain in hand": func(r *room, w *waiter[*caller, *place]) {
			r.q.draining, w.drive = true, true
			w.rouse()
			r.free.Store(1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRoom(t, 0, DefaultConfig())
				ctx, cancel := context.WithCancelCause(t.Context())
				leaves := r.admit(ctx, Item{})
				behind := r.admit(t.Context(), Item{})
				r.q.mu.Lock()
				cancel(errBored)
				meanwhile(r, r.q.core.head().Value)
				r.q.mu.Unlock()
				assert.Equal(t, result{err: errBored}, <-leaves)
				(<-behind).release(t) // it got the place that the other let go
				r.quiet(1)
			})
		})
	}
}

// TestAChangeWhileAsking: room that comes between the look and the answer is not lost.
func TestAChangeWhileAsking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRoom(t, 0, DefaultConfig())
		looked, answer := make(chan struct{}), make(chan struct{})
		turns := 0
		got := r.admitWith(t.Context(), Item{}, func(now time.Time, d Drain[*caller]) (*place, error) {
			if turns++; turns == 1 {
				close(looked)
				<-answer
				return nil, ErrWait // as it was when it looked
			}
			return r.reserve(now, d)
		})
		<-looked
		r.grow(1)
		close(answer)
		(<-got).release(t)
		r.quiet(1)
	})
}
