// Package handoff takes a request through the gateway: tokens, admission with both bookings, prefill, hand-off,
// decode, stream, release. Flow.Serve is that path, top to bottom; a retry is the next round of its loop. Transfer
// protocols are in handoff/connector; decide.go is the table of what follows a failure.
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
	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/trace"
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
	// Resume configures streams whose worker fails.
	Resume Resuming `group:"Faults"`
	// Queue is the waiting room of each model.
	Queue queue.Config `group:"Queue"`
	// Seed makes the request names that engines see reproducible: same seed and order, same names. They are unique
	// within one gateway only; 0 draws names that are unique everywhere.
	Seed uint64
	// Explain has the router record the candidates of each choice with each term of their cost, as the request log
	// wants them (--log-requests=routing).
	Explain bool
}

// Rooms are the components that a flow uses.
type Rooms struct {
	Roster  *pools.Roster
	Prefill *prefill.Room
	Decode  *decode.Room
	// Routers choose among the workers of each pool.
	Routers *router.Set
	// Breakers are the workers' circuits; nil has none.
	Breakers *fault.Breakers
	// Transport carries the clean-up calls that outlive a request.
	Transport http1.Transport
	// Languages tokenize prompts. A request without known tokens is routed by its text.
	Languages *models.Library
	// Remote queries a remote index for the blocks of a prompt that the workers of a model hold. outcome is
	// "answered", or why report is nil. It must be quick. nil without a remote index.
	Remote func(ctx context.Context, model string, blockSize int, hashes []uint64) (report *overlap.Report, outcome string)
	// Reannounce reports whether requests to a worker's rank ask its engine to announce the cached blocks they use,
	// after lost events. It may be nil.
	Reannounce func(w *pools.Worker, rank int) bool
	// Ejected returns the workers of a pool that get requests only if no other worker could serve them. It may be nil.
	Ejected func(pool *pools.Pool) []string
	// Between finds the connector of a prefill and a decode worker, or returns why there is none; nil is
	// [connector.Between].
	Between func(p, d *pools.Worker) (connector.Connector, error)
	// Sample reports whether to trace the request of a trace. parent is the client's span, zero without one. nil
	// traces none, and engines get the client's traceparent unchanged.
	Sample func(id trace.TraceID, parent trace.Context) bool
	// Explains reports whether to record every candidate's terms for a request that has started this many rounds,
	// although neither the request nor Config.Explain requests it. It is called once per choice and may be nil.
	Explains func(rounds int) bool
	// Look probes a worker at once: it lacks a model or adapter, its connection broke, or its KV could not be pulled.
	// It may be nil.
	Look func(worker string)
	// PairChanged is called when a pair of workers is shut, with the reason, or reopens, with none. It must not
	// block; it may be nil.
	PairChanged func(p, d *pools.Worker, reason string)
	// Starting returns the error for requests before the gateway is ready, nil afterwards. A nil Starting serves from
	// the start.
	Starting func() *openai.Error
}

// Flow serves requests. It is safe for concurrent use.
type Flow struct {
	cfg       Config
	rooms     Rooms
	placer    placement.Placer
	observer  Observer
	cleanup   *cleanup
	releaseKV func(kv *StagedKV) // bound once
	budget    *fault.Budget
	ids       ids
	slices    sliceGuard
	links     links
	warming   *warming
	requests  http1.Pool[request, *request]

	mu     sync.RWMutex
	queues map[string]*waitingRoom // by model: a full pool of one model never blocks another's requests
}

// New makes a flow. Changes of the roster and the circuits wake its queues, since a worker that joins or recovers has
// room.
func New(cfg Config, rooms Rooms, observer Observer) (*Flow, error) {
	if err := cfg.Queue.Validate(); err != nil {
		return nil, err
	}
	if rooms.Between == nil {
		rooms.Between = connector.Between
	}
	f := &Flow{
		cfg: cfg, rooms: rooms, observer: observer, cleanup: newCleanup(rooms, observer), budget: new(fault.Budget),
		queues: map[string]*waitingRoom{}, warming: newWarming(),
	}
	f.ids.seed = cfg.Seed
	f.releaseKV = func(kv *StagedKV) { f.cleanup.release(kv.connector, *kv.round, kv.KV) }
	f.placer = placement.Placer{
		Routers: rooms.Routers, Permits: rooms.Breakers, Ejected: rooms.Ejected, Fallback: cfg.DecodeFallback, Transfers: &f.links,
		Pairs: func(p, d *pools.Worker) error { _, err := f.rooms.Between(p, d); return err },
	}
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
// an *openai.Error for the edge to write; after that the stream has ended with an error event. Serve copies call.
func (f *Flow) Serve(ctx context.Context, call *Call, out Sink) error {
	if req := call.Request; req.N > 1 || req.Prompts() > 1 {
		if apart := f.choosesApart(req); apart || req.Prompts() > 1 {
			return f.serveParts(ctx, call, out, apart)
		}
	}
	return f.serve(ctx, call, out)
}

// serve is Serve of one prompt. Each round of the loop starts from what the client already has and ends finished or
// with a named failure. Bookings and staged KV are released in one place, latest first, in every case.
func (f *Flow) serve(ctx context.Context, call *Call, out Sink) (err error) {
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
		r.Release()
	}()
	if err := f.understand(ctx, r); err != nil {
		return err
	}
	if own := f.tokenizeHere(r); own != nil {
		out.Start("application/json")
		return out.Write(own)
	}
	f.askRemote(ctx, r)
	if r.Call.Request.Nvext.QueryOnly() {
		return f.query(r, out)
	}
	defer r.stack.release()
	defer r.stopWaiting()
	var turn *openai.Turn
	if r.Call.Request.Nvext.SpeculativePrefill {
		turn = openai.NewTurn(r.Call.Request.Stream)
		out = &turnSink{out, turn}
	}
	defer func() {
		r.suspected.permit.end()
		r.endDisputes(nil)
		f.links.left(r)
	}()
	for {
		if err := f.admit(ctx, r); err != nil {
			return r.refuse(ctx, err, out)
		}
		var failed *fault.Error
		if r.prefillsOnly() {
			if failed = f.prefillPass(ctx, r); failed == nil {
				continue
			}
		} else if failed = f.round(ctx, r, out); failed == nil {
			if r.computesAndShows() && !r.shown {
				f.compareTokens(r.prompt, r.leg.Worker,
					&openai.ChunkInfo{Usage: r.Sent.PromptTokens >= 0, PromptTokens: r.Sent.PromptTokens})
			}
			if turn != nil {
				f.warm(r, turn)
			}
			return nil
		}
		var next context.Context
		if next, err = f.onFailure(ctx, r, failed, out); next == nil {
			return err
		}
		ctx = next
	}
}

// onFailure handles a failed round. It returns the next round's context, or nil and the request's error, which may be
// nil.
//
//go:noinline
func (f *Flow) onFailure(ctx context.Context, r *request, failed *fault.Error, out Sink) (next context.Context, err error) {
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
	action := Decide(failed.Leg, failed.Class, r.Attempts-r.before, len(r.Dead), r.Sent.HasToken, r.Sent.HasToken && f.resumable(r, failed))
	if action == LocalPrefill && (!f.cfg.DecodeFallback || r.d.Lease != nil && !r.d.Worker.ServesAlone()) {
		action = Fail
	}
	stays := r.suspected.decode == failed.Worker // another's KV is to blame, or it is called once more
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

// waitsForRetry reports whether the request waits for the retry budget instead of failing when it is exhausted. That
// holds for requests that one worker's death hits, answers with a token, and prompts whose KV transfers too slowly.
func (f *Flow) waitsForRetry(r *request, failed *fault.Error, action Action) bool {
	return action == Resume || r.slow || len(r.Dead) == 1 || r.suspected.decode != "" ||
		failed.Class == fault.Refused && len(r.tried) == 0
}

// awaitRetry waits for a place in the retry budget. Its error is the cause of ctx's end, or a time-out.
func (f *Flow) awaitRetry(ctx context.Context, r *request) error {
	if r.retrying {
		return nil
	}
	within, cancel := context.WithTimeoutCause(ctx, f.cfg.Resume.Within, errResumeTimeout)
	defer cancel()
	if r.retrying = f.budget.Wait(within); r.retrying {
		return nil
	}
	if r.Sent.Started && errors.Is(context.Cause(within), errResumeTimeout) {
		r.NotResumable = "budget"
	}
	return context.Cause(within)
}

// mayRetry takes one place in the retry budget for all of the request's retries, so that an outage is not multiplied
// by those it hits.
func (f *Flow) mayRetry(r *request) bool {
	if !r.retrying {
		r.retrying = f.budget.Take()
	}
	return r.retrying
}

// endRetries returns the place, if one was taken.
func (f *Flow) endRetries(r *request) {
	if r.retrying {
		r.retrying = false
		f.budget.Return()
	}
}

// Close refuses new requests, ends waiting ones, and waits for clean-up calls until ctx ends.
func (f *Flow) Close(ctx context.Context) error {
	for _, q := range f.all() {
		q.Close()
	}
	f.warming.stop(errWarmYields)
	return f.cleanup.wait(ctx)
}

// Retries returns the state of the retry budget.
func (f *Flow) Retries() fault.BudgetStats { return f.budget.Stats() }

// SetReplicaCount sets how many gateways, this one included, share the workers and the floor of the retry budget.
func (f *Flow) SetReplicaCount(gateways int) {
	f.budget.SetReplicaCount(gateways)
	f.warming.mu.Lock()
	f.warming.gateways = gateways
	f.warming.mu.Unlock()
}

// Waiting returns the state of every model's queue.
func (f *Flow) Waiting() map[string]queue.Stats {
	f.mu.RLock()
	defer f.mu.RUnlock()
	all := make(map[string]queue.Stats, len(f.queues))
	for model, q := range f.queues {
		all[model] = q.Stats()
	}
	return all
}

// Lines returns the waiting requests of every model's queue.
func (f *Flow) Lines() map[string]queue.Line {
	f.mu.RLock()
	defer f.mu.RUnlock()
	all := make(map[string]queue.Line, len(f.queues))
	for model, q := range f.queues {
		all[model] = q.Line()
	}
	return all
}

// queue returns a model's queue, made on first use.
func (f *Flow) queue(model string) (*waitingRoom, error) {
	f.mu.RLock()
	q := f.queues[model]
	f.mu.RUnlock()
	if q != nil {
		return q, nil
	}
	return f.newQueue(model)
}

// newQueue makes a model's queue, unless another request was faster.
func (f *Flow) newQueue(model string) (q *waitingRoom, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if q = f.queues[model]; q != nil {
		return q, nil
	}
	q, err = queue.New(f.cfg.Queue, f.reserve, func(p placement.Placement) { p.Release(time.Now()) })
	if err == nil {
		f.queues[model] = q
	}
	return q, err
}

// Wake makes a model's queue retry its waiting requests: capacity has changed.
func (f *Flow) Wake(model string) {
	f.mu.RLock()
	q := f.queues[model]
	f.mu.RUnlock()
	if q != nil {
		q.Wake()
	}
}

// Heads returns the strict-priority head of every model's queue, for other gateways: see [queue.Core.Heads].
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

// UpdatePeerHeads stores the heads of another gateway's queue of a model, if there is a queue here. It reports whether
// to wake the queue.
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
