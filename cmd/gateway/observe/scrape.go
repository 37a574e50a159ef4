package observe

import (
	"math"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/guard"
	"github.com/tandem-pd/tandem/internal/metrics"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/queue"
	"github.com/tandem-pd/tandem/router"
	"github.com/tandem-pd/tandem/router/placement"
)

// Expose registers the metrics that are read at each scrape: queues, bookings, workers. o is the flow's observer.
func Expose(reg prometheus.Registerer, flow *handoff.Flow, fleet *Fleet, o *Observer) {
	set := metrics.In(reg).Snapshot()
	queues, pool, budget := exposeQueues(set), exposePools(set, fleet, o), exposeBudget(set)
	migrations := set.Gauge("frontend_model_migration_limit", "How often a stream may resume on another worker.", "model")
	shut := set.Gauge("frontend_router_shut_pairs",
		"Pairs of workers that get no hand-offs: slow_transfer, failing_transfer.", "model", "reason")
	panics := set.Counter("handler_panics_total", "Recovered panics. Each is a bug, and a line in the log.", "handler")
	set.Read(func() {
		for handler, n := range guard.Panics() {
			panics.Set(float64(n), handler)
		}
		now, waiting, all := time.Now(), flow.Waiting(), fleet.rooms.Roster.Pools()
		for model, q := range waiting {
			queues(model, q)
		}
		for _, p := range all {
			pool(p, waiting[p.Model], now)
		}
		for _, model := range fleet.rooms.Roster.Models() {
			migrations.Set(float64(flow.MigrationLimit()), model)
		}
		flow.Links(func(model string, slow, failing int) {
			shut.Set(float64(slow), model, placement.ReasonSlow)
			shut.Set(float64(failing), model, placement.ReasonFailing)
		})
		budget(flow.Retries())
	})
}

func exposeBudget(set *metrics.Snapshot) func(b fault.BudgetStats) {
	slots := set.Gauge("frontend_retry_slots", "Slots of the retry budget: used, waiting (requests without one), limit.", "state")
	refused := set.Counter("frontend_retries_refused_total", "Retries that the retry budget did not grant.")
	return func(b fault.BudgetStats) {
		slots.Set(float64(b.Retrying), "used")
		slots.Set(float64(b.Waiting), "waiting")
		slots.Set(float64(b.Limit), "limit")
		refused.Set(float64(b.Refused))
	}
}

func exposeQueues(set *metrics.Snapshot) func(model string, q queue.Stats) {
	pending := set.Gauge("frontend_router_queue_pending_requests", "Requests waiting for workers.", "model", "policy_class")
	isl := set.Gauge("frontend_router_queue_pending_isl_tokens", "Prompt tokens of the waiting requests.", "model")
	cached := set.Gauge("frontend_router_queue_pending_cached_tokens", "Prompt tokens waiting that a worker has cached.", "model")
	granted := set.Counter("frontend_router_queue_class_granted_tokens_total",
		"Prompt tokens to compute of granted requests.", "model", "policy_class")
	return func(model string, q queue.Stats) {
		for _, c := range q.Classes {
			pending.Set(float64(c.Waiting), model, c.Name)
			granted.Set(float64(c.GrantedTokensTotal), model, c.Name)
		}
		if len(q.Classes) == 0 {
			pending.Set(float64(q.Waiting), model, "")
		}
		isl.Set(float64(q.WaitingTokens), model)
		cached.Set(float64(q.WaitingTokens-q.WaitingUncachedTokens), model)
	}
}

// exposePools registers the metrics of pools and workers.
func exposePools(set *metrics.Snapshot, fleet *Fleet, o *Observer) func(p *pools.Pool, q queue.Stats, now time.Time) {
	var perWorker []func(w *pools.Worker, l *router.WorkerLoad, labels []string)
	// known is a gauge that is absent while its value is 0, unknown.
	gauge := func(known bool, name, help string, value func(w *pools.Worker, l *router.WorkerLoad) float64) {
		of := set.Gauge(name, help, "model", "role", "worker")
		perWorker = append(perWorker, func(w *pools.Worker, l *router.WorkerLoad, labels []string) {
			if v := value(w, l); v > 0 || !known {
				of.Set(v, labels...)
			}
		})
	}
	booked := func(name, help string, value func(l *router.WorkerLoad) int) {
		gauge(false, name, help, func(_ *pools.Worker, l *router.WorkerLoad) float64 { return float64(value(l)) })
	}
	known := func(name, help string, value func(w *pools.Worker) float64) {
		gauge(true, name, help, func(w *pools.Worker, _ *router.WorkerLoad) float64 { return value(w) })
	}
	booked("frontend_worker_active_decode_blocks", "Booked KV blocks.", func(l *router.WorkerLoad) int { return l.ActiveBlocks })
	booked("frontend_worker_active_prefill_tokens", "Prefill tokens booked on a worker.",
		func(l *router.WorkerLoad) int { return l.PrefillTokens })
	booked("frontend_worker_requests", "Requests booked on a worker; a batch counts by its inputs.",
		func(l *router.WorkerLoad) int { return l.Requests })
	booked("frontend_worker_cached_blocks", "KV blocks that a worker holds by the index.",
		func(l *router.WorkerLoad) int { return l.CachedBlocks })
	known("frontend_worker_prefill_tokens_per_second", "Observed speed of a prefill worker.", func(w *pools.Worker) float64 {
		if w.Role != pools.Prefill {
			return 0
		}
		return fleet.rooms.Prefill.Rate(w.ID)
	})
	known("frontend_worker_prompt_forecast_error", "Share by which its latest prompts took more or less than forecast.",
		func(w *pools.Worker) float64 {
			if w.Role == pools.Prefill {
				return fleet.rooms.Prefill.Off(w.ID)
			}
			return fleet.rooms.Decode.Off(w.ID)
		})
	known("frontend_worker_token_forecast_error", "Share by which its latest tokens took more or less than forecast.",
		func(w *pools.Worker) float64 { return o.gaps.Off(w.ID) })
	known("frontend_worker_last_time_to_first_token_seconds", "TTFT of the latest request whose prompt the worker computed.",
		func(w *pools.Worker) float64 { return math.Float64frombits(o.worker(w.ID).ttft.Load()) })
	known("frontend_worker_last_input_sequence_tokens", "Prompt tokens of that request.",
		func(w *pools.Worker) float64 { return float64(o.worker(w.ID).isl.Load()) })
	known("frontend_worker_last_inter_token_latency_seconds", "Latest time between two tokens of a worker.",
		func(w *pools.Worker) float64 { return math.Float64frombits(o.worker(w.ID).gap.Load()) })
	known("frontend_model_total_kv_blocks", "KV blocks of a worker, over its ranks; absent where unknown.",
		func(w *pools.Worker) float64 { return float64(w.TotalKVBlocks * w.Ranks()) })
	known("frontend_model_max_num_seqs", "Requests that a worker runs at a time, over its ranks; absent where unknown.",
		func(w *pools.Worker) float64 { return float64(w.MaxNumSeqs * w.Ranks()) })
	known("frontend_model_max_num_batched_tokens", "Token budget of one engine step; absent where unknown.",
		func(w *pools.Worker) float64 { return float64(w.MaxNumBatchedTokens) })
	known("frontend_model_context_length", "Longest prompt and answer together, in tokens; absent where unknown.",
		func(w *pools.Worker) float64 { return float64(w.ContextLength) })
	known("frontend_model_kv_cache_block_size", "Tokens in a KV block.", func(w *pools.Worker) float64 { return float64(w.BlockSize) })

	states := set.Gauge("frontend_router_worker_state", "1 for a worker's state.", "model", "role", "worker", "state")
	count := set.Gauge("frontend_router_workers", "Workers of a pool, by state.", "model", "role", "state")
	registered := set.Gauge("component_router_worker_registered", "1 for each rank of a worker.", "model", "role", "worker", "rank")
	desired := set.Gauge("desired_workers", "Workers that the present load needs.", "model", "role")
	overlap := set.Counter("component_router_overlap_blocks_total",
		"Blocks assumed cached at booking: events, predicted, sent.", "model", "role", "source")
	sessions := exposeSessions(set)
	words := stateWords()
	return func(p *pools.Pool, q queue.Stats, now time.Time) {
		role, loads, in := string(p.Role), fleet.loads(p), map[string]int{}
		for i := range p.Members {
			w, state := p.Members[i].Worker, stateOf(&p.Members[i], now)
			in[state]++
			states.OneOf(words, state, p.Model, role, w.ID)
			labels := []string{p.Model, role, w.ID}
			for _, expose := range perWorker {
				expose(w, &loads[i], labels)
			}
			for rank := range w.Ranks() {
				registered.Set(1, append(labels, strconv.Itoa(rank))...)
			}
		}
		for _, word := range words {
			count.Set(float64(in[word]), p.Model, role, word)
		}
		r := fleet.router(p)
		if blocks := r.Overlaps(); !r.IgnoresOverlap() || blocks.Events > 0 {
			overlap.Set(float64(blocks.Events), p.Model, role, "events")
			overlap.Set(float64(blocks.Predicted), p.Model, role, "predicted")
			overlap.Set(float64(blocks.Recent), p.Model, role, "sent")
		}
		sessions(p.Model, role, fleet.router(p), now)
		desired.Set(float64(o.demand.workers(fleet, p, loads, q, now)), p.Model, role)
	}
}

// exposeSessions registers the metrics of session bindings.
func exposeSessions(set *metrics.Snapshot) func(model, role string, r *router.Router, now time.Time) {
	bindings := set.Gauge("router_session_bindings", "Sessions bound to a worker.", "model", "role")
	events := set.Counter("router_session_events_total", "Bindings: bound, hit, elsewhere, moved, dropped, evicted.", "model", "role", "event")
	return func(model, role string, r *router.Router, now time.Time) {
		if !r.BindsSessions() {
			return
		}
		c := r.Bindings(now)
		bindings.Set(float64(c.Bindings), model, role)
		for event, n := range map[string]uint64{
			"bound": c.Bound, "hit": c.Hits, "elsewhere": c.Elsewhere, "moved": c.Moved, "dropped": c.Dropped, "evicted": c.Evicted,
		} {
			events.Set(float64(n), model, role, event)
		}
	}
}
