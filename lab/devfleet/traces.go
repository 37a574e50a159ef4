package devfleet

import (
	"github.com/tandem-pd/tandem/internal/trace"
	"github.com/tandem-pd/tandem/lab/engine"
)

// openTraces has the worker send a span of each request, as vLLM does with --otlp-traces-endpoint: where its caller
// traces the request, and where it has no caller that decides.
func (w *Worker) openTraces() (err error) {
	cfg := w.cfg.Traces
	cfg.Service, cfg.Sampler = "tandem-worker-"+w.cfg.Engine.ID, "parentbased_always_on"
	if w.traces, err = trace.NewExporter(cfg, w.log, nil); w.traces != nil {
		w.cfg.Engine.OnServed = w.traced
	}
	return err
}

// traced sends the span of one request: one of kind SERVER, made at its end, with vLLM's names (vllm/tracing, 0.24).
func (w *Worker) traced(s engine.Served) {
	parent, _ := trace.Parse(s.TraceParent)
	id := parent.Trace
	if id == (trace.TraceID{}) {
		id = trace.NewTraceID()
	}
	if !w.traces.Sample(id, parent) {
		return
	}
	own := trace.Context{Trace: id, Span: trace.NewSpanID(), Flags: trace.Sampled}
	t := trace.NewTree(own, "")
	t.Add(trace.Span{Name: "llm_request", Kind: trace.Server, ID: own.Span, Parent: parent.Span, Remote: true, Began: s.Began, Ended: s.Ended})
	t.String("gen_ai.request.id", s.RequestID)
	t.Int("gen_ai.request.max_tokens", s.MaxTokens)
	t.Int("gen_ai.usage.prompt_tokens", s.PromptTokens)
	t.Int("gen_ai.usage.completion_tokens", s.Generated)
	t.Float("gen_ai.latency.e2e", s.Ended.Sub(s.Began).Seconds())
	w.traces.Emit(t)
}
