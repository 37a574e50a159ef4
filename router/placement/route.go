package placement

import (
	"fmt"
	"slices"
	"time"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
)

// Routers returns the router of a model's pool; [*router.Set] does.
type Routers interface {
	For(model string, role pools.Role) *router.Router
}

// Placer places the requests of every model. It is safe for concurrent use if its parts are.
type Placer struct {
	Routers Routers
	// Permits decide which workers may be called; nil permits every call.
	Permits Permits
	// Ejected returns the workers of a pool that get requests only if no other worker could serve them; nil for none.
	Ejected func(pool *pools.Pool) []string
	// Pairs returns why two workers cannot hand over; nil if any two can.
	Pairs func(p, d *pools.Worker) error
	// Fallback lets decode compute a prompt if no prefill worker can.
	Fallback bool
	// Transfers decide which pairs are shut; nil for none.
	Transfers Transfers
}

// Transfers decide which pairs of workers should not hand over, as [*Links] do.
type Transfers interface {
	Shut(model string, tokens int, now time.Time) bool
	Opens(p, d *pools.Worker, tokens int, now time.Time) bool
	Placed(p, d *pools.Worker, tokens int, now time.Time)
	Why(prefill *pools.Pool, d *pools.Worker, tokens int, now time.Time) (reason string, price Price)
}

// Route is where a request may go under one snapshot of its model's pools. It is valid for one step.
type Route struct {
	pools.Fleet
	// Decode is the pool whose workers generate, of role decode or both. It hides the fleet's.
	Decode *pools.Pool
	// Reason is why there is only one leg, empty for a pair.
	Reason string

	placer *Placer
	ask    *Ask
	shut   bool // a pair of the model is shut for such a prompt, and the ask does not require it
}

// Route finds the pools for an ask. Workers of role both generate in three cases: the model has no decode worker, the
// ask wants one, or one of them could serve the ask now and no pair could.
func (p *Placer) Route(fleet pools.Fleet, ask *Ask, now time.Time) Route {
	r := Route{Fleet: fleet, Decode: fleet.Decode, placer: p, ask: ask}
	switch {
	case ask.Want == Alone, ask.Want == Any && p.Alone(fleet, ask, now):
		r.Decode, r.Reason = fleet.Both, ReasonAggregated
	case ask.Want == Any && ask.OneLeg != "":
		r.Reason = ask.OneLeg
	case ask.Want == Any && len(fleet.Prefill.Members) == 0 && ask.pinned(pools.Prefill) == "":
		r.Reason = ask.withoutPrefill()
	}
	r.shut = p.Transfers != nil && ask.Want != Pair && ask.pinned(pools.Prefill) == "" && r.Decode.Role == pools.Decode &&
		p.Transfers.Shut(ask.Model, ask.ISL, now)
	return r
}

// Alone reports whether a worker of role both must serve the ask: there is no decode worker, or such a worker could serve
// the ask now and no pair could. Half a pair that the ask holds is then useless.
func (p *Placer) Alone(fleet pools.Fleet, ask *Ask, now time.Time) bool {
	switch {
	case ask.Want == Alone:
		return true
	case len(fleet.Both.Members) == 0:
		return false
	case len(fleet.Decode.Members) == 0, ask.OneLeg != "" && !servesAlone(fleet.Decode):
		return true
	case ask.pinned(pools.Decode) != "" || p.pairs(fleet, ask, now):
		return false
	}
	return p.survey(fleet.Both, ask, now).free
}

// pairs reports whether a pair of workers could serve the ask now, or a decode worker if it needs or lacks only one leg.
func (p *Placer) pairs(fleet pools.Fleet, ask *Ask, now time.Time) bool {
	oneLeg := p.Fallback && servesAlone(fleet.Decode) || ask.Want == Decode || ask.OneLeg != "" || ask.pinned(pools.Prefill) != ""
	return (ask.Want == Prefill || p.survey(fleet.Decode, ask, now).free) && (oneLeg || p.survey(fleet.Prefill, ask, now).free)
}

// withoutPrefill returns the reason for an ask without a prefill worker.
func (a *Ask) withoutPrefill() string {
	if a.Attempt > 1 || a.Want == Prefill {
		return ReasonPrefillFailed
	}
	return ReasonNoPrefill
}

// Computes returns the pool whose workers compute the prompt, and its router. The pool may be empty.
func (r *Route) Computes() (*pools.Pool, *router.Router) {
	pool := r.Both
	if len(r.Prefill.Members) > 0 && r.Decode.Role != pools.Both {
		pool = r.Prefill
	}
	return pool, r.placer.Routers.For(r.ask.Model, pool.Role)
}

// Cached returns the longest prefix of the prompt, in tokens, cached by a worker that may compute it now. The ask keeps the
// result for the booking that follows.
func (r *Route) Cached(now time.Time) int {
	pool, in := r.Computes()
	if len(pool.Members) == 0 {
		return 0
	}
	q := &r.ask.Request
	r.ask.look = in.Look(pool, router.Request{Hashes: q.Hashes, Text: q.Text, RemoteOverlap: q.RemoteOverlap}, now)
	size := pool.Members[0].Worker.BlockSize
	return min(max(0, q.ISL-1)/size, r.ask.look.Blocks) * size // engines compute the last token's block
}

// Fits returns a [*router.TooBigError] when no worker that generates could ever hold the prompt.
func (r *Route) Fits() error {
	if r.ask.Inputs > 0 {
		return nil // each input by itself: its engine compares it
	}
	return r.placer.Routers.For(r.ask.Model, r.Decode.Role).Fits(r.Decode, r.ask.ISL)
}

// PinError refuses an ask whose pinned worker takes no requests now.
type PinError struct {
	Role   pools.Role // prefill or decode: the pin's
	Worker string
}

func (e *PinError) Error() string {
	return fmt.Sprintf("the pinned %s worker %q takes no requests now", e.Role, e.Worker)
}

// checkPins refuses an ask whose pinned worker has left, is down or draining, or may not be called.
func (r *Route) checkPins(now time.Time) error {
	for _, pool := range [...]*pools.Pool{r.Decode, r.Prefill} {
		id := r.ask.pinned(pool.Role)
		if id == "" || r.ask.Want == Prefill && pool == r.Decode || r.ask.Want == Decode && pool == r.Prefill {
			continue
		}
		if m, ok := pool.Member(id); !ok || !m.Eligible(now) || slices.Contains(r.placer.blocked(pool, r.ask.Adapter), id) {
			return &PinError{leg(pool), id}
		}
	}
	return nil
}
