package observe

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/trace"
)

// exemplified is a series of a latency histogram with traced requests as exemplars. A bucket shows only its latest
// and is scraped every few seconds, so one per exemplarEvery suffices: an exemplar costs more than a request's spans.
type exemplified struct {
	prometheus.Observer
	next [26]atomic.Int64 // by bucket of latencyBuckets and +Inf: the earliest time of the next one
}

// exemplarEvery is the least time between two exemplars of a bucket.
const exemplarEvery = 100 * time.Millisecond

// started is the origin of exemplified's times.
var started = time.Now()

// observe records seconds, with the request's trace and one of its spans as exemplar if traced.
func (e *exemplified) observe(seconds float64, r *handoff.Record, span trace.SpanID) {
	if r.Trace != nil && e.due(seconds, time.Since(started)) {
		labels := prometheus.Labels{"trace_id": r.Trace.Own.Trace.String(), "span_id": span.String()}
		e.Observer.(prometheus.ExemplarObserver).ObserveWithExemplar(seconds, labels) // histograms support them
		return
	}
	e.Observe(seconds)
}

// due reports whether the bucket of a value needs an exemplar now.
func (e *exemplified) due(seconds float64, now time.Duration) bool {
	bucket := 0
	for bucket < len(latencyBuckets) && seconds > latencyBuckets[bucket] {
		bucket++
	}
	next := e.next[bucket].Load()
	return int64(now) >= next && e.next[bucket].CompareAndSwap(next, int64(now+exemplarEvery))
}
