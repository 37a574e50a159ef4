package handoff

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/openai"
)

// record writes a request's one wide log line and counts it. Nothing in it
// comes from the prompt or the answer.
func (f *Flow) record(r *request, err error) {
	now := time.Now()
	outcome := r.outcomeOf(err)
	f.metrics.end(r, outcome, now)
	level := slog.LevelInfo
	if r.sent.Started && err != nil {
		level = slog.LevelWarn
	}
	if !f.log.Enabled(context.Background(), level) {
		return
	}
	t := r.timings(&r.sent, now)
	attrs := []slog.Attr{
		slog.String("request_id", r.call.ID), slog.String("engine_request_id", r.id), slog.String("client", r.call.Client),
		slog.String("model", shown(r.call.Request.Model)), slog.String("endpoint", r.call.Request.Endpoint.String()),
		slog.Bool("stream", r.call.Request.Stream), slog.String("outcome", outcome),
		slog.Int("isl", r.isl), slog.Int("osl", r.sent.Tokens), slog.Int("cached_tokens", max(0, r.found(&r.sent))),
		slog.Int("overlap_blocks", r.overlap), slog.Int("attempts", r.attempt),
		slog.String("prefill_worker", r.first.p), slog.String("decode_worker", r.first.d),
		slog.Float64("queue_ms", t.Queue), slog.Float64("prefill_ms", t.Prefill),
		slog.Float64("transfer_ms", t.Transfer), slog.Float64("ttft_ms", t.TTFT), slog.Float64("total_ms", t.Total),
	}
	if r.reason != "" {
		attrs = append(attrs, slog.String("one_leg", r.reason))
	}
	if r.why.p.Policy != "" {
		attrs = append(attrs, slog.Any("prefill_why", r.why.p))
	}
	if r.why.d.Policy != "" {
		attrs = append(attrs, slog.Any("decode_why", r.why.d))
	}
	if r.remote != "" {
		attrs = append(attrs, slog.String("remote_index", r.remote), slog.Float64("remote_index_ms", ms(r.spent.asking)))
	}
	if f.cfg.LogRouting {
		if how := r.routing(&r.sent); how != nil {
			attrs = append(attrs, slog.Any("routing", how))
		}
	}
	if f.blocks != nil && r.isl > 0 {
		names, tokens := f.blocks.text(r.hashes, r.card.blockSize)
		attrs = append(attrs, slog.String("blocks", names), slog.Int("block_tokens", tokens))
	}
	if len(r.call.IgnoredHints) > 0 {
		attrs = append(attrs, slog.String("ignored_hints", strings.Join(r.call.IgnoredHints, ",")))
	}
	if r.call.Request.Nvext.QueryOnly() {
		attrs = append(attrs, slog.Bool("query", true))
	}
	if id := r.call.TraceID(); id != "" {
		attrs = append(attrs, slog.String("trace_id", id))
	}
	if err != nil {
		attrs = append(attrs, slog.String("error", errorText(err)))
	}
	f.log.LogAttrs(context.Background(), level, "request", attrs...)
}

// outcomeOf is the outcome's label: ok, a fault class or an error's code.
func (r *request) outcomeOf(err error) string {
	var told *openai.Error
	switch {
	case err == nil:
		return fault.None.String()
	case r.outcome != "":
		return r.outcome
	case errors.As(err, &told):
		return codeOf(told)
	default:
		return fault.Classify(err, 0).String()
	}
}

// errorText is what the log may say of an error. An *openai.Error may quote an
// engine, which may quote the prompt: its code stands for it.
func errorText(err error) string {
	var told *openai.Error
	if errors.As(err, &told) {
		return codeOf(told)
	}
	return err.Error()
}

// codeOf is an error's code; one without is the client's mistake.
func codeOf(e *openai.Error) string { return cmp.Or(e.Code, fault.Rejected.String()) }

// shown bounds what a client can write into the log by asking for a model.
func shown(model string) string { return model[:min(len(model), 128)] }
