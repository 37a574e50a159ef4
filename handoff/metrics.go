package handoff

import (
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/queue"
	"github.com/tandem-pd/tandem/router"
)

// metrics are what a flow counts. Names are Dynamo's without their prefix,
// which is the registerer's, wherever they mean the same.
type metrics struct {
	requests     *prometheus.CounterVec   // by model, endpoint, kind of answer, status, outcome
	oneLeg       *prometheus.CounterVec   // by model and reason
	failures     *prometheus.CounterVec   // by leg, class and action
	poison       prometheus.Counter       // requests under which too many workers died
	releases     *prometheus.CounterVec   // of staged KV, by result
	migrations   *prometheus.CounterVec   // by model and type
	rejected     *prometheus.CounterVec   // by model and endpoint
	cancelled    *prometheus.CounterVec   // by model, endpoint, kind of answer
	backpressure *prometheus.CounterVec   // by model and reason
	overloaded   *prometheus.CounterVec   // by model and reason
	outputTokens *prometheus.CounterVec   // by model
	inflight     *prometheus.GaugeVec     // by model
	active       *prometheus.GaugeVec     // by model
	queued       *prometheus.GaugeVec     // by model
	stages       *prometheus.GaugeVec     // by stage and phase
	ttft         *prometheus.HistogramVec // by model, as all that follow
	duration     *prometheus.HistogramVec
	queueWait    *prometheus.HistogramVec
	prefill      *prometheus.HistogramVec
	transfer     *prometheus.HistogramVec
	isl, osl     *prometheus.HistogramVec
	cached       *prometheus.HistogramVec
	hitRate      *prometheus.HistogramVec
	itl          *prometheus.HistogramVec
	tokenizer    *prometheus.HistogramVec // by operation

	hashing, matching, scheduling, overhead prometheus.Observer // milliseconds

	legStarted, legEnded            *prometheus.CounterVec   // by model and role
	legTTFT, legITL, legISL, legOSL *prometheus.HistogramVec // by model and role

	mu     sync.RWMutex // guards all below
	models map[string]*modelMetrics
	last   map[string]*lastSeen // by worker
}

var (
	latencyBuckets  = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120}
	gapBuckets      = []float64{.001, .0025, .005, .01, .015, .02, .025, .03, .04, .05, .075, .1, .25, .5, 1, 5}
	tokenBuckets    = prometheus.ExponentialBuckets(16, 2, 15) // 16 … 262,144
	ratioBuckets    = prometheus.LinearBuckets(0, .1, 11)
	overheadBuckets = []float64{.002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 50, 200}
)

// register makes one metric after the other and registers it.
type register struct{ prometheus.Registerer }

func (reg register) counter(name, help string, labels ...string) *prometheus.CounterVec {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	reg.MustRegister(v)
	return v
}

func (reg register) gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	reg.MustRegister(v)
	return v
}

func (reg register) histogram(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	reg.MustRegister(v)
	return v
}

func newMetrics(to prometheus.Registerer, f *Flow) *metrics {
	reg := register{to}
	overhead := func(what, help string) prometheus.Observer {
		return reg.histogram("router_overhead_"+what+"_ms", help, overheadBuckets).WithLabelValues()
	}
	m := &metrics{models: map[string]*modelMetrics{}, last: map[string]*lastSeen{}}
	m.requests = reg.counter("frontend_requests_total", "Requests ended, by status (success or error) and outcome: ok, a fault class, or an error code.",
		"model", "endpoint", "request_type", "status", "outcome")
	m.oneLeg = reg.counter("frontend_not_disaggregated_total", "Requests decoded without a prefill leg, by reason.", "model", "reason")
	m.failures = reg.counter("frontend_leg_failures_total", "Failed calls to workers, by leg, class and what was done about it.", "leg", "class", "action")
	m.poison = reg.counter("frontend_suspected_poison_total", "Requests ended because two workers died while they had them.").WithLabelValues()
	m.releases = reg.counter("frontend_kv_releases_total", "Calls that free KV staged for a decode that never came, by result.", "result")
	m.migrations = reg.counter("frontend_model_migration_total", "Times a request was tried again elsewhere after a worker failed.", "model", "migration_type")
	m.rejected = reg.counter("frontend_model_rejection_total", "Requests refused because the queue was full.", "model", "endpoint")
	m.cancelled = reg.counter("frontend_model_cancellation_total", "Requests whose client left before the answer was complete.", "model", "endpoint", "request_type")
	m.backpressure = reg.counter("frontend_router_queue_backpressure_total", "Requests refused because the queue was full, by the limit that was met.", "model", "reason")
	m.outputTokens = reg.counter("frontend_output_tokens_total", "Tokens generated, counted as they come.", "model")
	m.inflight = reg.gauge("frontend_inflight_requests", "Requests in the gateway, waiting ones included.", "model")
	m.active = reg.gauge("frontend_active_requests", "Requests in the gateway, from their arrival to the answer's end.", "model")
	m.queued = reg.gauge("frontend_queued_requests", "Requests in the gateway that have no first token yet.", "model")
	m.overloaded = reg.counter("frontend_router_overloaded_total", "Requests refused because every worker was above a busy threshold, by the threshold that most were above.", "model", "reason")
	m.stages = reg.gauge("frontend_stage_requests", "Requests in each stage before their first token.", "stage", "phase")
	m.ttft = reg.histogram("frontend_time_to_first_token_seconds", "Time from the request's arrival to its first token, queueing included.", latencyBuckets, "model")
	m.itl = reg.histogram("frontend_inter_token_latency_seconds", "Time between two tokens of a stream.", gapBuckets, "model")
	m.duration = reg.histogram("frontend_request_duration_seconds", "Time from the request's arrival to its end.", latencyBuckets, "model")
	m.queueWait = reg.histogram("frontend_queue_wait_seconds", "Time a request waited for its workers.", latencyBuckets, "model")
	m.prefill = reg.histogram("frontend_prefill_seconds", "Time of a request's prefill legs.", latencyBuckets, "model")
	m.transfer = reg.histogram("component_router_kv_transfer_estimated_latency_seconds", "Time from prefill's answer to decode's first token.", latencyBuckets, "model")
	m.isl = reg.histogram("frontend_input_sequence_tokens", "Prompt tokens (ISL).", tokenBuckets, "model")
	m.osl = reg.histogram("frontend_output_sequence_tokens", "Generated tokens (OSL).", tokenBuckets, "model")
	m.cached = reg.histogram("frontend_cached_tokens", "Prompt tokens that the worker which computed the prompt had cached, as it said.", tokenBuckets, "model")
	m.hitRate = reg.histogram("component_router_kv_hit_rate", "Share of the prompt's blocks that the router believed cached on the chosen worker.", ratioBuckets, "model")
	m.tokenizer = reg.histogram("frontend_tokenizer_latency_ms", "Time to make a prompt's tokens, the chat template included.", overheadBuckets, "operation")
	m.hashing = overhead("block_hashing", "Time to compute the hashes of a prompt's blocks, chained.")
	m.matching = overhead("indexer_find_matches", "Time to look a prompt's blocks up in the index, before it queues.")
	m.scheduling = overhead("scheduling", "Time of the step that picks and books a request's workers.")
	m.overhead = overhead("total", "Time of hashing, look-ups, a remote index's among them, and scheduling together.")
	m.legStarted = reg.counter("component_router_requests_started_total", "Calls to workers begun.", "model", "role")
	m.legEnded = reg.counter("component_router_requests_total", "Calls to workers ended.", "model", "role")
	m.legTTFT = reg.histogram("component_router_time_to_first_token_seconds", "Time from a call to its first token; of prefill, to its answer.", latencyBuckets, "model", "role")
	m.legITL = reg.histogram("component_router_inter_token_latency_seconds", "Mean time between two tokens of one call.", gapBuckets, "model", "role")
	m.legISL = reg.histogram("component_router_input_sequence_tokens", "Prompt tokens of a call.", tokenBuckets, "model", "role")
	m.legOSL = reg.histogram("component_router_output_sequence_tokens", "Tokens generated by a call.", tokenBuckets, "model", "role")
	for _, result := range releaseResults {
		m.releases.WithLabelValues(result)
	}
	reg.MustRegister(newState(f))
	return m
}

// model is the series of one model, which the roster knows.
func (m *metrics) model(name string) *modelMetrics {
	m.mu.RLock()
	mm := m.models[name]
	m.mu.RUnlock()
	if mm != nil {
		return mm
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if mm := m.models[name]; mm != nil {
		return mm
	}
	mm = newModelMetrics(m, name)
	m.models[name] = mm
	return mm
}

// begin counts a request whose model is known as being in the house.
func (m *metrics) begin(r *request) {
	r.series = m.model(r.call.Request.Model)
	r.waiting = true
	r.series.inflight.Inc()
	r.series.active.Inc()
	r.series.queued.Inc()
}

// end counts a request that is over.
func (m *metrics) end(r *request, outcome string, now time.Time) {
	req, status := r.call.Request, "error"
	if outcome == fault.None.String() {
		status = "success"
	}
	endpoint, kind := req.Endpoint.String(), requestType(req.Stream)
	mm := r.series
	if mm == nil { // the model was not found: a client's text must not become a label
		m.requests.WithLabelValues("", endpoint, kind, status, outcome).Inc()
		return
	}
	mm.inflight.Dec()
	mm.active.Dec()
	mm.answered(r)
	m.requests.WithLabelValues(mm.name, endpoint, kind, status, outcome).Inc()
	if outcome == fault.ClientGone.String() {
		m.cancelled.WithLabelValues(mm.name, endpoint, kind).Inc()
	}
	if r.attempt == 0 {
		return
	}
	t := r.timings(&r.sent, now)
	mm.duration.Observe(t.Total / 1e3)
	mm.queueWait.Observe(t.Queue / 1e3)
	mm.isl.Observe(float64(r.isl))
	mm.hitRate.Observe(min(1, float64(r.overlapTokens)/float64(max(1, r.isl))))
	if r.reason != "" {
		m.oneLeg.WithLabelValues(mm.name, r.reason).Inc()
	} else if r.prefilled > 0 {
		mm.prefill.Observe(t.Prefill / 1e3)
	}
	if cached := r.found(&r.sent); cached >= 0 {
		mm.cached.Observe(float64(cached))
	}
	if r.sent.First.IsZero() || status == "error" && !r.sent.Started {
		return
	}
	mm.ttft.Observe(t.TTFT / 1e3)
	mm.osl.Observe(float64(r.sent.Tokens))
	if r.kv != nil {
		mm.transfer.Observe(t.Transfer / 1e3)
	}
	computed := r.first.d
	if r.kv != nil {
		computed = r.first.p
	}
	m.worker(computed).firstToken(t.TTFT/1e3, r.isl)
}

// scheduled records what the choice of a request's workers took. Only the first
// of a request's choices looks its prompt up.
func (m *metrics) scheduled(r *request, took time.Duration) {
	m.scheduling.Observe(milliseconds(took))
	if r.attempt == 0 {
		m.hashing.Observe(milliseconds(r.spent.hashing))
		m.matching.Observe(milliseconds(r.spent.matching))
		m.overhead.Observe(milliseconds(r.spent.hashing + r.spent.asking + r.spent.matching + took))
	}
}

// tokenized records what making a prompt's tokens took.
func (m *metrics) tokenized(took time.Duration) {
	m.tokenizer.WithLabelValues("tokenize").Observe(milliseconds(took))
}

// refused counts a request that the queue had no room for; other errors are no
// refusal.
func (m *metrics) refused(r *request, err error) {
	var full *queue.FullError
	var over *router.OverloadedError
	if errors.As(err, &over) {
		m.rejected.WithLabelValues(r.series.name, r.call.Request.Endpoint.String()).Inc()
		m.overloaded.WithLabelValues(r.series.name, over.Reason).Inc()
		return
	}
	if !errors.As(err, &full) {
		return
	}
	m.rejected.WithLabelValues(r.series.name, r.call.Request.Endpoint.String()).Inc()
	m.backpressure.WithLabelValues(r.series.name, backpressureReason(full.Limit)).Inc()
}

// migrated counts another round of a request after one that failed. Nothing had
// left for the client: that is Dynamo's migration of a new request.
func (m *metrics) migrated(r *request) {
	m.migrations.WithLabelValues(r.series.name, migrationNew).Inc()
}

func (m *metrics) released(ok bool) {
	result := releaseResults[0]
	if !ok {
		result = releaseResults[1]
	}
	m.releases.WithLabelValues(result).Inc()
}

// worker is what was last seen of a worker.
func (m *metrics) worker(id string) *lastSeen {
	m.mu.RLock()
	l := m.last[id]
	m.mu.RUnlock()
	if l != nil {
		return l
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if l := m.last[id]; l != nil {
		return l
	}
	l = &lastSeen{}
	m.last[id] = l
	return l
}

// forget drops what was seen of workers that are not among the pools any more.
func (m *metrics) forget(all []*pools.Pool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id := range m.last {
		known := false
		for _, p := range all {
			_, here := p.Member(id)
			known = known || here
		}
		if !known {
			delete(m.last, id)
		}
	}
}

var releaseResults = [...]string{"released", "failed"}

const migrationNew = "new_request"

// backpressureReason is Dynamo's word for a limit of the queue, where it has one.
func backpressureReason(limit string) string {
	if limit == "queue-bytes" {
		return "byte_limit"
	}
	return "request_limit"
}

func requestType(stream bool) string {
	if stream {
		return "stream"
	}
	return "unary"
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
