package handoff

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/queue"
	"github.com/tandem-pd/tandem/router"
)

// admit waits in the model's queue until the bookings that the next round
// lacks are made: both legs at first, the failed leg's after a failure, which
// goes to the head.
func (f *Flow) admit(ctx context.Context, r *request) error {
	if r.kv != nil && !time.Now().Before(r.kv.Expires) {
		r.prepareAgain() // the queue took longer than the producer's lease
	}
	if r.d != nil && (r.p != nil || r.kv != nil || r.reason != "") {
		return nil
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
	granted, err := q.Admit(ctx, queue.Item{
		ID: r.id, Priority: r.priority(), Strict: r.strict(),
		ISL: r.isl, Uncached: r.isl - f.bestCached(r, now), Bytes: int64(len(r.call.Request.Raw)),
		Arrival: r.call.Arrival, Retry: r.attempt > 0,
	}, func(now time.Time) (queue.Held, error) { return f.reserve(r, now) })
	r.queued += time.Since(now)
	if err != nil {
		return err
	}
	r.take(granted.(*grant), func() { f.wake(model) })
	return nil
}

// fits refuses at once what no worker that generates could ever hold.
func (f *Flow) fits(r *request) error {
	model, role := r.call.Request.Model, pools.Decode
	if len(f.rooms.Decode.Pool(model, role).Members) == 0 {
		role = pools.Both
	}
	return f.rooms.Decode.Router(model, role).Fits(f.rooms.Decode.Pool(model, role), r.isl)
}

// bestCached is the longest prefix in tokens that an eligible worker of the
// pool that computes the prompt holds.
func (f *Flow) bestCached(r *request, now time.Time) int {
	model := r.call.Request.Model
	blocks := 0
	if p := f.rooms.Prefill.Pool(model); len(p.Members) > 0 {
		blocks = f.rooms.Prefill.Router(model).BestOverlap(p, r.hashes, now)
	} else if p := f.rooms.Decode.Pool(model, pools.Both); len(p.Members) > 0 {
		blocks = f.rooms.Decode.Router(model, pools.Both).BestOverlap(p, r.hashes, now)
	}
	return min(r.isl, blocks*r.card.blockSize)
}

// grant is what one drain step booked for a request.
type grant struct {
	p, d *router.Lease
	// reason says why there is no prefill leg, empty when there is one.
	reason string
}

// Release gives the bookings back when the request left before it could take
// them.
func (g *grant) Release() {
	now := time.Now()
	if g.p != nil {
		g.p.Release(now)
	}
	if g.d != nil {
		g.d.Release(now)
	}
}

// reserve is the drain step of one request: it picks and books what the round
// lacks, or says why the request must wait or cannot be served. It changes
// nothing of r, which another goroutine owns.
func (f *Flow) reserve(r *request, now time.Time) (queue.Held, error) {
	model := r.call.Request.Model
	req := router.Request{ID: r.id, Attempt: r.attempt + 1, ISL: r.isl, Hashes: r.hashes, Exclude: f.exclude(r, now)}
	if r.d != nil { // decode's booking is kept: another prefill worker, or none
		p, err := f.rooms.Prefill.Router(model).Reserve(f.rooms.Prefill.Pool(model), req, now)
		if errors.Is(err, router.ErrNoWorkers) {
			return f.fallback(&grant{}, reasonPrefillFailed)
		}
		return granted(&grant{p: p}, err)
	}
	decodes := f.rooms.Decode.Pool(model, pools.Decode)
	if boths := f.rooms.Decode.Pool(model, pools.Both); len(decodes.Members) == 0 && len(boths.Members) > 0 {
		d, err := f.rooms.Decode.Router(model, pools.Both).Reserve(boths, req, now)
		return granted(&grant{d: d, reason: reasonAggregated}, err)
	}
	decoder := f.rooms.Decode.Router(model, pools.Decode)
	if r.kv != nil {
		d, err := decoder.Reserve(decodes, req, now)
		return granted(&grant{d: d}, err)
	}
	reason := r.oneLeg()
	if reason == "" {
		p, d, err := router.ReservePair(f.rooms.Prefill.Router(model), decoder, f.rooms.Pairer(model),
			f.rooms.Prefill.Pool(model), decodes, req, now)
		if !noneIn(err, pools.Prefill) {
			return granted(&grant{p: p, d: d}, err)
		}
		reason = reasonNoPrefill
		if r.attempt > 0 {
			reason = reasonPrefillFailed
		}
	}
	if reason == reasonNoPrefill && !f.cfg.DecodeFallback {
		return nil, errNoPrefill
	}
	d, err := decoder.Reserve(decodes, req, now)
	return granted(&grant{d: d, reason: reason}, err)
}

// exclude is whom not to ask: who has failed this request, and whose circuit is
// open. Where every circuit of a pool is open it asks all the same: a pool that
// answers some requests is worth more than one that is left alone.
func (f *Flow) exclude(r *request, now time.Time) []string {
	model, out := r.call.Request.Model, r.tried
	for leg, pool := range map[fault.Leg]*pools.Pool{
		fault.Prefill: f.rooms.Prefill.Pool(model), fault.Decode: f.rooms.Decode.Pool(model, pools.Decode),
	} {
		open := f.rooms.Breakers.Blocked(leg)
		if len(open) > 0 && slices.ContainsFunc(pool.Members, func(m pools.Member) bool {
			return m.Eligible(now) && !slices.Contains(open, m.Worker.ID) && !slices.Contains(r.tried, m.Worker.ID)
		}) {
			out = slices.Concat(out, open)
		}
	}
	return out
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
	switch {
	case errors.As(err, &told):
		return told
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
