package queue

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestLanesAreBounded: however many lanes requests name, a drain asks in so many and the one that the rest share,
// and a lane ends with its last ticket.
func TestLanesAreBounded(t *testing.T) {
	core := newCore(t, DefaultConfig(), func(*Ticket[int], error) {})
	var tickets []*Ticket[int]
	for i := range 2 * maxLanes {
		ticket := &Ticket[int]{Item: Item{Lane: fmt.Sprint(i)}}
		tickets = append(tickets, ticket)
		push(t, core, start, ticket)
	}
	asked := 0
	core.Drain(start, func(_ *Ticket[int], d Drain[int]) error { asked++; return ErrWait })
	assert.Equal(t, maxLanes+1, asked, "were asked")
	assert.Equal(t, len(tickets), core.Drain(start, func(_ *Ticket[int], d Drain[int]) error { return nil }), "were granted")
	assert.True(t, len(core.lanes) == 1 && len(core.byKey) == 0,
		"%d lanes and %d keys are left", len(core.lanes), len(core.byKey))
}

// bound is a reserve func of a request for worker at, or for any where that is empty, which takes one of its places.
func bound(places map[string]int, at string, granted *[]string, name string) func(time.Time, Drain[*caller]) (*place, error) {
	return func(_ time.Time, d Drain[*caller]) (*place, error) {
		for _, worker := range []string{"A", "B"} {
			claimed := false
			for _, c := range d.Ahead {
				claimed = claimed || c.at == worker
			}
			if at != "" && at != worker || claimed || places[worker] == 0 {
				continue
			}
			places[worker]--
			*granted = append(*granted, name+" at "+worker)
			return new(place), nil
		}
		return nil, ErrWait
	}
}

// TestBoundCallers has callers of the shell wait for one worker while others go on, and leave: what they claimed is
// free at once.
func TestBoundCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRoom(t, 0, DefaultConfig())
		places, granted := map[string]int{"B": 2}, []string{}
		admit := func(ctx context.Context, name, at string) <-chan result {
			return r.admitWith(ctx, Item{ID: name, Lane: at}, bound(places, at, &granted, name))
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		first := admit(ctx, "first", "A")
		second := admit(ctx, "second", "A")
		<-admit(t.Context(), "other", "B")
		<-admit(t.Context(), "any", "")
		third := admit(t.Context(), "third", "") // A is claimed, and B full
		s := r.q.Stats()
		assert.True(t, s.Waiting == 3 && s.GrantedTotal == 2, "%+v after %v", s, granted)
		places["A"] = 1
		r.q.Wake()
		<-first
		places["A"] = 1 // and nothing wakes the queue
		cancel(errBored)
		assert.Equal(t, result{err: errBored}, <-second)
		<-third
		assert.Equal(t, "[other at B any at B first at A third at A]", fmt.Sprint(granted), granted)
		r.quiet(0)
	})
}
