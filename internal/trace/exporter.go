package trace

import (
	"bytes"
	"cmp"
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	wire "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/tandem-pd/tandem/internal/guard"
	"github.com/tandem-pd/tandem/internal/metrics"
)

// Exporter sends spans in batches from a bounded queue. Its methods never wait for the collector, Close apart, and may
// be called concurrently. A nil Exporter has no method but Close.
type Exporter struct {
	sampler   sampler
	processor sdk.SpanProcessor
	room      int64        // of the queue, in spans
	queued    atomic.Int64 // spans that wait in it
	life      context.Context
	end       context.CancelFunc

	exported, failed, dropped prometheus.Counter
}

// Scope names the instrumentation, in every span.
const Scope = "github.com/tandem-pd/tandem"

// spansARequest is how many spans most requests have. They leave the queue together.
const spansARequest = 4

// NewExporter makes an exporter from cfg and the environment, nil if no request is traced. reg counts spans.
func NewExporter(cfg ExporterConfig, log *slog.Logger, reg prometheus.Registerer) (*Exporter, error) {
	env, err := cfg.read(log)
	if env == nil {
		return nil, err
	}
	ctx := context.Background()
	client := env.client()
	if err := client.Start(ctx); err != nil { // connects later
		return nil, err
	}
	from, err := resource.New(ctx, resource.WithAttributes(
		attribute.String("service.name", cfg.Service), attribute.String("service.version", cmp.Or(cfg.Version, "unknown"))),
		resource.WithHost(), resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil {
		log.Warn("attributes of this process in its traces are incomplete", "error", err) // OTEL_RESOURCE_ATTRIBUTES, partly
	}
	e := &Exporter{sampler: env.sampler, room: int64(env.queue)}
	spans := metrics.In(reg).Counter("trace_spans_total",
		"Spans of requests, by outcome: exported, failed (the collector did not take them) or dropped (the queue to it was full).", "outcome")
	e.exported, e.failed, e.dropped = spans.WithLabelValues("exported"), spans.WithLabelValues("failed"), spans.WithLabelValues("dropped")
	e.life, e.end = context.WithCancel(ctx)
	e.processor = sdk.NewBatchSpanProcessor(&batches{
		client: client, of: e, log: log, limit: guard.LogLimiter{Burst: 1, Window: time.Minute},
		from: protoOf(from), scope: &common.InstrumentationScope{Name: Scope, Version: cfg.Version},
	}, sdk.WithMaxQueueSize(env.queue), sdk.WithMaxExportBatchSize(max(1, env.batch/spansARequest)))
	log.Info("requests are traced", "collector", cmp.Or(env.endpoint, variable("ENDPOINT")), "grpc", env.grpc)
	return e, nil
}

// client speaks the protocol that the environment names.
func (e *environment) client() otlptrace.Client {
	base := strings.TrimRight(e.endpoint, "/")
	switch {
	case e.grpc && base != "":
		return otlptracegrpc.NewClient(otlptracegrpc.WithEndpointURL(base))
	case e.grpc:
		return otlptracegrpc.NewClient()
	case base != "":
		return otlptracehttp.NewClient(otlptracehttp.WithEndpointURL(base + "/v1/traces"))
	}
	return otlptracehttp.NewClient()
}

// Sample reports whether the request of a trace is traced. parent is the client's span, zero without one.
func (e *Exporter) Sample(id TraceID, parent Context) bool {
	return e.sampler.sample(id, parent)
}

// closing bounds how long Close waits for the collector.
const closing = 3 * time.Second

// Close sends queued spans and ends the exporter, within 3 s; the rest is lost. A nil Exporter is closed.
func (e *Exporter) Close() {
	if e == nil {
		return
	}
	cut := time.AfterFunc(closing, e.end)
	defer cut.Stop()
	defer e.end()
	_ = e.processor.Shutdown(context.Background()) // ends when the exports do, which e.end ends; they count and log their failures
}

// Emit queues a tree, which must not be used again. If the queue lacks room for all of its spans, all are dropped and
// counted: half a tree misleads.
func (e *Exporter) Emit(t *Tree) {
	defer func() {
		if cap(t.out) <= maxKeptTree {
			trees.Put(t)
		}
	}()
	t.close()
	n := int64(t.spans)
	if e.queued.Add(n) > e.room {
		e.queued.Add(-n)
		e.dropped.Add(float64(n))
		return
	}
	e.processor.OnEnd(&item{spans: bytes.Clone(t.out), n: n})
}

// item is a tree in the SDK's processor, which uses only its context.
type item struct {
	sdk.ReadOnlySpan // nil: it cannot be implemented otherwise
	spans            []byte
	n                int64
}

// SpanContext returns a sampled context.
func (*item) SpanContext() trace.SpanContext { return sampled }

var sampled = trace.NewSpanContext(trace.SpanContextConfig{TraceFlags: trace.FlagsSampled})

// batches is the collector's client for the SDK's processor: it counts what leaves the queue, and the results.
type batches struct {
	client otlptrace.Client
	of     *Exporter
	from   *resourcepb.Resource
	scope  *common.InstrumentationScope
	log    *slog.Logger
	limit  guard.LogLimiter
}

// ExportSpans sends a batch. Its failures are counted and logged here, so that it returns none.
func (b *batches) ExportSpans(ctx context.Context, items []sdk.ReadOnlySpan) error {
	e, n, size := b.of, int64(0), 0
	for _, i := range items {
		n, size = n+i.(*item).n, size+len(i.(*item).spans) // Emit is the processor's only source
	}
	e.queued.Add(-n)
	raw := make([]byte, 0, size)
	for _, i := range items {
		raw = append(raw, i.(*item).spans...)
	}
	spans := &wire.ScopeSpans{Scope: b.scope}
	spans.ProtoReflect().SetUnknown(raw) // they are encoded already, and pass as they are
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.life, cancel)()
	err := b.client.UploadTraces(ctx, []*wire.ResourceSpans{{Resource: b.from, ScopeSpans: []*wire.ScopeSpans{spans}}})
	if err == nil {
		e.exported.Add(float64(n))
		return nil
	}
	e.failed.Add(float64(n))
	if suppressed, ok := b.limit.Allow("export", time.Now()); ok {
		b.log.Warn("spans not exported", "spans", n, "error", err, "suppressed", suppressed)
	}
	return nil
}

// Shutdown ends the client.
func (b *batches) Shutdown(ctx context.Context) error { return b.client.Stop(ctx) }

// protoOf writes a resource's attributes as OTLP has them. All of those that an environment can set are texts.
func protoOf(r *resource.Resource) *resourcepb.Resource {
	out := &resourcepb.Resource{}
	for _, a := range r.Attributes() {
		text := valid(a.Value.String())
		out.Attributes = append(out.Attributes,
			&common.KeyValue{Key: string(a.Key), Value: &common.AnyValue{Value: &common.AnyValue_StringValue{StringValue: text}}})
	}
	return out
}
