package placement

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
)

// maxChoices is how often Book chooses again because a permit was refused that looked free at the choice.
const maxChoices = 4

// Book picks and books the workers that the ask lacks, and acquires the permits to call them. It leaves workers to the asks
// ahead, and to the request of [Ask.Yield]: if that is why the ask has to wait, the error is an [ErrYield] too. Its errors are
// ErrNoDecode, ErrNoPrefill, a [*PinError], a [*router.TooBigError], a
// [*router.OverloadedError] and those that [Waits] accepts.
//
// The permits are acquired here, where the workers are booked, so that of many asks only one gets a trial call.
func (p *Placer) Book(fleet pools.Fleet, ask *Ask, ahead []*Ask, now time.Time) (Placement, error) {
	err, claims, generates := ErrOnTrial, claimed(ahead), pools.Decode
	defer ask.look.End()
	left := p.leave(fleet, ask, now)
	claims = append(claims, left...)
	for range maxChoices {
		r := p.Route(fleet, ask, now)
		may := r.permits(now)
		generates = r.Decode.Role
		out, failed := r.place(may.exclude, claims, now)
		if failed != nil {
			err = may.wait(failed)
			break
		}
		if p.acquire(&out.Prefill, pools.Prefill, ask.Adapter, &may) == nil && p.acquire(&out.Decode, pools.Decode, ask.Adapter, &may) == nil {
			r.placed(&out, now)
			return out, nil
		}
		out.Release(now)
	}
	switch {
	case !Waits(err):
	case len(left) > 0:
		err = fmt.Errorf("%w: %w", ErrYield, err)
	case ask.bound() || ask.Want == Decode:
		ask.claim(generates, err)
	}
	return Placement{}, err
}

// leave returns claims on the workers that the ask leaves to a request at another gateway: those that this gateway would
// choose for it now among all that may serve the ask. It is nil without such a request, or without room for it.
func (p *Placer) leave(fleet pools.Fleet, ask *Ask, now time.Time) (claims []router.Claim) {
	if ask.Yield == 0 {
		return nil
	}
	other := *ask
	other.ISL, other.OSL, other.Hashes, other.DecodeHashes, other.RemoteOverlap, other.Done = ask.Yield, 0, nil, nil, nil, router.Done{}
	other.Drain, other.Explain, other.look = 0, false, router.Look{} // no plan of this drain's
	would, err := p.Pick(fleet, &other, now)
	if err != nil {
		return nil
	}
	for _, l := range would.Leases() {
		claims = append(claims, router.Claim{Role: l.Worker.Role, Pin: &router.Pin{Worker: l.Worker.ID, Ranked: true, Rank: l.Rank}})
	}
	return claims
}

// Pick returns the placement that [Placer.Book] would make now, and books nothing: the leases only hold the choices.
func (p *Placer) Pick(fleet pools.Fleet, ask *Ask, now time.Time) (Placement, error) {
	whole := *ask
	whole.PickOnly, whole.DecodeLater, whole.Sliced, whole.look = true, false, false, router.Look{}
	r := p.Route(fleet, &whole, now)
	may := r.permits(now)
	out, err := r.place(may.exclude, nil, now)
	if err != nil {
		return Placement{}, may.wait(err)
	}
	return out, nil
}

// placed records which pair was booked, unless its decode worker is chosen later.
func (r *Route) placed(out *Placement, now time.Time) {
	if !r.shut || out.Decode.Lease == nil || r.ask.Want == Decode && r.ask.Partner == nil {
		return
	}
	p := r.ask.Partner
	if out.Prefill.Lease != nil {
		p = out.Prefill.Worker
	}
	r.placer.Transfers.Placed(p, out.Decode.Worker, r.ask.ISL, now)
}

// place is choose, except that it takes a shut pair if all are shut and decode may not stand in.
func (r *Route) place(exclude []string, ahead []router.Claim, now time.Time) (Placement, error) {
	if err := r.checkPins(now); err != nil {
		return Placement{}, err
	}
	out, err := r.choose(exclude, ahead, now)
	if err == nil || Waits(err) || !r.shut || r.standsIn() {
		return out, err
	}
	all := *r
	all.shut = false
	return all.choose(exclude, ahead, now)
}

// standsIn reports whether decode computes the prompt if no pair is open.
func (r *Route) standsIn() bool {
	return r.ask.Want != Decode && r.placer.Fallback && servesAlone(r.Decode)
}

// choose is the one switch over the ways to serve an ask. It books the workers, or only picks them.
func (r *Route) choose(exclude []string, ahead []router.Claim, now time.Time) (Placement, error) {
	req, reason := r.ask.Request, r.Reason
	req.Exclude, req.Ahead, req.Look = exclude, ahead, &r.ask.look
	r.match(&req, now)
	switch want := r.ask.Want; {
	case want == Prefill:
		p, err := r.one(r.Prefill, req, now)
		if errors.Is(err, router.ErrNoWorkers) {
			return Placement{Reason: r.ask.withoutPrefill()}, r.fallback(err)
		}
		return Placement{Prefill: Booking{Lease: p}}, err
	case want != Decode && reason == "":
		p, d, err := r.pair(req, now)
		if err == nil && p == nil && d != nil {
			out := Placement{Decode: Booking{Lease: d}}
			out.Reason, out.Price = r.placer.Transfers.Why(r.Prefill, d.Worker, req.ISL, now)
			return out, nil
		}
		if pool, ok := errors.AsType[*router.PoolError](err); !ok || pool.Role != pools.Prefill || !errors.Is(err, router.ErrNoWorkers) {
			return Placement{Prefill: Booking{Lease: p}, Decode: Booking{Lease: d}}, refused(err)
		}
		if err := r.fallback(err); err != nil {
			return Placement{}, err
		}
		if reason = r.ask.withoutPrefill(); errors.Is(err, router.ErrNoPartner) {
			reason = ReasonNoPartner
		}
	case reason == ReasonNoPrefill, reason == ReasonPrefillFailed:
		if err := r.fallback(nil); err != nil {
			return Placement{}, err
		}
	case want != Decode && !servesAlone(r.Decode) && !r.ask.AnyRole:
		return Placement{}, &AloneError{reason}
	}
	d, err := r.one(r.Decode, r.ask.generating(r.Decode, req), now)
	return Placement{Decode: Booking{Lease: d}, Reason: reason}, refused(err)
}

// match excludes pairs of workers that cannot hand over to each other or are shut.
func (r *Route) match(req *router.Request, now time.Time) {
	pairs, partner := r.pairs(now), r.ask.Partner
	if r.shut {
		req.StandIn, req.DecodeLater, req.Sliced = r.standsIn(), false, false
	}
	switch {
	case pairs == nil:
	case r.ask.Want == Any, r.ask.Want == Pair:
		req.Pairs = pairs
	case partner == nil:
	case r.ask.Want == Prefill:
		req.Only = func(p *pools.Worker) bool { return pairs(p, partner) }
	case r.ask.Want == Decode:
		req.Only = func(d *pools.Worker) bool { return pairs(partner, d) }
	}
}

// pairs returns a func that reports between which workers the ask may be handed over; nil allows any.
func (r *Route) pairs(now time.Time) func(p, d *pools.Worker) bool {
	able := r.placer.Pairs
	if able == nil || !r.Mixed {
		able = func(_, _ *pools.Worker) error { return nil }
		if !r.shut {
			return nil
		}
	}
	return func(p, d *pools.Worker) bool {
		return able(p, d) == nil && (!r.shut || r.placer.Transfers.Opens(p, d, r.ask.ISL, now))
	}
}

// one books or picks a worker of one pool.
func (r *Route) one(pool *pools.Pool, req router.Request, now time.Time) (*router.Lease, error) {
	in := r.placer.Routers.For(r.ask.Model, pool.Role)
	if !req.PickOnly {
		return in.Reserve(pool, req, now)
	}
	c, err := in.Pick(pool, req, now)
	return &router.Lease{Choice: c}, err
}

// pair books or picks a worker of each pool.
func (r *Route) pair(req router.Request, now time.Time) (p, d *router.Lease, err error) {
	prefill, decode := r.placer.Routers.For(r.ask.Model, pools.Prefill), r.placer.Routers.For(r.ask.Model, r.Decode.Role)
	return router.ReservePair(prefill, decode, r.Prefill, r.Decode, req, r.ask.generating(r.Decode, req), now)
}

// fallback returns nil if decode may compute the prompt, since no prefill worker can because of err.
func (r *Route) fallback(err error) error {
	switch pinned := r.ask.pinned(pools.Prefill); {
	case pinned != "":
		return &PinError{pools.Prefill, pinned} // it has just left
	case r.placer.Fallback && servesAlone(r.Decode):
		return nil
	case len(r.ask.Required) > 0 || r.ask.Adapter != "":
		return fmt.Errorf("%w: %w", ErrNoPrefill, router.ErrTaints)
	case err == nil:
		return ErrNoPrefill
	}
	return fmt.Errorf("%w: %w", ErrNoPrefill, err)
}

// PairsOnly reports whether the fleet has decode workers, and no worker that serves without another.
func PairsOnly(fleet pools.Fleet) bool {
	return len(fleet.Both.Members) == 0 && len(fleet.Decode.Members) > 0 && !servesAlone(fleet.Decode)
}

// servesAlone reports whether the workers of a pool can compute prompts too. A pool has one engine, except during a
// change.
func servesAlone(pool *pools.Pool) bool {
	return !slices.ContainsFunc(pool.Members, func(m pools.Member) bool { return !m.Worker.ServesAlone() })
}

// refused turns the lack of a worker that generates into ErrNoDecode.
func refused(err error) error {
	if errors.Is(err, router.ErrNoWorkers) {
		return fmt.Errorf("%w: %w", ErrNoDecode, err)
	}
	return err
}
