// Package handoff takes a request through the gateway: tokens, admission with
// both bookings, prefill, hand-off, decode, stream, release. Flow.Serve is that
// way, top to bottom; a retry is the next round of its loop. How an engine's
// transfer protocol looks is a connector's business, one file each; what to do
// after a failure is a pure table in decide.go.
package handoff

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/decode"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/tokens"
	"github.com/tandem-pd/tandem/internal/upstream"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
	"github.com/tandem-pd/tandem/queue"
	"github.com/tandem-pd/tandem/router"
)

// Config is what the flow can be told.
type Config struct {
	// DecodeFallback lets decode do its own prefill when no prefill worker is
	// left (--decode-fallback). Off answers 503.
	DecodeFallback bool
	// Utilization is the share of a worker's capacity that desired_workers
	// plans with, above 0 and at most 1 (--desired-workers-utilization); 0
	// means [DefaultUtilization].
	Utilization float64
	// Queue is the waiting room of each model.
	Queue queue.Config
	// Seed of the names that engines know requests by (--router-seed): the same
	// seed and order of requests give the same names. They are unique within one
	// gateway only; 0 draws them, unique everywhere.
	Seed uint64
	// LogBlocks has each request's log line name the blocks of its prompt
	// (--log-blocks), for `gateway load --from-log`.
	LogBlocks bool
	// LogRouting has each request's log line name the candidates for its workers
	// with each term of their cost (--log-routing).
	LogRouting bool
}

// Rooms are the parts that a flow leads a request through.
type Rooms struct {
	Roster  *pools.Roster
	Prefill *prefill.Room
	Decode  *decode.Room
	// Pairer gives a model's pairer, which chooses the two workers of a request.
	Pairer func(model string) router.Pairer
	// Breakers know which workers to leave alone; nil knows none.
	Breakers *fault.Breakers
	// Transport carries the clean-up calls that outlive a request.
	Transport upstream.Transport
	// Tokenizer gives a model's tokenizer, nil where it is not known; the
	// request is then routed by its length alone.
	Tokenizer func(model string) *tokens.Cache
	// Remote asks an index elsewhere what the workers of a model hold of a prompt, by
	// its blocks' hashes, and says in a word what came of it: "answered", or why what
	// is told is nil. It must not take long. Nil itself where there is none.
	Remote func(ctx context.Context, model string, blockSize int, hashes []uint64) (told *router.Told, outcome string)
	// Retell reports whether requests to a worker's rank shall ask its engine to
	// announce what of its cache they use: events were lost that only the engine
	// can say again. nil asks nobody.
	Retell func(w *pools.Worker, rank int) bool
	// Starting says why no request is taken yet, nil once they are; nil itself
	// where they are taken from the start.
	Starting func() *openai.Error
}

// Flow serves requests. It is safe for concurrent use.
type Flow struct {
	cfg     Config
	rooms   Rooms
	log     *slog.Logger
	metrics *metrics
	cleanup *cleanup
	budget  *fault.Budget
	ids     ids
	blocks  *blockNames // nil unless they are logged

	mu     sync.RWMutex
	queues map[string]*queue.Queue // by model: one model's full pool never holds another's requests
}

// New makes a flow. It asks the roster and the circuits to report changes, since a
// worker that comes, or may be asked again, is room for whoever waits.
func New(cfg Config, rooms Rooms, log *slog.Logger, reg prometheus.Registerer) (*Flow, error) {
	if err := cfg.Queue.Validate(); err != nil {
		return nil, err
	}
	f := &Flow{cfg: cfg, rooms: rooms, log: log, budget: fault.NewBudget(fault.BudgetConfig{}), queues: map[string]*queue.Queue{}}
	f.ids.seed = cfg.Seed
	if cfg.LogBlocks {
		f.blocks = newBlockNames()
	}
	f.metrics = newMetrics(reg, f)
	f.cleanup = newCleanup(rooms.Transport, log, f.metrics)
	rooms.Roster.OnChange(f.wakeAll)
	rooms.Breakers.OnRoom(f.wakeAll)
	return f, nil
}

// Serve answers one request. It returns nil when the client got its whole
// answer. An error before out was started is an *openai.Error for the edge to
// write; after that the stream has ended with an error event, and the error is
// only the caller's to know.
//
// Each round of the loop starts from what the client was already sent and ends
// finished or with a named failure. What is held (bookings, staged KV) is
// released in one place, the latest first, whatever the end.
func (f *Flow) Serve(ctx context.Context, call Call, out Sink) (err error) {
	r := newRequest(call, f.ids.next())
	f.budget.Begin()
	defer func() {
		f.endRetries(r)
		f.budget.End()
		f.record(r, err)
	}()
	if err := f.understand(r); err != nil {
		return err
	}
	f.askRemote(ctx, r)
	if r.call.Request.Nvext.QueryOnly() {
		return f.query(r, out)
	}
	defer r.held.release()
	for {
		if err := f.admit(ctx, r); err != nil {
			f.metrics.refused(r, err)
			return r.refuse(ctx, err)
		}
		failed := f.round(ctx, r, out)
		if failed == nil {
			return nil
		}
		if failed.Class == fault.Reset || failed.Class == fault.Truncated {
			r.dead = append(r.dead, failed.Worker)
		}
		action := Decide(failed.Leg, failed.Class, r.attempt, len(r.dead), r.sent.Events)
		if action == LocalPrefill && !f.cfg.DecodeFallback {
			action = Fail
		}
		if action != Fail && (r.pins.of(failed.Leg).Worker != "" || !f.mayRetry(r)) {
			action = Fail
		}
		f.metrics.failures.WithLabelValues(string(failed.Leg), failed.Class.String(), action.String()).Inc()
		if failed.Class.Blames() || failed.Class == fault.GatewayError {
			f.log.Warn("leg failed", "request_id", r.call.ID, "attempt", r.attempt, "leg", failed.Leg,
				"worker", failed.Worker, "class", failed.Class.String(), "error", failed.Error(), "action", action.String())
		}
		if action == Fail {
			if len(r.dead) >= MaxDeaths {
				f.suspect(r, failed)
			}
			return r.fail(failed, out)
		}
		f.metrics.migrated(r)
		r.prepare(action, failed)
	}
}

// suspect reports a request under which MaxDeaths workers have died, to people and
// to its client, whose library is not to try it again by itself.
func (f *Flow) suspect(r *request, failed *fault.Error) {
	f.metrics.poison.Inc()
	f.log.Error("suspected poison: workers died while they had this request, and it is tried on no other",
		"request_id", r.call.ID, "engine_request_id", r.id, "model", shown(r.call.Request.Model), "workers", r.dead)
	failed.Err = errors.Join(poisoned(), failed.Err)
}

// mayRetry takes the request's place in the retry budget, once for all its
// retries: an outage must not be multiplied by those it hits.
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

// round sends one attempt: prefill where the plan has it and no KV is held
// yet, the hand-off, decode and the stream.
func (f *Flow) round(ctx context.Context, r *request, out Sink) *fault.Error {
	a := r.nextAttempt()
	connector, ok := connectorFor(a.P, a.D)
	if !ok {
		if field := r.pins.prefill.field; r.pins.prefill.Worker != "" {
			return &fault.Error{Class: fault.Rejected, Leg: fault.Prefill, Worker: a.P.ID, Err: openai.BadRequest(field,
				"%s: the worker has no way to hand its KV cache over to decode worker %q", field, a.D.ID)}
		}
		if !f.cfg.DecodeFallback {
			return &fault.Error{Class: fault.Rejected, Leg: fault.Prefill, Worker: a.P.ID, Err: refusal(errNoPrefill)}
		}
		r.dropPrefill(reasonEngine)
		a.P, connector = nil, NIXL{}
	}
	if ask := f.rooms.Retell; ask != nil && r.kv == nil { // whoever computes the prompt
		a.PRetell = a.P != nil && ask(a.P, a.PRank)
		a.DRetell = a.P == nil && ask(a.D, a.DRank)
	}
	plan, err := connector.Plan(Body{Request: r.call.Request, IDs: r.ids, Kept: r.kept}, a)
	if err != nil {
		return &fault.Error{Class: fault.Rejected, Leg: fault.Decode, Worker: a.D.ID, Err: err}
	}
	if plan.Mode == Relay && r.kv == nil {
		started := time.Now()
		counted := f.metrics.call(r, a.P, started)
		lease := r.p
		answer, failed := f.rooms.Prefill.Run(ctx, lease, plan.Prefill)
		var kv KV
		if failed == nil {
			kv, failed = handedOver(ctx, connector, a, answer.Body)
			if failed != nil && kv.Params != nil { // it cannot be bound, and names what is to be released
				f.cleanup.abandon(connector, a, kv, f.standIn(r))
			}
		}
		counted.answer(failed, time.Now())
		r.pEnd(classOf(failed))
		if failed != nil {
			lease.Withdraw() // it may not hold the prompt
		}
		r.endPrefill(time.Since(started))
		f.wake(r.call.Request.Model)
		if failed != nil {
			return failed
		}
		r.compare(lease, answer.Said.CachedTokens)
		r.holdKV(kv, answer.Said, func() { f.cleanup.abandon(connector, a, kv, f.standIn(r)) })
	}
	if r.kv != nil {
		connector.Bind(&plan.Decode, *r.kv)
	}
	r.decodeStart = time.Now()
	counted := f.metrics.call(r, a.D, r.decodeStart)
	sent, failed := f.rooms.Decode.Run(ctx, decode.Call{
		Lease: r.d, Leg: plan.Decode,
		Stream: r.call.Request.Stream, IncludeUsage: r.call.Request.IncludeUsage, Choices: max(1, r.call.Request.N),
		Chat:         r.call.Request.Endpoint == openai.Chat && plan.Decode.Path == openai.Completions.Path(),
		CachedTokens: r.cachedTokens(), Tail: r.tail(), Gap: counted.gap,
		PromptTokens: r.isl, MaxTokens: r.longestAnswer(), Longest: r.mostTokens(), Tools: r.call.Request.HasTools, HandedOff: r.kv != nil,
		// A first token proves the worker: a long answer must not hold a
		// half-open circuit for as long as it lasts. A failure after it counts.
		First: func() {
			r.dEnd(fault.None)
			f.endRetries(r) // it is not tried again from here on: a long answer must not keep others from a retry
			counted.token(r)
			f.wake(r.call.Request.Model)
		},
	}, out)
	r.dEnd(classOf(failed))
	if failed != nil && sent.First.IsZero() {
		r.d.Withdraw()
	}
	counted.end(&sent)
	r.sent = sent
	if failed == nil && r.kv == nil {
		r.compare(r.d, sent.CachedTokens)
	}
	if !sent.First.IsZero() || sent.Accepted && failed != nil && failed.Class == fault.ClientGone {
		// Decode has computed with the KV, or was cut off while it waited for
		// it: either way the engine itself tells prefill to let go.
		r.kvTaken()
	}
	return failed
}

// handedOver reads what prefill's answer hands over. Of one that cannot be bound
// the KV's Params, where they are not nil, name what is to be released.
func handedOver(ctx context.Context, connector Connector, a Attempt, answer []byte) (KV, *fault.Error) {
	kv, err := connector.OnPrefill(a, answer, time.Now())
	switch {
	case err == nil:
		return kv, nil
	case ctx.Err() != nil: // an engine that was left in mid-prefill owes no hand-off
		return kv, fault.New(fault.Prefill, a.P.ID, context.Cause(ctx), 0)
	default:
		return kv, fault.New(fault.Prefill, a.P.ID, fmt.Errorf("%w: %w", fault.ErrGarbled, err), 0)
	}
}

// standIn finds a decode worker to release KV through when the round's own is
// gone.
func (f *Flow) standIn(r *request) func(now time.Time) *pools.Worker {
	return func(now time.Time) *pools.Worker {
		for _, m := range f.rooms.Decode.Pool(r.call.Request.Model, pools.Decode).Members {
			if m.Eligible(now) {
				return m.Worker
			}
		}
		return nil
	}
}

// Close refuses new requests, ends those that wait, and waits for the clean-up
// calls in flight until ctx ends.
func (f *Flow) Close(ctx context.Context) error {
	f.mu.RLock()
	all := slices.Collect(maps.Values(f.queues))
	f.mu.RUnlock()
	for _, q := range all {
		q.Close()
	}
	return f.cleanup.wait(ctx)
}

// Waiting is the state of every model's queue, for /metrics and /workers.
func (f *Flow) Waiting() map[string]queue.Stats {
	f.mu.RLock()
	defer f.mu.RUnlock()
	all := make(map[string]queue.Stats, len(f.queues))
	for model, q := range f.queues {
		all[model] = q.Stats()
	}
	return all
}

// queue finds a model's waiting room.
func (f *Flow) queue(model string) (*queue.Queue, error) {
	f.mu.RLock()
	q := f.queues[model]
	f.mu.RUnlock()
	if q != nil {
		return q, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if q := f.queues[model]; q != nil {
		return q, nil
	}
	q, err := queue.New(f.cfg.Queue)
	if err == nil {
		f.queues[model] = q
	}
	return q, err
}

// Wake has those who wait for a model's workers looked at again: what the router
// allows has changed.
func (f *Flow) Wake(model string) { f.wake(model) }

func (f *Flow) wake(model string) {
	f.mu.RLock()
	q := f.queues[model]
	f.mu.RUnlock()
	if q != nil {
		q.Wake()
	}
}

func (f *Flow) wakeAll() {
	f.mu.RLock()
	all := slices.Collect(maps.Values(f.queues))
	f.mu.RUnlock()
	for _, q := range all {
		q.Wake()
	}
}

// errNoDecode says that no decode worker can be chosen.
var errNoDecode = errors.New("no decode worker is available")

// errNoPrefill says that no prefill worker can be chosen and that decode may
// not stand in.
var errNoPrefill = errors.New("no prefill worker is available and decode-fallback is off")
