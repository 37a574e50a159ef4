package observe

import (
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/prefill"
	"github.com/tandem-pd/tandem/router"
)

// requestLog writes one wide line per request, and one per failure that is not the client's. Neither contains text of
// a prompt or an answer.
type requestLog struct {
	log     *slog.Logger
	journal *Journal
	routing bool
	blocks  *blockNames // nil unless logged
}

func newRequestLog(cfg Config, log *slog.Logger) *requestLog {
	l := &requestLog{routing: cfg.Routing()}
	l.log, l.journal = Journaled(log)
	if cfg.Blocks() {
		l.blocks = newBlockNames()
	}
	return l
}

// failed logs a failure of a worker or of the gateway's machine.
func (l *requestLog) failed(r *handoff.Record, failed *fault.Error, action handoff.Action) {
	if failed.Class.Blames() || failed.Class == fault.GatewayError {
		l.log.Warn("leg failed", "request_id", r.Call.ID, "attempt", r.Attempts, "leg", failed.Leg,
			"worker", failed.Worker, "class", failed.Class.String(), "error", failed.Error(), "action", action.String())
	}
	if action == handoff.Resume {
		l.journal.note(time.Now(), slog.LevelInfo, subject{message: "answers resumed on another worker", worker: failed.Worker})
	}
}

// released logs a release that failed.
func (l *requestLog) released(kv prefill.KV, attempt string, err error) {
	if err != nil {
		l.log.Warn("staged KV not released: it stays until the engine's lease ends",
			"producer", kv.Producer, "attempt", attempt, "error", err)
	}
}

// ended logs the request, which took t until now.
func (l *requestLog) ended(r *handoff.Record, err error, now time.Time, t handoff.Timings) {
	if r.Poison() {
		l.log.Error("suspected poison: workers died while they had this request; not retried",
			"request_id", r.Call.ID, "engine_request_id", r.ID, "model", handoff.Shown(r.Call.Request.Model), "workers", r.Dead)
	}
	level := slog.LevelInfo
	if r.Sent.Started && err != nil {
		level = slog.LevelWarn
	}
	if answer, ok := errors.AsType[*openai.Error](err); ok && r.Known && r.Attempts == 0 {
		severity := slog.LevelInfo
		if answer.Status >= http.StatusTooManyRequests {
			severity = slog.LevelWarn
		}
		l.journal.note(now, severity,
			subject{message: "requests refused", reason: r.Outcome, class: r.PolicyClass, model: handoff.Shown(r.Call.Request.Model)})
	}
	line := NewLine(l.log, level, now, requestMessage)
	if line == nil {
		return
	}
	defer line.End()
	if line.Text() {
		textLine(line, r, err, t)
		return
	}
	req := r.Call.Request
	line.String("request_id", r.Call.ID)
	line.String("engine_request_id", r.ID)
	line.String("client", r.Call.Client)
	line.String("model", handoff.Shown(req.Model))
	line.String("endpoint", req.Endpoint.String())
	line.Bool("stream", req.Stream)
	line.String("outcome", r.Outcome)
	line.Int("isl", r.ISL)
	if req.Inputs > 0 {
		line.Int("inputs", req.Inputs)
	}
	line.Int("osl", r.Sent.Tokens)
	line.Int("cached_tokens", max(0, r.Found(&r.Sent)))
	line.Int("overlap_blocks", r.Overlap)
	line.Int("attempts", r.Attempts)
	line.String("prefill_worker", r.Prefill.Worker)
	line.String("decode_worker", r.Decode.Worker)
	line.Float("queue_ms", t.Queue)
	line.Float("prefill_ms", t.Prefill)
	if t.TTFT > 0 {
		line.Float("transfer_ms", t.Transfer)
		line.Float("ttft_ms", t.TTFT)
	}
	line.Float("total_ms", t.Total)
	if r.PolicyClass != "" {
		line.String("policy_class", r.PolicyClass)
	}
	if r.Reason != "" {
		line.String("one_leg", r.Reason)
	}
	if r.Resumes > 0 {
		line.Int("resumes", r.Resumes)
	}
	if r.NotResumable != "" && r.Outcome != fault.None.String() && r.Sent.Started {
		line.String("not_resumable", r.NotResumable)
	}
	logChoice(line, "prefill_why", &r.Prefill.Why)
	logChoice(line, "decode_why", &r.Decode.Why)
	if r.Remote != "" {
		line.String("remote_index", r.Remote)
		line.Float("remote_index_ms", float64(r.Spent.Asking.Microseconds())/1e3)
	}
	if l.routing {
		if how := r.Routing(&r.Sent); how != nil {
			line.String("routing", how.String())
		}
	}
	if l.blocks != nil && r.ISL > 0 {
		names, tokens := l.blocks.text(r.Hashes, index.Unit(!r.Tokenized), r.BlockSize)
		line.String("blocks", names)
		line.Int("block_tokens", tokens)
	}
	if len(r.Call.IgnoredHints) > 0 {
		line.String("ignored_hints", strings.Join(r.Call.IgnoredHints, ","))
	}
	if req.Nvext.QueryOnly() {
		line.Bool("query", true)
	}
	if id := r.TraceID(); id != "" {
		line.String("trace_id", id)
	}
	if err != nil {
		line.String("error", errorText(err))
	}
}

// logChoice logs the choice of a worker, without the terms.
func logChoice(line *Line, group string, w *router.Why) {
	if w.Policy == "" {
		return
	}
	line.Open(group)
	line.String("policy", w.Policy)
	line.Float("cost", w.Cost)
	line.Int("overlap", w.Overlap)
	line.Int("candidates", w.Candidates)
	line.Close()
}

// errorText is the loggable text of an error: an *openai.Error may quote an engine, which may quote the prompt, so
// only its code is logged.
func errorText(err error) string {
	if answer, ok := errors.AsType[*openai.Error](err); ok {
		return handoff.CodeOf(answer)
	}
	return err.Error()
}
