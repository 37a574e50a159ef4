package observe

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/prefill"
)

// requestLog writes one wide line for each request, and one for each failure that is not the client's. Nothing in
// them comes from a prompt or an answer.
type requestLog struct {
	log     *slog.Logger
	routing bool
	blocks  *blockNames // nil unless they are logged
}

func newRequestLog(cfg Config, log *slog.Logger) *requestLog {
	l := &requestLog{log: log, routing: cfg.LogRouting}
	if cfg.LogBlocks {
		l.blocks = newBlockNames()
	}
	return l
}

// failed logs a failure that blames a worker or the gateway's machine.
func (l *requestLog) failed(r *handoff.Record, failed *fault.Error, action handoff.Action) {
	if failed.Class.Blames() || failed.Class == fault.GatewayError {
		l.log.Warn("leg failed", "request_id", r.Call.ID, "attempt", r.Attempts, "leg", failed.Leg,
			"worker", failed.Worker, "class", failed.Class.String(), "error", failed.Error(), "action", action.String())
	}
	if action == handoff.Fail && r.Poison() {
		l.log.Error("suspected poison: workers died while they had this request, and it is tried on no other",
			"request_id", r.Call.ID, "engine_request_id", r.ID, "model", handoff.Shown(r.Call.Request.Model), "workers", r.Dead)
	}
}

// released logs a release that failed.
func (l *requestLog) released(kv prefill.KV, attempt string, err error) {
	if err != nil {
		l.log.Warn("staged KV not released: it stays until the engine's lease ends",
			"producer", kv.Producer, "attempt", attempt, "error", err)
	}
}

// ended logs the request.
func (l *requestLog) ended(r *handoff.Record, err error) {
	level := slog.LevelInfo
	if r.Sent.Started && err != nil {
		level = slog.LevelWarn
	}
	if !l.log.Enabled(context.Background(), level) {
		return
	}
	t := r.Timings(&r.Sent, time.Now())
	attrs := []slog.Attr{
		slog.String("request_id", r.Call.ID), slog.String("engine_request_id", r.ID), slog.String("client", r.Call.Client),
		slog.String("model", handoff.Shown(r.Call.Request.Model)), slog.String("endpoint", r.Call.Request.Endpoint.String()),
		slog.Bool("stream", r.Call.Request.Stream), slog.String("outcome", r.Outcome),
		slog.Int("isl", r.ISL), slog.Int("osl", r.Sent.Tokens), slog.Int("cached_tokens", max(0, r.Found(&r.Sent))),
		slog.Int("overlap_blocks", r.Overlap), slog.Int("attempts", r.Attempts),
		slog.String("prefill_worker", r.Prefill.Worker), slog.String("decode_worker", r.Decode.Worker),
		slog.Float64("queue_ms", t.Queue), slog.Float64("prefill_ms", t.Prefill),
		slog.Float64("transfer_ms", t.Transfer), slog.Float64("ttft_ms", t.TTFT), slog.Float64("total_ms", t.Total),
	}
	if r.Reason != "" {
		attrs = append(attrs, slog.String("one_leg", r.Reason))
	}
	if r.Prefill.Why.Policy != "" {
		attrs = append(attrs, slog.Any("prefill_why", r.Prefill.Why))
	}
	if r.Decode.Why.Policy != "" {
		attrs = append(attrs, slog.Any("decode_why", r.Decode.Why))
	}
	if r.Remote != "" {
		attrs = append(attrs, slog.String("remote_index", r.Remote), slog.Float64("remote_index_ms", float64(r.Spent.Asking.Microseconds())/1e3))
	}
	if l.routing {
		if how := r.Routing(&r.Sent); how != nil {
			attrs = append(attrs, slog.Any("routing", how))
		}
	}
	if l.blocks != nil && r.ISL > 0 {
		names, tokens := l.blocks.text(r.Hashes, r.BlockSize)
		attrs = append(attrs, slog.String("blocks", names), slog.Int("block_tokens", tokens))
	}
	if len(r.Call.IgnoredHints) > 0 {
		attrs = append(attrs, slog.String("ignored_hints", strings.Join(r.Call.IgnoredHints, ",")))
	}
	if r.Call.Request.Nvext.QueryOnly() {
		attrs = append(attrs, slog.Bool("query", true))
	}
	if id := r.Call.TraceID(); id != "" {
		attrs = append(attrs, slog.String("trace_id", id))
	}
	if err != nil {
		attrs = append(attrs, slog.String("error", errorText(err)))
	}
	l.log.LogAttrs(context.Background(), level, "request", attrs...)
}

// errorText is what the log may say of an error. An *openai.Error may quote an engine, which may quote the prompt:
// its code stands for it.
func errorText(err error) string {
	if answer, ok := errors.AsType[*openai.Error](err); ok {
		return handoff.CodeOf(answer)
	}
	return err.Error()
}
