package handoff

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/handoff/connector"
	"github.com/tandem-pd/tandem/router/placement"
)

// errHedged ends a prefill leg whose sibling was the faster one. To the engine it is a client that left.
var errHedged = fmt.Errorf("another worker prefilled sooner: %w", fault.ErrClientGone)

// entrant is one of the prefill legs of a hedged round. came belongs to the leg's goroutine until that has sent it to the race.
type entrant struct {
	round   connector.Round
	plan    connector.Plan
	booking placement.Booking
	leg     Leg
	stop    context.CancelCauseFunc
	came    prefilled
	over    bool // it has come
}

// hedged is prefill where a second worker is asked as soon as the first takes longer than --prefill-hedge allows. The first
// answer counts: a and plan become those of its leg. What the other one holds is freed when it has ended; the request does not wait for
// that.
func (f *Flow) hedged(ctx context.Context, r *request, speaks connector.Connector, a *connector.Round, plan *connector.Plan) prefilled {
	after, known := f.rooms.Prefill.HedgeAfter(r.p.Lease)
	if !known {
		return f.prefill(ctx, r, speaks, a, plan.Prefill, nil)
	}
	race := make(chan *entrant, 2)
	own := r.p
	r.shared = true          // the leg that loses outlives the round
	r.stack.disown(r.pPlace) // each leg gives its own booking back
	legs := []*entrant{f.enterRace(ctx, r, speaks, *a, *plan, own, race)}
	timer := time.NewTimer(after)
	defer timer.Stop()
	var won, lost *entrant
	for ended := 0; won == nil && ended < len(legs); {
		select {
		case <-timer.C:
			if second, ok := f.second(ctx, r, speaks, a, race); ok {
				legs = append(legs, second)
				defer f.budget.Return()
			}
		case e := <-race:
			ended++
			e.over = true
			f.settle(r, speaks, e)
			if lost = e; e.came.failed == nil {
				won = e
			}
		}
	}
	if won == nil {
		return lost.came
	}
	for _, e := range legs {
		if !e.over {
			e.stop(errHedged)
			r.Trace.end(e.leg.Span, time.Time{}, won.came.ended, superseded)
			f.observer.LegEnded(&r.Record, e.leg)
			f.cleanup.calls.Go(func() { f.loses(speaks, <-race) })
		}
	}
	*a, *plan = won.round, won.plan
	r.Prefill.Worker = won.round.P.ID
	return won.came
}

// enterRace calls a prefill leg on a goroutine of its own, which sends it to race when it has ended.
func (f *Flow) enterRace(ctx context.Context, r *request, speaks connector.Connector, a connector.Round, plan connector.Plan, booking placement.Booking, race chan<- *entrant) *entrant {
	ctx, stop := context.WithCancelCause(ctx)
	e := &entrant{round: a, plan: plan, booking: booking, leg: Leg{Worker: a.P, Began: time.Now()}, stop: stop}
	plan.Prefill.TraceParent = f.traceLeg(r, &e.leg, booking.Lease)
	f.observer.LegStarted(&r.Record, e.leg)
	prompt := r.prompt // which is another one where the request goes on elsewhere while this leg still runs
	f.cleanup.calls.Go(func() {
		came := prefilled{cached: -1}
		defer func() {
			if came.panicked = recover(); came.panicked != nil {
				came.failed = garbled(&a, errHedged)
			}
			stop(nil)
			if came.permit = booking.Done; !disputed(came.failed) {
				booking.Done(came.failed)
			}
			if came.failed != nil {
				booking.Invalidate()
			}
			booking.Lease.Release(time.Now())
			f.Wake(a.Request.Model)
			e.came = came
			race <- e
		}()
		answer, failed := f.rooms.Prefill.Run(ctx, booking.Lease, plan.Prefill)
		if failed == nil {
			came.cached = answer.Said.CachedTokens
			var whole bool
			if came.kv, whole, failed = f.handedOver(ctx, prompt, speaks, &a, answer); whole {
				came.whole = answer.Body
			}
		}
		came.ended, came.failed, came.first = time.Now(), failed, failed != nil && ctx.Err() == nil
		came.took = came.ended.Sub(e.leg.Began)
	})
	return e
}

// second enters another prefill worker into the race, where one has room now and the retry budget allows it; a hedge waits for
// neither.
func (f *Flow) second(ctx context.Context, r *request, speaks connector.Connector, a *connector.Round, race chan<- *entrant) (*entrant, bool) {
	if !f.budget.Take() { // where all are slow, more calls do not help
		return nil, false
	}
	e, ok := f.enterSecond(ctx, r, speaks, a, race)
	if !ok {
		f.budget.Return()
	}
	return e, ok
}

func (f *Flow) enterSecond(ctx context.Context, r *request, speaks connector.Connector, a *connector.Round, race chan<- *entrant) (*entrant, bool) {
	ask := f.ask(r)
	ask.Want, ask.Partner = placement.Prefill, a.D
	ask.Exclude = append(slices.Clone(ask.Exclude), a.P.ID)
	now := time.Now()
	placed, err := f.placer.Book(f.rooms.Roster.Fleet(ask.Model), &ask, nil, now)
	if err != nil || placed.Prefill.Lease == nil {
		placed.Release(now)
		return nil, false
	}
	b := *a
	b.P, b.PRank = placed.Prefill.Worker, placed.Prefill.Rank
	b.ID, b.TransferID, b.Memory, b.PinnedIDs, b.ShowPrompt = a.ID+"h", transferID(), nil, nil, false
	r.pin(&b)
	same, err := f.rooms.Between(b.P, b.D)
	if err == nil && same == speaks {
		if plan, err := speaks.Plan(b); err == nil && plan.Order == connector.PrefillFirst {
			return f.enterRace(ctx, r, speaks, b, plan, placed.Prefill, race), true
		}
	}
	placed.Release(now)
	return nil, false
}

// settle takes in that an entrant has ended.
func (f *Flow) settle(r *request, speaks connector.Connector, e *entrant) {
	if e.came.panicked != nil {
		panic(e.came.panicked) // on the request's goroutine, which reports it
	}
	bindSession(e.booking.Lease, e.came.failed)
	if e.came.failed != nil {
		r.dispute(e.came.failed, e.came.permit)
		e.came.permit = nil
	}
	if e.came.failed == nil {
		e.leg.First = e.came.ended
		f.observer.FirstToken(&r.Record, e.leg)
		r.compare(e.booking.Lease, e.came.cached)
	} else if e.came.kv.Params != nil { // it cannot be bound, and names what is to be released
		f.cleanup.abandon(speaks, e.round, e.came.kv)
	}
	r.Trace.end(e.leg.Span, e.leg.First, e.came.ended, failureOf(e.came.failed))
	f.observer.LegEnded(&r.Record, e.leg)
}

// loses frees what an entrant holds that came second.
func (f *Flow) loses(speaks connector.Connector, e *entrant) {
	e.came.permit.end()
	if e.came.kv.Params != nil {
		f.cleanup.abandon(speaks, e.round, e.came.kv)
	}
}
