package observe

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/tracecontext"
)

// exemplified is a series of a latency histogram whose traced requests become exemplars. A bucket shows its latest alone and
// is read every few seconds, so that one in exemplarEvery is enough: an exemplar costs more than a request's spans.
type exemplified struct {
	prometheus.Observer
	next [26]atomic.Int64 // by bucket of latencyBuckets, the last one's bound is infinite: when it takes another one
}

// exemplarEvery is the least time between two exemplars of a bucket.
const exemplarEvery = 100 * time.Millisecond

// started is what exemplified counts its times from.
var started = time.Now()

// observe observes a value in seconds, with the request's trace and one of its spans as exemplar if it is traced.
func (e *exemplified) observe(seconds float64, r *handoff.Record, span tracecontext.SpanID) {
	if r.Trace != nil && e.due(seconds, time.Since(started)) {
		labels := prometheus.Labels{"trace_id": r.Trace.Own.Trace.String(), "span_id": span.String()}
		e.Observer.(prometheus.ExemplarObserver).ObserveWithExemplar(seconds, labels) // histograms take them
		return
	}
	e.Observe(seconds)
}

// due reports whether the bucket of a value takes an exemplar now.
func (e *exemplified) due(seconds float64, now time.Duration) bool {
	bucket := 0
	for bucket < len(latencyBuckets) && seconds > latencyBuckets[bucket] {
		bucket++
	}
	next := e.next[bucket].Load()
	return int64(now) >= next && e.next[bucket].CompareAndSwap(next, int64(now+exemplarEvery))
}
