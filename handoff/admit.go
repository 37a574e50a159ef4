package handoff

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/queue"
	"github.com/tandem-pd/tandem/router"
)

// leaseMargin is how long before the end of its lease KV is no longer bound: the
// lease began before prefill's answer was here, and the decode worker has to be
// reached before it renews the lease.
const leaseMargin = LeaseDuration / 6

// errLeaseOver ends the wait for a decode worker that was to take over KV.
var errLeaseOver = errors.New("the lease on the prefilled KV is over")

// admit books what the next round lacks: both legs at first, the failed leg's after
// a failure. KV whose lease is over, before or after the wait, is given up, because
// its blocks may hold another prompt's by then.
func (f *Flow) admit(ctx context.Context, r *request) error {
	for {
		if r.kv != nil && !r.kv.bindable(time.Now()) {
			r.prepareAgain()
		}
		if r.d != nil && (r.p != nil || r.kv != nil || r.reason != "") {
			return nil
		}
		if (r.kv != nil || r.d != nil) && f.generators(r).Role == pools.Both {
			r.prepareAgain() // the workers that are left serve alone
		}
		err := f.enter(ctx, r)
		switch {
		case errors.Is(err, errLeaseOver) && ctx.Err() == nil:
		case errors.Is(err, errNoDecode) && r.kv != nil && f.generators(r).Role == pools.Both:
		case err != nil:
			return err
		}
	}
}

// bindable reports whether a decode worker may still be given kv.
func (kv *KV) bindable(now time.Time) bool { return now.Before(kv.Expires.Add(-leaseMargin)) }

// enter waits in the model's queue until what the next round lacks is booked. A
// retry goes to the head; one that has KV waits no longer than the KV is bindable.
func (f *Flow) enter(ctx context.Context, r *request) error {
	if r.kv != nil {
		within, cancel := context.WithDeadlineCause(ctx, r.kv.Expires.Add(-leaseMargin), errLeaseOver)
		defer cancel()
		ctx = within
	}
	model := r.call.Request.Model
	q, err := f.queue(model)
	if err != nil {
		return err
	}
	if err := f.fits(r); err != nil {
		return err
	}
	now := time.Now()
	uncached := r.isl - f.bestCached(r, now)
	r.spent.matching = time.Since(now)
	defer f.metrics.model(model).routed(r, uncached)()
	item := queue.Item{
		ID: r.id, Priority: r.priority(), Strict: r.strict(),
		ISL: r.isl, Uncached: uncached, Bytes: int64(len(r.call.Request.Raw)),
		Arrival: r.call.Arrival, Retry: r.attempt > 0, Lane: r.lane(),
	}
	if item.Lane != "" {
		item.Claim = new(claims)
	}
	granted, err := q.Admit(ctx, item, func(now time.Time, ahead []any) (queue.Held, error) {
		held, err := f.timed(r, claimed(ahead), now)
		if own, bound := item.Claim.(*claims); bound && errors.Is(err, queue.ErrWait) {
			own.add(f, r, err)
		}
		return held, err
	})
	r.queued += time.Since(now)
	if err != nil {
		return err
	}
	f.metrics.scheduled(r, granted.(*grant).took)
	r.take(granted.(*grant), func() { f.wake(model) })
	return nil
}

// fits refuses at once what no worker that generates could ever hold.
func (f *Flow) fits(r *request) error {
	pool := f.generators(r)
	return f.rooms.Decode.Router(pool.Model, pool.Role).Fits(pool, r.isl)
}

// bestCached is the longest prefix in tokens that an eligible worker of the
// pool that computes the prompt holds.
func (f *Flow) bestCached(r *request, now time.Time) int {
	computes, pool := f.computers(r)
	if len(pool.Members) == 0 {
		return 0
	}
	return min(r.isl, computes.BestOverlapFor(pool, router.Request{Hashes: r.hashes, Text: r.ids == nil, Told: r.told}, now)*r.card.blockSize)
}

// grant is what one drain step booked for a request.
type grant struct {
	p, d *router.Lease
	// pEnd and dEnd tell the legs' circuits how the calls ended.
	pEnd, dEnd func(fault.Class)
	// reason says why there is no prefill leg, empty when there is one.
	reason string
	took   time.Duration // of the step that made it
}

// Release gives the bookings back when the request left before it could take
// them.
func (g *grant) Release() {
	now := time.Now()
	for _, l := range []*router.Lease{g.p, g.d} {
		if l != nil {
			l.Withdraw() // nobody goes there
		}
	}
	giveBack(g.p, g.pEnd, now)
	giveBack(g.d, g.dEnd, now)
}

// giveBack ends a booking, if there is one, and a circuit's leave that was not
// used: a call that was not made says nothing about its worker.
func giveBack(l *router.Lease, end func(fault.Class), now time.Time) {
	if end != nil {
		end(fault.ClientGone)
	}
	if l != nil {
		l.Release(now)
	}
}

// book picks and books what the round lacks among those who are not excluded, and
// leaves to requests ahead what they claim.
func (f *Flow) book(r *request, exclude []string, ahead []router.Claim, now time.Time) (queue.Held, error) {
	model := r.call.Request.Model
	req := f.routingQuery(r, exclude)
	req.Ahead = ahead
	if err := f.standing(r, now); err != nil {
		return nil, err
	}
	decodes := f.generators(r)
	decodeOnly := req.Second()
	if r.d != nil { // decode's booking is kept: another prefill worker, or none
		p, err := f.rooms.Prefill.Router(model).Reserve(f.rooms.Prefill.Pool(model), req, now)
		if errors.Is(err, router.ErrNoWorkers) {
			if r.pins.prefill.Worker != "" {
				return nil, pinnedAway(&r.pins.prefill)
			}
			return f.fallback(&grant{}, reasonPrefillFailed)
		}
		return granted(&grant{p: p}, err)
	}
	if decodes.Role == pools.Both && r.kv == nil {
		d, err := f.rooms.Decode.Router(model, pools.Both).Reserve(decodes, decodeOnly, now)
		return granted(&grant{d: d, reason: reasonAggregated}, err)
	}
	decoder := f.rooms.Decode.Router(model, pools.Decode)
	if r.kv != nil {
		d, err := decoder.Reserve(f.rooms.Decode.Pool(model, pools.Decode), decodeOnly, now)
		return granted(&grant{d: d}, err)
	}
	reason := r.oneLeg()
	if reason == "" {
		p, d, err := router.ReservePair(f.rooms.Prefill.Router(model), decoder, f.rooms.Pairer(model),
			f.rooms.Prefill.Pool(model), decodes, req, now)
		if !noneIn(err, pools.Prefill) {
			return granted(&grant{p: p, d: d}, err)
		}
		if r.pins.prefill.Worker != "" {
			return nil, pinnedAway(&r.pins.prefill) // it went while it was asked
		}
		reason = reasonNoPrefill
		if r.attempt > 0 {
			reason = reasonPrefillFailed
		}
	}
	if (reason == reasonNoPrefill || reason == reasonPrefillFailed) && !f.cfg.DecodeFallback {
		if len(req.Required) > 0 {
			return nil, fmt.Errorf("%w: %w", errNoPrefill, router.ErrTaints)
		}
		return nil, errNoPrefill
	}
	d, err := decoder.Reserve(decodes, decodeOnly, now)
	return granted(&grant{d: d, reason: reason}, err)
}

// noneIn reports whether err says that the pool of that role has no worker to
// choose.
func noneIn(err error, role pools.Role) bool {
	var pool *router.PoolError
	return errors.As(err, &pool) && pool.Role == role && errors.Is(err, router.ErrNoWorkers)
}

// fallback lets decode prefill for itself, where that is allowed.
func (f *Flow) fallback(g *grant, reason string) (queue.Held, error) {
	if !f.cfg.DecodeFallback {
		return nil, errNoPrefill
	}
	g.reason = reason
	return g, nil
}

// granted maps the router's answers to the queue's: wait, end, or go.
func granted(g *grant, err error) (queue.Held, error) {
	switch {
	case err == nil:
		return g, nil
	case errors.Is(err, router.ErrBusy), errors.Is(err, router.ErrNoRoom):
		return nil, fmt.Errorf("%w: %w", queue.ErrWait, err)
	case errors.Is(err, router.ErrTaints):
		return nil, fmt.Errorf("%w: %w", errNoDecode, err)
	case errors.Is(err, router.ErrNoWorkers):
		return nil, errNoDecode
	default:
		return nil, err
	}
}

// refusal turns the end of an admission into what the client is told.
func refusal(err error) *openai.Error {
	var full *queue.FullError
	var big *router.TooBigError
	var told *openai.Error
	var over *router.OverloadedError
	switch {
	case errors.As(err, &told):
		return told
	case errors.As(err, &over):
		return overloaded(over.Error())
	case errors.Is(err, router.ErrTaints):
		return openai.Unavailable("no_tainted_worker", "no worker that can be chosen has the taints in nvext.routing_constraints.required_taints")
	case errors.As(err, &full):
		return openai.Overloaded(full.RetryAfter)
	case errors.As(err, &big):
		return openai.BadRequest("", "the request needs %d KV blocks, and the largest worker has %d", big.NeedBlocks, big.LargestBlocks)
	case errors.Is(err, queue.ErrExpired):
		return openai.GatewayTimeout("queue_timeout", "the request waited longer than queue-timeout for a worker")
	case errors.Is(err, errNoDecode), errors.Is(err, errNoPrefill):
		return openai.Unavailable("no_worker", err.Error())
	case errors.Is(err, queue.ErrClosed):
		return openai.Unavailable("shutting_down", "the gateway is shutting down")
	default:
		return openai.Internal()
	}
}
