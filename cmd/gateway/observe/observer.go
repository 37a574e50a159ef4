package observe

import (
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/trace"
	"github.com/tandem-pd/tandem/prefill"
)

// Observer implements handoff.Observer: metrics, log lines, traces and the demand for workers.
type Observer struct {
	*requestMetrics
	cfg    Config
	log    *requestLog
	demand *demand
	traces *trace.Exporter // nil if no request is traced
}

var _ handoff.Observer = (*Observer)(nil)

// New registers the request metrics with reg and logs to log. Spans of traced requests go to traces, which may be
// nil.
func New(cfg Config, reg prometheus.Registerer, log *slog.Logger, traces *trace.Exporter) *Observer {
	return &Observer{newRequestMetrics(reg), cfg, newRequestLog(cfg, log), newDemand(cfg), traces}
}

// Queued implements [handoff.Observer], as do the methods below.
func (o *Observer) Queued(r *handoff.Record, uncached int) {
	o.requestMetrics.Queued(r, uncached)
	o.demand.queued(r, uncached)
}

// Failed counts and logs a failed call.
func (o *Observer) Failed(r *handoff.Record, failed *fault.Error, action handoff.Action) {
	o.requestMetrics.Failed(r, failed, action)
	o.log.failed(r, failed, action)
}

// Ended counts, logs and traces a finished request.
func (o *Observer) Ended(r *handoff.Record, err error) {
	now := time.Now()
	t := r.Timings(&r.Sent, now)
	o.requestMetrics.ended(r, t)
	o.log.ended(r, err, now, t)
	traced(o.traces, r, err, now)
}

// Released counts a release of staged KV, and logs one that failed.
func (o *Observer) Released(kv prefill.KV, attempt string, err error) {
	o.requestMetrics.Released(kv, attempt, err)
	o.log.released(kv, attempt, err)
}
