package handoff

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/queue"
	"github.com/tandem-pd/tandem/router"
)

// avoidance is whom one drain step does not ask.
type avoidance struct {
	// exclude is who has failed this request, and whose circuit lets nobody
	// through.
	exclude []string
	// failOpen are the legs of which this request could only be served by
	// workers with an open circuit: those are asked all the same.
	failOpen map[fault.Leg]bool
	// onTrial are the legs of which every worker is on its trial: there is
	// somebody to wait for.
	onTrial map[fault.Leg]bool
}

// maxChoices is how often one drain step chooses anew because a circuit changed
// between the look at it and the booking.
const maxChoices = 4

// reserve is the drain step of one request: it picks and books what the round
// lacks and takes the circuits' leave for it, or says why the request must
// wait or cannot be served. The leave is taken here, where the worker is
// booked, so that of many requests only one becomes a half-open circuit's
// trial. It changes nothing of r, which another goroutine owns.
func (f *Flow) reserve(r *request, ahead []router.Claim, now time.Time) (queue.Held, error) {
	for range maxChoices {
		avoid := f.avoid(r, now)
		held, err := f.book(r, avoid.exclude, ahead, now)
		if err != nil {
			return nil, avoid.waits(err)
		}
		g := held.(*grant)
		if f.takeLeave(g, avoid) {
			return g, nil
		}
		g.Release()
	}
	return nil, fmt.Errorf("%w: %w", queue.ErrWait, fault.ErrCircuitOpen) // its trial's end wakes the queue
}

// avoid looks at the circuits for one request. A worker on its trial is never
// asked. One whose circuit is open is not asked while the request has another:
// see fault.Breakers for the rule.
func (f *Flow) avoid(r *request, now time.Time) avoidance {
	out := avoidance{exclude: r.tried}
	model := r.call.Request.Model
	f.look(&out, r, fault.Prefill, f.rooms.Prefill.Router(model), f.rooms.Prefill.Pool(model), now)
	decodes := f.generators(r)
	f.look(&out, r, fault.Decode, f.rooms.Decode.Router(model, decodes.Role), decodes, now)
	return out
}

// look takes in the circuits of one pool, of those workers that could serve r.
func (f *Flow) look(a *avoidance, r *request, leg fault.Leg, in *router.Router, pool *pools.Pool, now time.Time) {
	b := f.rooms.Breakers
	blocked := b.Blocked(leg)
	if len(blocked) == 0 {
		return
	}
	trials, req := b.OnTrial(leg), f.legQuery(r, leg)
	eligible, testing, free := 0, 0, false
	for _, m := range pool.Members {
		if !m.Eligible(now) || !in.Suits(m.Worker, &req) {
			continue
		}
		eligible++
		switch id := m.Worker.ID; {
		case slices.Contains(trials, id):
			testing++
		case !slices.Contains(blocked, id) && !slices.Contains(r.tried, id):
			free = true
		}
	}
	if free {
		a.exclude = slices.Concat(a.exclude, blocked)
		return
	}
	if a.failOpen == nil { // seldom: nothing is made while the circuits are closed
		a.failOpen, a.onTrial = map[fault.Leg]bool{}, map[fault.Leg]bool{}
	}
	a.exclude = slices.Concat(a.exclude, trials)
	a.failOpen[leg] = true
	a.onTrial[leg] = eligible > 0 && testing == eligible
}

// waits turns the want of a worker into a wait where a trial's end will tell
// whether there is one.
func (a *avoidance) waits(err error) error {
	if errors.Is(err, errNoDecode) && a.onTrial[fault.Decode] || errors.Is(err, errNoPrefill) && a.onTrial[fault.Prefill] {
		return fmt.Errorf("%w: %w", queue.ErrWait, err)
	}
	return err
}

// takeLeave asks the circuits of what was booked. It fails where one has
// changed since it was looked at.
func (f *Flow) takeLeave(g *grant, avoid avoidance) bool {
	var ok bool
	if g.pEnd, ok = f.leave(g.p, fault.Prefill, avoid); !ok {
		return false
	}
	g.dEnd, ok = f.leave(g.d, fault.Decode, avoid)
	return ok
}

// leave asks one circuit and returns what tells it how the call ended, nil
// without a lease. An open circuit that is asked for want of a better one is
// not told.
func (f *Flow) leave(l *router.Lease, leg fault.Leg, avoid avoidance) (end func(fault.Class), ok bool) {
	if l == nil {
		return nil, true
	}
	end, err := f.rooms.Breakers.Allow(l.Worker.ID, l.Worker.Incarnation, leg)
	switch {
	case err == nil:
		return end, true
	case avoid.failOpen[leg] && f.rooms.Breakers.State(l.Worker.ID, leg) == fault.Open:
		return func(fault.Class) {}, true
	default:
		return nil, false
	}
}

// classOf is how a leg ended.
func classOf(failed *fault.Error) fault.Class {
	if failed == nil {
		return fault.None
	}
	return failed.Class
}
