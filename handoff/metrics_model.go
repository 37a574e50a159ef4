package handoff

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/decode"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/queue"
	"github.com/tandem-pd/tandem/router"
)

// modelMetrics are one model's series, looked up once: a request needs about
// ten of them, and a token two.
type modelMetrics struct {
	name string

	inflight, active, queued       prometheus.Gauge
	preprocess, route              prometheus.Gauge
	outputTokens                   prometheus.Counter
	ttft, itl, duration, queueWait prometheus.Observer
	prefill, transfer, isl, osl    prometheus.Observer
	cached, hitRate                prometheus.Observer
	legs                           map[pools.Role]*legMetrics
	// uncached is the prompt tokens that had to be computed of all requests so
	// far; desired_workers wants its rate.
	uncached atomic.Int64
}

// legMetrics are the series of one model's calls to one role.
type legMetrics struct {
	dispatch            prometheus.Gauge
	started, ended      prometheus.Counter
	ttft, itl, isl, osl prometheus.Observer
}

// phases are Dynamo's words for what a worker of each role is called for.
var phases = map[pools.Role]string{pools.Prefill: "prefill", pools.Decode: "decode", pools.Both: "aggregated"}

func newModelMetrics(m *metrics, name string) *modelMetrics {
	mm := &modelMetrics{
		name:     name,
		inflight: m.inflight.WithLabelValues(name), active: m.active.WithLabelValues(name), queued: m.queued.WithLabelValues(name),
		preprocess: m.stages.WithLabelValues("preprocess", ""), route: m.stages.WithLabelValues("route", ""),
		outputTokens: m.outputTokens.WithLabelValues(name),
		ttft:         m.ttft.WithLabelValues(name), itl: m.itl.WithLabelValues(name), duration: m.duration.WithLabelValues(name),
		queueWait: m.queueWait.WithLabelValues(name), prefill: m.prefill.WithLabelValues(name), transfer: m.transfer.WithLabelValues(name),
		isl: m.isl.WithLabelValues(name), osl: m.osl.WithLabelValues(name),
		cached: m.cached.WithLabelValues(name), hitRate: m.hitRate.WithLabelValues(name),
		legs: map[pools.Role]*legMetrics{},
	}
	for role, phase := range phases {
		mm.legs[role] = &legMetrics{
			dispatch: m.stages.WithLabelValues("dispatch", phase),
			started:  m.legStarted.WithLabelValues(name, string(role)), ended: m.legEnded.WithLabelValues(name, string(role)),
			ttft: m.legTTFT.WithLabelValues(name, string(role)), itl: m.legITL.WithLabelValues(name, string(role)),
			isl: m.legISL.WithLabelValues(name, string(role)), osl: m.legOSL.WithLabelValues(name, string(role)),
		}
	}
	// An alert on a rate needs the series before the first event.
	for _, limit := range []string{"queue-limit", "queue-bytes"} {
		m.backpressure.WithLabelValues(name, backpressureReason(limit))
	}
	for _, reason := range []string{router.OverDecodeBlocks, router.OverPrefillTokens} {
		m.overloaded.WithLabelValues(name, reason)
	}
	m.migrations.WithLabelValues(name, migrationNew)
	for _, endpoint := range []string{openai.Chat.String(), openai.Completions.String()} {
		m.rejected.WithLabelValues(name, endpoint)
		for _, streamed := range []bool{false, true} {
			m.cancelled.WithLabelValues(name, endpoint, requestType(streamed))
		}
	}
	return mm
}

// understood counts a request as being read until it is called back.
func (mm *modelMetrics) understood() func() {
	mm.preprocess.Inc()
	return mm.preprocess.Dec
}

// routed counts a request as waiting for its workers until it is called back.
// uncached is how much of its prompt nobody has cached, which counts once.
func (mm *modelMetrics) routed(r *request, uncached int) func() {
	if r.attempt == 0 {
		mm.uncached.Add(int64(uncached))
	}
	mm.route.Inc()
	return mm.route.Dec
}

// answered ends a request's wait for its first token.
func (mm *modelMetrics) answered(r *request) {
	if r.waiting {
		r.waiting = false
		mm.queued.Dec()
	}
}

// callMetrics counts one call to a worker. Its methods are called by one
// goroutine at a time.
type callMetrics struct {
	model    *modelMetrics
	leg      *legMetrics
	last     *lastSeen
	began    time.Time
	waiting  bool // for its first token
	streamed int  // tokens counted as they came
}

// call begins to count a call.
func (m *metrics) call(r *request, w *pools.Worker, now time.Time) *callMetrics {
	c := &callMetrics{model: r.series, leg: r.series.legs[w.Role], last: m.worker(w.ID), began: now, waiting: true}
	c.leg.dispatch.Inc()
	c.leg.started.Inc()
	c.leg.isl.Observe(float64(r.isl))
	return c
}

// answer counts prefill's whole answer, or its failure.
func (c *callMetrics) answer(failed *fault.Error, now time.Time) {
	if failed == nil {
		c.first(now)
	}
	c.end(nil)
}

// first counts the first token, or prefill's whole answer.
func (c *callMetrics) first(now time.Time) {
	if c.waiting {
		c.waiting = false
		c.leg.dispatch.Dec()
		c.leg.ttft.Observe(now.Sub(c.began).Seconds())
	}
}

// token counts the first of the tokens that go to the client.
func (c *callMetrics) token(r *request) {
	c.first(time.Now())
	c.model.answered(r)
	c.streamed++
	c.model.outputTokens.Inc()
}

// gap counts a token that came d after the one before it. Every token of every
// stream passes here.
func (c *callMetrics) gap(d time.Duration) {
	seconds := d.Seconds()
	c.streamed++
	c.model.outputTokens.Inc()
	c.model.itl.Observe(seconds)
	c.last.gap.Store(math.Float64bits(seconds))
}

// end counts the call out. sent is nil of a prefill.
func (c *callMetrics) end(sent *decode.Transcript) {
	if c.waiting {
		c.waiting = false
		c.leg.dispatch.Dec()
	}
	c.leg.ended.Inc()
	if sent == nil || sent.Tokens == 0 {
		return
	}
	if more := sent.Tokens - c.streamed; more > 0 { // of an answer that was not streamed, or several to an event
		c.model.outputTokens.Add(float64(more))
	}
	c.leg.osl.Observe(float64(sent.Tokens))
	if c.streamed > 1 {
		c.leg.itl.Observe(sent.Last.Sub(sent.First).Seconds() / float64(c.streamed-1))
	}
}

// lastSeen is what the latest requests saw of a worker, NaN-free bits of
// float64; a count of 0 is nothing yet.
type lastSeen struct {
	ttft, gap atomic.Uint64 // seconds
	isl       atomic.Int64  // of the request that saw ttft
}

// firstToken notes a request's TTFT on the worker that computed its prompt.
func (l *lastSeen) firstToken(seconds float64, isl int) {
	l.ttft.Store(math.Float64bits(seconds))
	l.isl.Store(int64(isl))
}

// timed is reserve, which tells of itself how long it took.
func (f *Flow) timed(r *request, ahead []router.Claim, now time.Time) (queue.Held, error) {
	held, err := f.reserve(r, ahead, now)
	if g, ok := held.(*grant); ok && err == nil {
		g.took = time.Since(now)
	}
	return held, err
}
