package observe

import (
	"errors"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/metrics"
	"github.com/tandem-pd/tandem/internal/speed"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
	"github.com/tandem-pd/tandem/queue"
	"github.com/tandem-pd/tandem/router"
)

// requestMetrics counts requests. Names are Dynamo's, without the registerer's prefix, wherever they mean the same.
type requestMetrics struct {
	requests, sources, oneLeg, failures, releases, warmed, migrations, rejected, cancelled, backpressure *prometheus.CounterVec

	notResumable *prometheus.CounterVec
	// In milliseconds.
	tokenizing, hashing, matching, scheduling, overhead prometheus.Observer
	newSeries                                           func(model string) *series

	models metrics.Kept[string, *series]
	seen   metrics.Kept[string, *observed] // by worker
	gaps   *speed.Fits                     // of the time between tokens
}

var (
	latencyBuckets = []float64{
		.001, .0025, .005, .01, .02, .03, .04, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 1.5, 2, 3, 5, 10, 30, 60, 120,
	}
	gapBuckets      = []float64{.001, .0025, .005, .01, .015, .02, .025, .03, .04, .05, .075, .1, .25, .5, 1, 5}
	tokenBuckets    = prometheus.ExponentialBuckets(16, 2, 15) // 16 … 262,144
	ratioBuckets    = prometheus.LinearBuckets(0, .1, 11)
	overheadBuckets = []float64{2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, .001, .002, .005, .01, .05, .2}
)

// Arrived implements [handoff.Observer], as do the methods below.
func (m *requestMetrics) Arrived(r *handoff.Record) {
	s := m.model(r)
	s.inflight.Inc()
	s.active.Inc()
	s.queued.Inc()
	s.preprocess.Inc()
}

// Understood records the tokenizing time.
func (m *requestMetrics) Understood(r *handoff.Record) {
	s := m.model(r)
	s.preprocess.Dec()
	if r.Source != "" {
		s.sources.Get(r.Source, func() prometheus.Counter {
			return m.sources.WithLabelValues(r.Call.Request.Model, string(r.Source))
		}).Inc()
	}
	if r.Tokenized {
		m.tokenizing.Observe(r.Spent.Tokenizing.Seconds())
	}
}

// Queued counts a request that waits for its workers.
func (m *requestMetrics) Queued(r *handoff.Record, _ int) { m.model(r).route.Inc() }

// Granted records how long the choice of workers took, or the limit that refused the request. Only a request's first
// choice looks its prompt up.
func (m *requestMetrics) Granted(r *handoff.Record, err error) {
	m.model(r).route.Dec()
	if err != nil {
		m.refused(r, err)
		return
	}
	m.scheduling.Observe(r.Spent.Scheduling.Seconds())
	if r.Attempts == 0 {
		m.hashing.Observe(r.Spent.Hashing.Seconds())
		m.matching.Observe(r.Spent.Matching.Seconds())
		m.overhead.Observe((r.Spent.Hashing + r.Spent.Asking + r.Spent.Matching + r.Spent.Scheduling).Seconds())
	}
}

// refused counts a request that met a limit; other errors do not count.
func (m *requestMetrics) refused(r *handoff.Record, err error) {
	model, endpoint := r.Call.Request.Model, r.Call.Request.Endpoint.String()
	if over, ok := errors.AsType[*router.OverloadedError](err); ok {
		m.rejected.WithLabelValues(model, endpoint).Inc()
		m.backpressure.WithLabelValues(model, over.Reason).Inc()
	} else if full, ok := errors.AsType[*queue.FullError](err); ok {
		m.rejected.WithLabelValues(model, endpoint).Inc()
		m.backpressure.WithLabelValues(model, backpressureReason(full.Limit)).Inc()
	}
}

// LegStarted counts a call, and its later tokens.
func (m *requestMetrics) LegStarted(r *handoff.Record, leg handoff.Leg) (token func(gap time.Duration)) {
	s := m.model(r)
	l := s.legs[leg.Worker.Role]
	l.dispatch.Inc()
	l.started.Inc()
	l.isl.Observe(float64(r.ISL))
	worker := m.worker(leg.Worker.ID)
	worker.began(leg.Worker)
	if leg.Worker.Role == pools.Prefill {
		return nil
	}
	return s.token(worker)
}

// FirstToken counts decode's first token, or prefill's whole answer.
func (m *requestMetrics) FirstToken(r *handoff.Record, leg handoff.Leg) {
	s := m.model(r)
	l := s.legs[leg.Worker.Role]
	l.dispatch.Dec()
	m.worker(leg.Worker.ID).started(r, leg)
	if leg.Worker.Role == pools.Prefill || r.Call.Request.Stream {
		l.ttft.observe(leg.First.Sub(leg.Began).Seconds(), r, leg.Span)
	}
	if leg.Worker.Role != pools.Prefill && r.Resumes == 0 {
		s.queued.Dec()
		if r.Call.Request.Endpoint.Generates() {
			s.outputTokens.Inc()
		}
	}
}

// LegEnded counts the end of a call, and tokens that were not counted on arrival: the answer was not streamed, or an
// event held several.
func (m *requestMetrics) LegEnded(r *handoff.Record, leg handoff.Leg) {
	s := m.model(r)
	l, sent := s.legs[leg.Worker.Role], &r.Sent
	if leg.First.IsZero() {
		l.dispatch.Dec()
	}
	l.ended.Inc()
	m.worker(leg.Worker.ID).ended(leg)
	if leg.Worker.Role == pools.Prefill || leg.First.IsZero() || !r.Call.Request.Endpoint.Generates() {
		return
	}
	if more := sent.Tokens - sent.Streamed; more > 0 {
		s.outputTokens.Add(float64(more))
	}
	l.osl.Observe(float64(sent.Tokens))
	if sent.Streamed > 1 {
		l.itl.Observe(sent.Last.Sub(sent.First).Seconds() / float64(sent.Streamed-1))
	}
}

// Failed counts a failed call by the next action. A retry before the first token is Dynamo's migration of a new
// request.
func (m *requestMetrics) Failed(r *handoff.Record, failed *fault.Error, action handoff.Action) {
	m.failures.WithLabelValues(string(failed.Leg), failed.Class.String(), action.String()).Inc()
	if failed.Worker != "" && failed.Class.Blames() {
		m.worker(failed.Worker).failed()
	}
	switch {
	case action == handoff.Resume:
		m.migrations.WithLabelValues(r.Call.Request.Model, migrationOngoing).Inc()
	case action == handoff.Fail && r.NotResumable != "" && r.Sent.HasToken && !r.Poison():
		m.notResumable.WithLabelValues(r.Call.Request.Model, r.NotResumable).Inc()
	case action != handoff.Fail:
		m.migrations.WithLabelValues(r.Call.Request.Model, migrationNew).Inc()
	}
}

// ended counts a finished request that took t.
func (m *requestMetrics) ended(r *handoff.Record, t handoff.Timings) {
	req, status := r.Call.Request, "error"
	if r.Outcome == fault.None.String() {
		status = "success"
	}
	endpoint, kind, outcome := req.Endpoint.String(), requestType(req.Stream), r.Outcome
	if r.Poison() {
		outcome = "suspected_poison" // the answer's code; Outcome is the last failure
	}
	if !r.Known { // client input must not become a label
		m.requests.WithLabelValues("", endpoint, kind, status, outcome).Inc()
		return
	}
	s := m.model(r)
	s.inflight.Dec()
	s.active.Dec()
	if r.Sent.First.IsZero() {
		s.queued.Dec()
	}
	s.ends.Get(end{endpoint, kind, status, outcome}, func() prometheus.Counter {
		return m.requests.WithLabelValues(req.Model, endpoint, kind, status, outcome)
	}).Inc()
	if r.Outcome == fault.ClientGone.String() {
		m.cancelled.WithLabelValues(req.Model, endpoint, kind).Inc()
	}
	if r.Attempts == 0 {
		return
	}
	s.duration.Observe(t.Total / 1e3)
	s.queueWaits.Get(r.PolicyClass, func() prometheus.Observer { return s.queueWait(r.PolicyClass) }).Observe(t.Queue / 1e3)
	if r.Reason != "" {
		m.oneLeg.WithLabelValues(req.Model, r.Reason).Inc()
	}
	if !req.Endpoint.Generates() {
		return
	}
	s.isl.Observe(float64(r.ISL))
	s.hitRate.Observe(float64(r.OverlapTokens) / float64(max(1, r.ISL)))
	if r.Reason == "" && r.Spent.Prefill > 0 {
		s.prefill.Observe(t.Prefill / 1e3)
	}
	if cached := r.Found(&r.Sent); cached >= 0 {
		s.cached.Observe(float64(cached))
	}
	if status == "error" && !r.Sent.Started {
		return
	}
	s.osl.Observe(float64(r.Sent.Tokens))
	if t.TTFT == 0 { // no token at all, or the answer is not streamed: its end is not its first token
		return
	}
	s.ttft.observe(t.TTFT/1e3, r, r.OwnSpan())
	computed := r.Decode.Worker
	if r.KV != nil && r.Resumes == 0 {
		s.transfer.Observe(t.Transfer / 1e3)
		computed = r.Prefill.Worker
	}
	m.worker(computed).firstToken(t.TTFT/1e3, r.ISL)
}

// Released counts a release of staged KV.
func (m *requestMetrics) Released(_ prefill.KV, _ string, err error) {
	result := releaseResults[0]
	if err != nil {
		result = releaseResults[1]
	}
	m.releases.WithLabelValues(result).Inc()
}

// Warmed counts a next turn's prompt.
func (m *requestMetrics) Warmed(model, outcome string) {
	m.warmed.WithLabelValues(model, outcome).Inc()
}

// model returns the series of the request's model, which some worker serves.
func (m *requestMetrics) model(r *handoff.Record) *series {
	name := r.Call.Request.Model
	return m.models.Get(name, func() *series { return m.newSeries(name) })
}

func (m *requestMetrics) worker(id string) *observed {
	return m.seen.Get(id, func() *observed { return &observed{id: id, fits: m.gaps} })
}

// forget drops the observations of workers that left all pools.
func (m *requestMetrics) forget(all []*pools.Pool) {
	gone := func(id string) bool {
		return !slices.ContainsFunc(all, func(p *pools.Pool) bool {
			_, here := p.Member(id)
			return here
		})
	}
	m.seen.Drop(gone)
	m.gaps.Forget(gone)
}

var releaseResults = [...]string{"released", "failed"}

const (
	migrationNew     = "new_request"
	migrationOngoing = "ongoing_request"
)

// backpressureReason returns Dynamo's name for a limit of the queue, if it has one.
func backpressureReason(limit string) string {
	if limit == queue.LimitBytes {
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
