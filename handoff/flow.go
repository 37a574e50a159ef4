// Package handoff takes a request through the gateway: tokens, admission with both bookings, prefill, hand-off,
// decode, stream, release. Flow.Serve is that way, top to bottom; a retry is the next round of its loop. How an
// engine's transfer protocol looks is the business of handoff/connector; what to do after a failure is a pure
// table in decide.go.
package handoff

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/tandem-pd/tandem/decode"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/handoff/connector"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/tracecontext"
	"github.com/tandem-pd/tandem/internal/upstream"
	"github.com/tandem-pd/tandem/kv/overlap"
	"github.com/tandem-pd/tandem/models"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
	"github.com/tandem-pd/tandem/queue"
	"github.com/tandem-pd/tandem/router"
	"github.com/tandem-pd/tandem/router/placement"
)

// Config is the flow's settings.
type Config struct {
	// DecodeFallback lets decode do its own prefill when no prefill worker is left.
	DecodeFallback bool `flag:"decode-fallback" default:"true" group:"Faults" help:"On: without a prefill worker a decode worker prefills, and its streams stutter. Off: answer 503."`
	// Resume is what becomes of streams whose worker fails.
	Resume Resuming `group:"Faults"`
	// Queue is the waiting room of each model.
	Queue queue.Config `group:"Queue"`
	// Seed of the names that engines know requests by: the same seed and order of requests give the same names. They
	// are unique within one gateway only; 0 draws them, unique everywhere.
	Seed uint64
	// Explain has the router record the candidates of each choice with each term of their cost, as the request log
	// wants them (--log-routing).
	Explain bool
}

// Rooms are the parts that a flow leads a request through.
type Rooms struct {
	Roster  *pools.Roster
	Prefill *prefill.Room
	Decode  *decode.Room
	// Routers choose among the workers of each pool.
	Routers *router.Set
	// Breakers know which workers to leave alone; nil knows none.
	Breakers *fault.Breakers
	// Transport carries the clean-up calls that outlive a request.
	Transport upstream.Transport
	// Languages make the tokens of prompts. A request whose tokens are not known is routed by its text.
	Languages *models.Library
	// Remote asks a remote index which blocks of a prompt the workers of a model hold. The outcome is one word:
	// "answered", or why the report is nil. It must not take long. Remote is nil without a remote index.
	Remote func(ctx context.Context, model string, blockSize int, hashes []uint64) (report *overlap.Report, outcome string)
	// Reannounce reports whether requests to a worker's rank ask its engine to announce the cached blocks they use:
	// events were lost that only the engine can repeat. nil asks no engine.
	Reannounce func(w *pools.Worker, rank int) bool
	// Between finds the connector of a prefill and a decode worker, or says why there is none; nil is
	// [connector.Between].
	Between func(p, d *pools.Worker) (connector.Connector, error)
	// Sample reports whether the request of a trace is traced. parent is the client's span, zero without one. nil traces
	// none, and engines get the client's traceparent as it came.
	Sample func(id tracecontext.TraceID, parent tracecontext.Context) bool
	// Explains reports whether the choice for a request, which has begun that many rounds, is recorded with every
	// candidate's terms although neither the request nor Config.Explain asks for that. It is asked once a choice; nil
	// never wants it.
	Explains func(rounds int) bool
	// Look has a worker asked at once what it serves and hands over by: it turned out to have no such model or adapter, its connection
	// broke, or its KV could not be pulled. A Mooncake prefill that has started again has another engine id. It may be nil.
	Look func(worker string)
	// PairChanged is called when a pair of workers is shut, with the reason, or opens again, with none. It must not wait; it may be nil.
	PairChanged func(p, d *pools.Worker, reason string)
	// Starting is the error of a request that comes before the gateway is ready, nil once it is. Starting is nil if
	// requests are taken from the start.
	Starting func() *openai.Error
}

// Flow serves requests. It is safe for concurrent use.
type Flow struct {
	cfg      Config
	rooms    Rooms
	placer   placement.Placer
	observer Observer
	cleanup  *cleanup
	abandon  func(kv *StagedKV) // cleanup's, made once
	budget   *fault.Budget
	ids      ids
	slices   sliceGuard
	links    links
	requests sync.Pool // of *request

	mu     sync.RWMutex
	queues map[string]*waitingRoom // by model: one model's full pool never holds another's requests
}

// New makes a flow. It wakes its queues on changes of the roster and the circuits, since a worker that comes, or may
// be called again, is room for waiting requests.
func New(cfg Config, rooms Rooms, observer Observer) (*Flow, error) {
	if err := cfg.Queue.Validate(); err != nil {
		return nil, err
	}
	if rooms.Between == nil {
		rooms.Between = connector.Between
	}
	f := &Flow{cfg: cfg, rooms: rooms, observer: observer, cleanup: newCleanup(rooms, observer), budget: new(fault.Budget), queues: map[string]*waitingRoom{}}
	f.ids.seed = cfg.Seed
	f.requests.New = func() any { return f.blank() }
	f.abandon = func(kv *StagedKV) { f.cleanup.abandon(kv.connector, *kv.round, kv.KV) }
	f.placer = placement.Placer{Routers: rooms.Routers, Permits: rooms.Breakers, Pairs: func(p, d *pools.Worker) error { _, err := f.rooms.Between(p, d); return err }, Fallback: cfg.DecodeFallback, Transfers: &f.links}
	f.links.core = placement.NewLinks(func(p *pools.Worker, tokens int) (time.Duration, bool) {
		return rooms.Prefill.Forecast(p, 0, tokens, 0)
	})
	f.links.core.OnChange = rooms.PairChanged
	rooms.Roster.OnChange(f.forgetLinks)
	rooms.Roster.OnChange(f.wakeAll)
	rooms.Breakers.OnAvailable(f.wakeAll)
	return f, nil
}

// Serve answers one request. It returns nil when the client got its whole answer. An error before out was started is
// an *openai.Error for the edge to write; after that the stream has ended with an error event, and the error is only
// the caller's to know.
//
// Each round of the loop starts from what the client was already sent and ends finished or with a named failure. What
// is held (bookings, staged KV) is released in one place, the latest first, whatever the end. It takes a copy of call.
func (f *Flow) Serve(ctx context.Context, call *Call, out Sink) (err error) {
	r := f.newRequest(call)
	f.trace(r)
	f.budget.Begin()
	defer func() {
		f.endRetries(r)
		r.done.End()
		f.budget.End()
		r.end(err)
		f.observer.Ended(&r.Record, err)
		r.draft.Release()
		call.Alone = f.reuse(r)
	}()
	if err := f.understand(ctx, r); err != nil {
		return err
	}
	f.askRemote(ctx, r)
	if r.Call.Request.Nvext.QueryOnly() {
		return f.query(r, out)
	}
	defer r.stack.release()
	defer r.stopWaiting()
	defer func() {
		r.suspected.permit.end()
		r.settle(nil)
		f.links.left(r)
	}()
	for {
		if err := f.admit(ctx, r); err != nil {
			return r.refuse(ctx, err, out)
		}
		var failed *fault.Error
		if r.takesTurn() {
			if failed = f.turn(ctx, r); failed == nil {
				continue
			}
		} else if failed = f.round(ctx, r, out); failed == nil {
			if r.computesAndShows() && !r.shown {
				f.compareTokens(r.prompt, r.leg.Worker, &openai.ChunkInfo{Usage: r.Sent.PromptTokens >= 0, PromptTokens: r.Sent.PromptTokens})
			}
			r.served = true
			return nil
		}
		var next context.Context
		if next, err = f.again(ctx, r, failed, out); next == nil {
			return err
		}
		ctx = next
	}
}

// again takes in how a round failed and gives the context of the next one, or nil with the request's end, which may be no error.
//
//go:noinline
func (f *Flow) again(ctx context.Context, r *request, failed *fault.Error, out Sink) (next context.Context, err error) {
	switch failed.Class {
	case fault.Reset, fault.Truncated:
		r.Dead = append(r.Dead, failed.Worker)
		f.look(failed.Worker)
		fallthrough
	case fault.Refused:
		f.rooms.Languages.Stale(r.Call.Request.Model, failed.Worker)
	case fault.NotServed:
		f.look(failed.Worker)
	}
	action := Decide(failed.Leg, failed.Class, r.Attempts-r.before, len(r.Dead), r.Sent.Began, r.Sent.Began && f.resumable(r, failed))
	if action == LocalPrefill && (!f.cfg.DecodeFallback || r.d.Lease != nil && !r.d.Worker.ServesAlone()) {
		action = Fail
	}
	stays := r.suspected.decode == failed.Worker // another's KV is to blame, or it is asked once more
	if action != Fail && (r.pins.of(failed.Leg).Worker != "" && !stays || !f.waitsForRetry(r, failed, action) && !f.mayRetry(r)) {
		action = Fail
	}
	f.observer.Failed(&r.Record, failed, action)
	if action == Fail {
		return nil, r.fail(failed, out)
	}
	r.failed(failed)
	r.prepare(action)
	if action == Resume {
		ctx = f.resume(ctx, r)
	}
	if err := f.awaitRetry(ctx, r); err != nil {
		if r.Sent.Started {
			return nil, r.refuse(ctx, err, out)
		}
		return nil, r.fail(failed, out)
	}
	return ctx, nil
}

// waitsForRetry reports whether the request waits for its place in the retry budget where none is free: what one worker's death
// meets, that of the worker which held its KV too, answers that have begun, and prompts whose KV comes too slowly. A death is met by those that the worker had, and
// by those whose connection it refuses before that is known.
func (f *Flow) waitsForRetry(r *request, failed *fault.Error, action Action) bool {
	return action == Resume || r.slow || len(r.Dead) == 1 || r.suspected.decode != "" || failed.Class == fault.Refused && len(r.tried) == 0
}

// awaitRetry takes that place when it is the request's turn. Its error is the cause of ctx's end, or that it took too long.
func (f *Flow) awaitRetry(ctx context.Context, r *request) error {
	if r.retrying {
		return nil
	}
	within, cancel := context.WithTimeoutCause(ctx, f.cfg.Resume.Within, errStandsStill)
	defer cancel()
	if r.retrying = f.budget.Wait(within); r.retrying {
		return nil
	}
	if r.Sent.Started && errors.Is(context.Cause(within), errStandsStill) {
		r.NotResumable = "budget"
	}
	return context.Cause(within)
}

// mayRetry takes the request's place in the retry budget, once for all its retries: an outage must not be multiplied
// by those it hits.
func (f *Flow) mayRetry(r *request) bool {
	if !r.retrying {
		r.retrying = f.budget.Take()
	}
	return r.retrying
}

// endRetries gives that place back, if it was taken.
func (f *Flow) endRetries(r *request) {
	if r.retrying {
		r.retrying = false
		f.budget.Return()
	}
}

// Close refuses new requests, ends the waiting ones, and waits for the clean-up calls in flight until ctx ends.
func (f *Flow) Close(ctx context.Context) error {
	for _, q := range f.all() {
		q.Close()
	}
	return f.cleanup.wait(ctx)
}

// Retries is the state of the retry budget.
func (f *Flow) Retries() fault.BudgetStats { return f.budget.Stats() }

// SetReplicaCount sets the number of gateways in the group, this one included.
func (f *Flow) SetReplicaCount(gateways int) { f.budget.SetReplicaCount(gateways) }

// Waiting is the state of every model's queue.
func (f *Flow) Waiting() map[string]queue.Stats {
	f.mu.RLock()
	defer f.mu.RUnlock()
	all := make(map[string]queue.Stats, len(f.queues))
	for model, q := range f.queues {
		all[model] = q.Stats()
	}
	return all
}

// Lines is who waits in every model's queue.
func (f *Flow) Lines() map[string]queue.Line {
	f.mu.RLock()
	defer f.mu.RUnlock()
	all := make(map[string]queue.Line, len(f.queues))
	for model, q := range f.queues {
		all[model] = q.Line()
	}
	return all
}

// queue finds a model's waiting room.
func (f *Flow) queue(model string) (*waitingRoom, error) {
	f.mu.RLock()
	q := f.queues[model]
	f.mu.RUnlock()
	if q != nil {
		return q, nil
	}
	return f.newQueue(model)
}

// newQueue makes a model's waiting room, unless another request was faster.
func (f *Flow) newQueue(model string) (q *waitingRoom, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if q = f.queues[model]; q != nil {
		return q, nil
	}
	q, err = queue.New(f.cfg.Queue, func(ask *placement.Ask, ahead []*placement.Ask, now time.Time) (placement.Placement, error) {
		ask.Drain, ask.PlanOnly, ask.Yield = q.Round(), q.Planning(), q.Yields()
		return f.reserve(ask, ahead, now)
	}, func(p placement.Placement) { p.Release(time.Now()) })
	if err == nil {
		f.queues[model] = q
	}
	return q, err
}

// Wake makes a model's queue look at its waiting requests again: what the router allows has changed.
func (f *Flow) Wake(model string) {
	f.mu.RLock()
	q := f.queues[model]
	f.mu.RUnlock()
	if q != nil {
		q.Wake()
	}
}

// Heads is which requests with a strict priority go first in every model's queue, for other gateways: see [queue.Core.Heads].
func (f *Flow) Heads() map[string][]queue.Head {
	f.mu.RLock()
	defer f.mu.RUnlock()
	all := make(map[string][]queue.Head)
	for model, q := range f.queues {
		if heads := q.Heads(); heads != nil {
			all[model] = heads
		}
	}
	return all
}

// UpdatePeerHeads takes in the heads of another gateway's queue of a model. A model without a queue here has none to leave room. It reports whether
// the queue is to be woken.
func (f *Flow) UpdatePeerHeads(gateway, model string, heads []queue.Head) (wake bool) {
	f.mu.RLock()
	q := f.queues[model]
	f.mu.RUnlock()
	return q != nil && q.UpdatePeerHeads(gateway, heads)
}

func (f *Flow) wakeAll() {
	for _, q := range f.all() {
		q.Wake()
	}
}

func (f *Flow) all() []*waitingRoom {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return slices.Collect(maps.Values(f.queues))
}
