package handoff

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
)

// metrics are what a flow counts. Names follow Dynamo's frontend with
// tandem_ in dynamo_'s place wherever they mean the same.
type metrics struct {
	requests  *prometheus.CounterVec   // by model, endpoint, outcome
	oneLeg    *prometheus.CounterVec   // by model and reason
	failures  *prometheus.CounterVec   // by leg, class and action
	releases  *prometheus.CounterVec   // of staged KV, by result
	inflight  prometheus.Gauge         // requests in the house
	ttft      *prometheus.HistogramVec // by model
	duration  *prometheus.HistogramVec // by model
	queueWait *prometheus.HistogramVec // by model
	prefill   *prometheus.HistogramVec // by model
	transfer  *prometheus.HistogramVec // by model
	isl, osl  *prometheus.HistogramVec // by model
	cached    *prometheus.HistogramVec // by model
	hitRate   *prometheus.HistogramVec // by model
	itl       prometheus.Histogram
}

var (
	latencyBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120}
	gapBuckets     = []float64{.001, .0025, .005, .01, .015, .02, .025, .03, .04, .05, .075, .1, .25, .5, 1, 5}
	tokenBuckets   = prometheus.ExponentialBuckets(16, 2, 15) // 16 … 262,144
	ratioBuckets   = prometheus.LinearBuckets(0, .1, 11)
)

func newMetrics(reg prometheus.Registerer, f *Flow) *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tandem_" + name, Help: help}, labels)
	}
	histogram := func(name, help string, buckets []float64) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "tandem_" + name, Help: help, Buckets: buckets}, []string{"model"})
	}
	m := &metrics{
		requests: counter("frontend_requests_total", "Requests ended, by outcome: ok, a fault class, or an error code.", "model", "endpoint", "outcome"),
		oneLeg:   counter("frontend_not_disaggregated_total", "Requests decoded without a prefill leg, by reason.", "model", "reason"),
		failures: counter("frontend_leg_failures_total", "Failed calls to workers, by leg, class and what was done about it.", "leg", "class", "action"),
		releases: counter("frontend_kv_releases_total", "Calls that free KV staged for a decode that never came, by result.", "result"),
		inflight: prometheus.NewGauge(prometheus.GaugeOpts{Name: "tandem_frontend_inflight_requests", Help: "Requests in the gateway, waiting ones included."}),
		itl: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "tandem_frontend_inter_token_latency_seconds",
			Help: "Time between two tokens of a stream.", Buckets: gapBuckets}),
		ttft:      histogram("frontend_time_to_first_token_seconds", "Time from the request's arrival to its first token, queueing included.", latencyBuckets),
		duration:  histogram("frontend_request_duration_seconds", "Time from the request's arrival to its end.", latencyBuckets),
		queueWait: histogram("frontend_queue_wait_seconds", "Time a request waited for its workers.", latencyBuckets),
		prefill:   histogram("frontend_prefill_seconds", "Time of the prefill leg.", latencyBuckets),
		transfer:  histogram("component_router_kv_transfer_estimated_latency_seconds", "Time from prefill's answer to decode's first token.", latencyBuckets),
		isl:       histogram("frontend_input_sequence_tokens", "Prompt tokens (ISL).", tokenBuckets),
		osl:       histogram("frontend_output_sequence_tokens", "Generated tokens (OSL).", tokenBuckets),
		cached:    histogram("frontend_cached_tokens", "Prompt tokens that the prefill worker had cached, as it said.", tokenBuckets),
		hitRate:   histogram("component_router_kv_hit_rate", "Share of the prompt's blocks that the router believed cached on the chosen worker.", ratioBuckets),
	}
	reg.MustRegister(m.requests, m.oneLeg, m.failures, m.releases, m.inflight, m.itl, m.ttft, m.duration, m.queueWait,
		m.prefill, m.transfer, m.isl, m.osl, m.cached, m.hitRate, &state{flow: f})
	return m
}

func (m *metrics) begin() { m.inflight.Inc() }

// end counts a request that is over.
func (m *metrics) end(r *request, outcome string, now time.Time) {
	m.inflight.Dec()
	model, endpoint := r.call.Request.Model, r.call.Request.Endpoint.String()
	if r.isl == 0 {
		model = "" // the model was not found: a client's text must not become a label
	}
	m.requests.WithLabelValues(model, endpoint, outcome).Inc()
	if r.attempt == 0 {
		return
	}
	t := r.timings(&r.sent, now)
	m.duration.WithLabelValues(model).Observe(t.Total / 1e3)
	m.queueWait.WithLabelValues(model).Observe(t.Queue / 1e3)
	m.isl.WithLabelValues(model).Observe(float64(r.isl))
	m.hitRate.WithLabelValues(model).Observe(float64(r.overlap*r.card.blockSize) / float64(max(1, r.isl)))
	if r.reason != "" {
		m.oneLeg.WithLabelValues(model, r.reason).Inc()
	} else {
		m.prefill.WithLabelValues(model).Observe(t.Prefill / 1e3)
	}
	if r.cached >= 0 {
		m.cached.WithLabelValues(model).Observe(float64(r.cached))
	}
	if r.sent.First.IsZero() || outcome != fault.None.String() && !r.sent.Started {
		return
	}
	m.ttft.WithLabelValues(model).Observe(t.TTFT / 1e3)
	m.osl.WithLabelValues(model).Observe(float64(r.sent.Tokens))
	if r.kv != nil {
		m.transfer.WithLabelValues(model).Observe(t.Transfer / 1e3)
	}
}

// gap takes one inter-token time.
func (m *metrics) gap(d time.Duration) { m.itl.Observe(d.Seconds()) }

func (m *metrics) released(ok bool) {
	result := "released"
	if !ok {
		result = "failed"
	}
	m.releases.WithLabelValues(result).Inc()
}

// state collects, at the scrape, what others keep: queues and bookings.
type state struct{ flow *Flow }

var (
	queuePending = desc("frontend_router_queue_pending_requests", "Requests waiting for workers.", "model")
	queueTokens  = desc("frontend_router_queue_pending_isl_tokens", "Prompt tokens of the waiting requests.", "model")
	queueBytes   = desc("frontend_router_queue_pending_bytes", "Bytes of the waiting requests' bodies.", "model")
	activeBlocks = desc("frontend_worker_active_decode_blocks", "KV blocks booked on a worker.", "model", "role", "worker")
	prefillBook  = desc("frontend_worker_active_prefill_tokens", "Prefill tokens booked on a worker.", "model", "role", "worker")
	workerLoad   = desc("frontend_worker_requests", "Requests booked on a worker.", "model", "role", "worker")
	cachedBlocks = desc("frontend_worker_cached_blocks", "KV blocks that the index knows a worker to hold.", "model", "role", "worker")
	workerState  = desc("frontend_router_worker_state", "1 for a worker in the choice, 0 otherwise.", "model", "role", "worker", "state")
	workerCount  = desc("frontend_router_workers", "Workers of a pool in the choice.", "model", "role")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("tandem_"+name, help, labels, nil)
}

// Describe implements prometheus.Collector.
func (s *state) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{queuePending, queueTokens, queueBytes, activeBlocks, prefillBook,
		workerLoad, cachedBlocks, workerState, workerCount} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (s *state) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for model, q := range s.flow.Waiting() {
		gauge(queuePending, float64(q.Waiting), model)
		gauge(queueTokens, float64(q.WaitingTokens), model)
		gauge(queueBytes, float64(q.WaitingBytes), model)
	}
	now := time.Now()
	for _, p := range s.flow.rooms.Roster.Pools() {
		eligible := 0
		for _, m := range p.Members {
			up := 0.
			if m.Eligible(now) {
				eligible++
				up = 1
			}
			gauge(workerState, up, p.Model, string(p.Role), m.Worker.ID, m.Status.String())
		}
		gauge(workerCount, float64(eligible), p.Model, string(p.Role))
		for _, l := range s.flow.loads(p) {
			gauge(activeBlocks, float64(l.ActiveBlocks), p.Model, string(p.Role), l.Worker)
			gauge(prefillBook, float64(l.PrefillTokens), p.Model, string(p.Role), l.Worker)
			gauge(workerLoad, float64(l.Requests), p.Model, string(p.Role), l.Worker)
			gauge(cachedBlocks, float64(l.CachedBlocks), p.Model, string(p.Role), l.Worker)
		}
	}
}

// loads reads a pool's bookings off its router.
func (f *Flow) loads(p *pools.Pool) []router.WorkerLoad {
	if p.Role == pools.Prefill {
		return f.rooms.Prefill.Router(p.Model).Loads(p)
	}
	return f.rooms.Decode.Router(p.Model, p.Role).Loads(p)
}
