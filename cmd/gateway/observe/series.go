package observe

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/metrics"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/speed"
	"github.com/tandem-pd/tandem/models"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/queue"
	"github.com/tandem-pd/tandem/router"
)

// series are one model's series, looked up together: a request needs about ten of them, a token two.
type series struct {
	inflight, active, queued    prometheus.Gauge
	preprocess, route           prometheus.Gauge
	outputTokens                prometheus.Counter
	ttft                        exemplified
	itl, duration               prometheus.Observer
	prefill, transfer, isl, osl prometheus.Observer
	cached, hitRate             prometheus.Observer
	queueWait                   func(class string) prometheus.Observer
	queueWaits                  metrics.Kept[string, prometheus.Observer]
	legs                        map[pools.Role]*legSeries
	sources                     metrics.Kept[models.Source, prometheus.Counter]
	ends                        metrics.Kept[end, prometheus.Counter]
}

// end is the labels of a finished request besides its model.
type end struct{ endpoint, kind, status, outcome string }

// legSeries are the series of one model's calls to one role.
type legSeries struct {
	dispatch       prometheus.Gauge
	started, ended prometheus.Counter
	ttft           exemplified
	itl, isl, osl  prometheus.Observer
}

// phases are Dynamo's names of the roles' work.
var phases = map[pools.Role]string{pools.Prefill: "prefill", pools.Decode: "decode", pools.Both: "aggregated"}

func newRequestMetrics(reg prometheus.Registerer) *requestMetrics {
	set, m := metrics.In(reg), &requestMetrics{gaps: speed.NewFits(speed.Token())}
	overhead := func(what, help string) prometheus.Observer {
		return set.Histogram("router_overhead_"+what+"_seconds", help, overheadBuckets).WithLabelValues()
	}
	m.requests = set.Counter("frontend_requests_total", "Requests ended.",
		"model", "endpoint", "request_type", "status", "outcome")
	m.sources = set.Counter("frontend_prompt_tokens_source_total",
		"Requests by source of the prompt's tokens: request, own, engine, text.", "model", "source")
	m.oneLeg = set.Counter("frontend_not_disaggregated_total", "Requests decoded without a prefill leg, by reason.", "model", "reason")
	m.failures = set.Counter("frontend_leg_failures_total", "Failed calls, by failure class and action taken.", "leg", "class", "action")
	m.notResumable = set.Counter("frontend_not_resumable_total", "Begun streams that no other worker could continue.", "model", "reason")
	m.releases = set.Counter("frontend_kv_releases_total", "Calls that free KV staged for a decode that never came, by result.", "result")
	m.warmed = set.Counter("frontend_speculative_prefills_total",
		"Next turns' prompts that clients wanted computed ahead, by what became of them.", "model", "outcome")
	m.migrations = set.Counter("frontend_model_migration_total", "Retries on another worker after a failure.", "model", "migration_type")
	m.rejected = set.Counter("frontend_model_rejection_total", "Requests refused because the queue was full.", "model", "endpoint")
	m.cancelled = set.Counter("frontend_model_cancellation_total", "Requests whose client left early.", "model", "endpoint", "request_type")
	m.backpressure = set.Counter("frontend_router_queue_backpressure_total",
		"Requests refused by a limit of the queue, or because all workers exceeded a busy threshold.", "model", "reason")
	m.tokenizing = set.Histogram("frontend_tokenizer_latency_seconds",
		"Time to tokenize a prompt.", overheadBuckets, "operation").WithLabelValues("tokenize")
	m.hashing = overhead("block_hashing", "Time to compute the hashes of a prompt's blocks, chained.")
	m.matching = overhead("indexer_find_matches", "Time to look a prompt's blocks up in the index, before it queues.")
	m.scheduling = overhead("scheduling", "Time of the step that picks and books a request's workers.")
	m.overhead = overhead("total", "Time of hashing, look-ups, a remote index's among them, and scheduling together.")
	for _, result := range releaseResults {
		m.releases.WithLabelValues(result)
	}
	m.newSeries = m.perModel(set)
	return m
}

// perModel registers the metrics by model, and makes the series of one.
func (m *requestMetrics) perModel(set metrics.Set) func(name string) *series {
	outputTokens := set.Counter("frontend_output_tokens_total", "Tokens generated, counted as they come.", "model")
	inflight := set.Gauge("frontend_inflight_requests", "Requests in the gateway, waiting ones included.", "model")
	active := set.Gauge("frontend_active_requests", "Requests in the gateway, from their arrival to the answer's end.", "model")
	queued := set.Gauge("frontend_queued_requests", "Requests in the gateway that have no first token yet.", "model")
	stages := set.Gauge("frontend_stage_requests", "Requests in each stage before their first token.", "stage", "phase")
	ttft := set.Histogram("frontend_time_to_first_token_seconds", "From arrival to the first token; streams only.", latencyBuckets, "model")
	itl := set.Histogram("frontend_inter_token_latency_seconds", "Time between two tokens of a stream.", gapBuckets, "model")
	duration := set.Histogram("frontend_request_duration_seconds", "Time from the request's arrival to its end.", latencyBuckets, "model")
	queueWait := set.Histogram("frontend_queue_wait_seconds", "Time a request waited for its workers.", latencyBuckets, "model",
		"policy_class")
	prefill := set.Histogram("frontend_prefill_seconds", "Time of a request's prefill legs.", latencyBuckets, "model")
	transfer := set.Histogram("component_router_kv_transfer_estimated_latency_seconds",
		"Prefill's answer to decode's first token.", latencyBuckets, "model")
	isl := set.Histogram("frontend_input_sequence_tokens", "Prompt tokens (ISL).", tokenBuckets, "model")
	osl := set.Histogram("frontend_output_sequence_tokens", "Generated tokens (OSL).", tokenBuckets, "model")
	cached := set.Histogram("frontend_cached_tokens", "Prompt tokens reported as cached.", tokenBuckets, "model")
	hitRate := set.Histogram("component_router_kv_hit_rate", "Share of the prompt expected in the cache.", ratioBuckets, "model")
	legStarted := set.Counter("component_router_requests_started_total", "Calls to workers begun.", "model", "role")
	legEnded := set.Counter("component_router_requests_total", "Calls to workers ended.", "model", "role")
	legTTFT := set.Histogram("component_router_time_to_first_token_seconds", "Call to first token.", latencyBuckets, "model", "role")
	legITL := set.Histogram("component_router_inter_token_latency_seconds", "Mean gap of a call.", gapBuckets, "model", "role")
	legISL := set.Histogram("component_router_input_sequence_tokens", "Prompt tokens of a call.", tokenBuckets, "model", "role")
	legOSL := set.Histogram("component_router_output_sequence_tokens", "Tokens generated by a call.", tokenBuckets, "model", "role")
	return func(name string) *series {
		s := &series{
			inflight: inflight.WithLabelValues(name), active: active.WithLabelValues(name), queued: queued.WithLabelValues(name),
			preprocess: stages.WithLabelValues("preprocess", ""), route: stages.WithLabelValues("route", ""),
			outputTokens: outputTokens.WithLabelValues(name),
			ttft:         exemplified{Observer: ttft.WithLabelValues(name)}, itl: itl.WithLabelValues(name),
			duration: duration.WithLabelValues(name),
			prefill:  prefill.WithLabelValues(name), transfer: transfer.WithLabelValues(name),
			isl: isl.WithLabelValues(name), osl: osl.WithLabelValues(name),
			cached: cached.WithLabelValues(name), hitRate: hitRate.WithLabelValues(name),
			queueWait: func(class string) prometheus.Observer { return queueWait.WithLabelValues(name, class) },
			legs:      map[pools.Role]*legSeries{},
		}
		for role, phase := range phases {
			s.legs[role] = &legSeries{
				dispatch: stages.WithLabelValues("dispatch", phase),
				started:  legStarted.WithLabelValues(name, string(role)), ended: legEnded.WithLabelValues(name, string(role)),
				ttft: exemplified{Observer: legTTFT.WithLabelValues(name, string(role))}, itl: legITL.WithLabelValues(name, string(role)),
				isl: legISL.WithLabelValues(name, string(role)), osl: legOSL.WithLabelValues(name, string(role)),
			}
		}
		// An alert on a rate needs the series before the first event.
		for _, limit := range []string{queue.LimitRequests, queue.LimitBytes} {
			m.backpressure.WithLabelValues(name, backpressureReason(limit))
		}
		for _, reason := range []string{router.OverDecodeBlocks, router.OverPrefillTokens} {
			m.backpressure.WithLabelValues(name, reason)
		}
		for _, kind := range []string{migrationNew, migrationOngoing} {
			m.migrations.WithLabelValues(name, kind)
		}
		for reason := range handoff.NotResumable {
			m.notResumable.WithLabelValues(name, reason)
		}
		for _, endpoint := range []string{openai.Chat.String(), openai.Completions.String()} {
			m.rejected.WithLabelValues(name, endpoint)
			for _, streamed := range []bool{false, true} {
				m.cancelled.WithLabelValues(name, endpoint, requestType(streamed))
			}
		}
		return s
	}
}

// token counts a token that came gap after the previous one. It runs for every token of every stream.
func (s *series) token(worker *observed) func(gap time.Duration) {
	return func(gap time.Duration) {
		s.outputTokens.Inc()
		s.itl.Observe(gap.Seconds())
		worker.token(gap)
	}
}
