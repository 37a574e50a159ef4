package handoff

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/queue"
	"github.com/tandem-pd/tandem/router"
	"github.com/tandem-pd/tandem/router/placement"
)

// errLeaseOver ends the wait for a decode worker that was to take over KV.
var errLeaseOver = errors.New("the lease on the prefilled KV is over")

// waitingRoom is the queue of one model's requests.
type waitingRoom = queue.Queue[*placement.Ask, placement.Placement]

// admit books what the next round lacks: both legs at first, then the leg that failed. It drops KV whose lease
// expired, since the blocks may hold another prompt, and half a pair when only workers that serve alone are left.
func (f *Flow) admit(ctx context.Context, r *request) error {
	for {
		if r.KV != nil && !r.KV.Bindable(time.Now()) {
			r.releaseAll()
		}
		if r.complete() {
			return nil
		}
		ask := f.nextAsk(r)
		if (r.KV != nil || r.d.Lease != nil) && f.alone(ask) {
			r.releaseAll()
			ask = f.nextAsk(r)
		}
		err := f.enter(ctx, r, ask)
		switch {
		case errors.Is(err, errLeaseOver) && ctx.Err() == nil:
		case errors.Is(err, placement.ErrNoDecode) && r.KV != nil && f.alone(ask):
		case errors.Is(err, placement.ErrNoDecode) && r.suspected.others != nil:
			r.suspected.others = nil // the suspected pair's decode worker is gone
		case err != nil:
			if r.passes > 0 {
				f.Wake(r.Call.Request.Model) // a slice freed capacity
			}
			return err
		}
	}
}

// alone reports whether only workers that serve alone can serve ask now.
func (f *Flow) alone(ask *placement.Ask) bool {
	return f.placer.Alone(f.rooms.Roster.Fleet(ask.Model), ask, time.Now())
}

// enter waits in the model's queue until the next round's workers are booked. A retry goes to the head. A request
// with KV waits no longer than the KV is bindable.
func (f *Flow) enter(ctx context.Context, r *request, ask *placement.Ask) error {
	if r.KV != nil {
		within, cancel := context.WithDeadlineCause(ctx, r.KV.BindBy(), errLeaseOver)
		defer cancel()
		ctx = within
	}
	if ask.DecodeLater, ask.Sliced = f.decodesLater(r, ask); ask.DecodeLater {
		ask.Later = new(router.LaterError) // shared by every drain of this wait
	}
	if wants := f.rooms.Explains; wants != nil && !ask.Explain {
		ask.Explain = wants(r.Attempts)
	}
	q, err := f.queue(ask.Model)
	if err != nil {
		return err
	}
	now, x := time.Now(), &r.Call.Request.Nvext
	f.warming.arrived(ask.Model, now)
	route := f.placer.Route(f.rooms.Roster.Fleet(ask.Model), ask, now)
	if err := route.Fits(); err != nil { // no worker could ever hold it
		return err
	}
	uncached := r.length() - max(r.done.Tokens, route.Cached(now))
	r.Spent.Matching = time.Since(now)
	class := f.class(r, uncached)
	waits := r.traceWait(q, now)
	f.observer.Queued(&r.Record, uncached)
	item := queue.Item{
		ID: r.ID, Priority: float64(firstSet(r.Call.Priority, x.Priority)), Strict: firstSet(r.Call.StrictPriority, x.StrictPriority),
		ISL: r.length(), Uncached: uncached, Bytes: int64(len(r.Call.Request.Raw)), Class: class,
		Arrival: r.Call.Arrival, Retry: r.Attempts > 0 || r.KV != nil, Target: x.TTFTTarget, Promoted: &r.promoted, Lane: ask.Lane(),
	}
	if ask.Sliced {
		item.Slice = f.rooms.Routers.For(ask.Model, pools.Prefill).SliceTokens()
	}
	r.Retain() // for a drain that still reads ask when the wait was cut short; it never releases
	granted, err := q.Admit(ctx, item, ask)
	if err == nil {
		r.Release()
	}
	r.Spent.Queued += time.Since(now)
	if err == nil {
		r.Spent.Scheduling = granted.Took
	}
	if r.Trace != nil {
		r.Trace.end(waits, time.Time{}, now.Add(time.Since(now)), r.waitFailure(ctx, err))
	}
	f.observer.Granted(&r.Record, err)
	if err != nil {
		return err
	}
	for _, l := range [...]*router.Lease{granted.Prefill.Lease, granted.Decode.Lease} {
		if l != nil {
			f.warming.yields("", l.Worker.ID)
		}
	}
	r.take(&granted, q)
	return nil
}

// class returns r's policy class. An unknown class name from the client is recorded as an ignored hint.
func (f *Flow) class(r *request, uncached int) int {
	classes, asked := f.cfg.Queue.Classes, r.Call.PolicyClass
	class, known := classes.Find(asked, uncached)
	if r.PolicyClass == "" && classes != nil && asked != "" && !known {
		r.Call.IgnoredHints = append(slices.Clip(r.Call.IgnoredHints), HeaderPolicyClass)
	}
	r.PolicyClass = classes.Name(class)
	return class
}

// reserve is the drain step of one request: it books what the round lacks, or returns why the request must wait or
// fails.
func (f *Flow) reserve(ask *placement.Ask, d queue.Drain[*placement.Ask], now time.Time) (placement.Placement, error) {
	ask.Drain, ask.PlanOnly, ask.Yield = d.Round, d.Planning, d.Yield
	placed, err := f.placer.Book(f.rooms.Roster.Fleet(ask.Model), ask, d.Ahead, now)
	if errors.Is(err, placement.ErrYield) {
		err = fmt.Errorf("%w: %w", queue.ErrYield, err)
	}
	if _, later := errors.AsType[queue.Later](err); !later && err != nil && placement.Waits(err) {
		err = fmt.Errorf("%w: %w", queue.ErrWait, err)
	}
	if f.keepsWaiting(ask, err) {
		err = fmt.Errorf("%w: %w", queue.ErrWait, err)
	}
	if err != nil {
		f.warming.yields(ask.Model, "")
	}
	ask.Waited = ask.Waited || err != nil
	placed.Took = time.Since(now)
	return placed, err
}

// keepsWaiting reports whether a waiting request keeps waiting although no worker is left, since a worker may restart. A
// request that arrives then is refused, so its client can go elsewhere; one that has tried workers ends with their
// failure.
func (f *Flow) keepsWaiting(ask *placement.Ask, err error) bool {
	lacks := errors.Is(err, placement.ErrNoDecode) || errors.Is(err, placement.ErrNoPrefill)
	unloaded := ask.Adapter != "" && errors.Is(err, router.ErrTaints)
	return lacks && !unloaded && len(ask.Exclude) == 0 && ask.Waited &&
		(ask.Want == placement.Any || !f.alone(ask))
}

// nextAsk returns the placement query of r's next round: the one begun by understand, or a new one.
func (f *Flow) nextAsk(r *request) *placement.Ask {
	if ask := r.ask; ask != nil {
		r.ask = nil
		return ask
	}
	x, ask := &r.Call.Request.Nvext, &r.firstAsk
	if r.Attempts > 0 || r.passes > 0 { // the queue may still read the previous one, whose wait was cut short
		ask = new(placement.Ask)
	}
	*ask = placement.Ask{
		Model: r.Call.Request.Model, OneLeg: r.oneLeg(), AnyRole: !r.Call.Request.Endpoint.Computes(),
		DecodePin: r.pins.decode.routerPin(), DecodeHashes: r.decodeHashes,
		Request: router.Request{
			ID: r.ID, Attempt: r.Attempts + 1, ISL: r.length(), Inputs: r.Call.Request.Inputs, Hashes: r.Hashes, Text: r.ids == nil,
			RemoteOverlap: r.remoteOverlap,
			Exclude:       slices.Concat(r.tried, r.suspected.others), Pin: r.pins.prefill.routerPin(),
			Required: x.RequiredTaints, Preferred: x.PreferredTaints, Adapter: r.Call.Request.Adapter,
			OSL: int(firstSet(x.OSL)), Override: r.override, Session: cmp.Or(r.Call.Session, r.Call.Request.Session),
			Explain: f.cfg.Explain || x.Wants("routing"),
		},
	}
	switch {
	case r.d.Lease != nil:
		ask.Want, ask.Partner = placement.Prefill, r.d.Worker
	case r.KV != nil:
		ask.Want, ask.Partner = placement.Decode, r.KV.producer
	case r.pins.alone:
		ask.Want = placement.Alone
	}
	ask.Done = r.done
	return ask
}

// refusal turns the end of an admission into the error that the client gets.
func (r *request) refusal(err error) *openai.Error {
	var full *queue.FullError
	var big *router.TooBigError
	var typed *openai.Error
	var over *router.OverloadedError
	var pin *placement.PinError
	var alone *placement.AloneError
	switch {
	case errors.As(err, &typed):
		return typed
	case errors.As(err, &pin):
		return r.pins.of(pin.Role).unavailable()
	case errors.As(err, &over):
		return openai.Overloaded(time.Second, over.Error())
	case errors.Is(err, router.ErrTaints) && r.Call.Request.Adapter != "":
		return openai.Unavailable("no_adapter_worker", "no worker that can be chosen has the adapter "+
			Shown(r.Call.Request.Adapter)+" loaded, and the taints that the request requires")
	case errors.Is(err, router.ErrTaints):
		return openai.Unavailable("no_tainted_worker",
			"no worker that can be chosen has the taints in nvext.routing_constraints.required_taints")
	case errors.As(err, &full):
		if full.Class != "" {
			return openai.SlowDown(full.RetryAfter, "the queue is full for the policy class "+full.Class)
		}
		return openai.Overloaded(full.RetryAfter, "the queue is full")
	case errors.As(err, &big):
		size := r.card.BlockSize
		if pool := (*router.PoolError)(nil); errors.As(err, &pool) && pool.Role == pools.Decode {
			size = r.card.DecodeBlockSize
		}
		return r.Call.Request.TooLong(max(r.ISL, (big.LargestBlocks-1)*size), (big.LargestBlocks-1)*size, false)
	case errors.Is(err, queue.ErrExpired):
		return openai.GatewayTimeout("queue_timeout", "the request waited longer than queue-timeout for a worker")
	case placement.Waits(err): // a query
		return openai.Overloaded(time.Second, "every worker is busy now: the request would wait")
	case errors.Is(err, placement.ErrNoDecode):
		return openai.Unavailable("no_worker", placement.ErrNoDecode.Error())
	case errors.As(err, &alone) && alone.Reason == reasonEndpoint:
		return openai.NotServed(r.Call.Request.Endpoint)
	case errors.As(err, &alone):
		field, value := r.rulesOut(alone.Reason)
		return openai.BadRequest(field,
			"this model's workers serve in pairs only, and a request with %s%s has no prefill leg", field, value)
	case errors.Is(err, placement.ErrNoPrefill):
		return openai.Unavailable("no_worker", placement.ErrNoPrefill.Error())
	case errors.Is(err, queue.ErrClosed):
		return openai.Unavailable("shutting_down", "the gateway is shutting down")
	default:
		return openai.Internal()
	}
}
