package observe

import (
	"cmp"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/trace"
	"github.com/tandem-pd/tandem/pools"
)

// traced exports the spans of a traced request that ended at now: its own, with one child for each wait and each
// call, so that retries are siblings. They contain no text of prompts or answers. Names follow OpenTelemetry's
// conventions (semconv 1.41), else they begin with tandem.
func traced(to *trace.Exporter, r *handoff.Record, err error, now time.Time) {
	if to == nil || r.Trace == nil {
		return
	}
	spans := trace.NewTree(r.Trace.Own, r.Call.TraceState)
	addOwn(spans, r, err, now)
	r.Trace.Each(func(s *handoff.Step) { addStep(spans, r, s, now) })
	to.Emit(spans)
}

// addOwn adds the request's own span, the client's wait.
func addOwn(to *trace.Tree, r *handoff.Record, err error, now time.Time) {
	req, status, path := r.Call.Request, statusOf(r, err), r.Call.Request.Endpoint.Path()
	to.Add(trace.Span{
		Name: req.Endpoint.Method() + " " + path, Kind: trace.Server, ID: r.Trace.Own.Span, Parent: r.Trace.Parent, Remote: true,
		Began: r.Call.Arrival, Ended: now,
	})
	to.String("http.request.method", req.Endpoint.Method())
	to.String("http.route", path)
	to.String("url.path", path)
	to.String("client.address", r.Call.Client)
	if host, text, err := net.SplitHostPort(r.Call.Server); err == nil {
		to.String("server.address", host)
		if port, err := strconv.Atoi(text); err == nil {
			to.Int("server.port", port)
		}
	}
	if status > 0 {
		to.Int("http.response.status_code", status)
	}
	operation := req.Endpoint.String() // chat, embeddings
	if req.Endpoint == openai.Completions {
		operation = "text_completion"
	}
	to.String("gen_ai.operation.name", operation)
	to.String("gen_ai.provider.name", "tandem")
	to.String("gen_ai.request.model", handoff.Shown(req.Model))
	to.Bool("gen_ai.request.stream", req.Stream)
	if req.MaxTokens > 0 {
		to.Int("gen_ai.request.max_tokens", req.MaxTokens)
	}
	if req.N > 1 {
		to.Int("gen_ai.request.choice.count", req.N)
	}
	addSampling(to, req)
	addAnswer(to, r)
	if r.Attempts > 0 {
		to.Int("gen_ai.usage.input_tokens", r.ISL)
		to.Int("gen_ai.usage.output_tokens", r.Sent.Tokens)
		if cached := r.Found(&r.Sent); cached >= 0 {
			to.Int("gen_ai.usage.cache_read.input_tokens", cached)
		}
		to.Int("tandem.overlap_blocks", r.Overlap)
	}
	if req.Stream && !r.Sent.First.IsZero() { // unknown for whole answers
		to.Float("gen_ai.response.time_to_first_chunk", r.Sent.First.Sub(r.Call.Arrival).Seconds())
	}
	to.String("tandem.request.id", r.Call.ID)
	to.String("tandem.engine_request.id", r.ID)
	to.String("tandem.outcome", r.Outcome)
	to.Int("tandem.attempts", r.Attempts)
	if r.Reason != "" {
		to.String("tandem.one_leg", r.Reason)
	}
	if r.Resumes > 0 {
		to.Int("tandem.resumes", r.Resumes)
	}
	if r.Outcome != fault.None.String() {
		to.String("error.type", r.Outcome)
		if status >= http.StatusInternalServerError || r.Sent.Started && r.Outcome != fault.ClientGone.String() {
			to.Fail(r.Outcome)
		}
	}
}

// maxConversation bounds the name of a conversation in a span, in bytes.
const maxConversation = 128

// addAnswer adds the request's parameters, conversation and results.
func addAnswer(to *trace.Tree, r *handoff.Record) {
	req, sent := r.Call.Request, &r.Sent
	if session := cmp.Or(r.Call.Session, req.Session); session != "" && len(session) <= maxConversation {
		to.String("gen_ai.conversation.id", session)
	}
	if raw, ok := req.Field("response_format"); ok {
		var format struct{ Type string }
		switch err := json.Unmarshal(raw, &format); {
		case err != nil:
		case format.Type == "text":
			to.String("gen_ai.output.type", "text")
		case strings.HasPrefix(format.Type, "json"):
			to.String("gen_ai.output.type", "json")
		}
	}
	if sent.First.IsZero() {
		return
	}
	to.String("gen_ai.response.model", handoff.Shown(req.Model))
	if sent.Reason != "" && req.N <= 1 { // with several choices only one reason is known
		to.Strings("gen_ai.response.finish_reasons", sent.Reason)
	}
	if sent.ReasoningTokens > 0 && r.Resumes == 0 {
		to.Int("gen_ai.usage.reasoning.output_tokens", sent.ReasoningTokens)
	}
}

// samplingFields are the numeric sampling parameters of a body.
var samplingFields = [...]string{"temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty", "seed"}

// addSampling adds the request's sampling parameters.
func addSampling(to *trace.Tree, req *openai.Request) {
	for _, name := range samplingFields {
		raw, ok := req.Field(name)
		if !ok || len(raw) > 24 {
			continue
		}
		if x, err := strconv.ParseFloat(string(raw), 64); err == nil {
			to.Float("gen_ai.request."+name, x)
		}
	}
}

// statusOf returns the client's status, 0 if it left before.
func statusOf(r *handoff.Record, err error) int {
	switch {
	case err == nil, r.Sent.Started && r.Call.Request.Stream:
		return http.StatusOK
	case r.Outcome == fault.ClientGone.String():
		return 0
	}
	if answer, ok := errors.AsType[*openai.Error](err); ok {
		return answer.Status
	}
	return http.StatusInternalServerError
}

// addStep adds the span of a wait or of a call.
func addStep(to *trace.Tree, r *handoff.Record, s *handoff.Step, now time.Time) {
	span := trace.Span{Name: "tandem.queue", Kind: trace.Internal, ID: s.ID, Parent: r.Trace.Own.Span, Began: s.Began, Ended: s.Ended}
	if s.Worker != nil {
		span.Kind, span.Name = trace.Client, "tandem.decode"
		if s.Role == pools.Prefill {
			span.Name = "tandem.prefill"
		}
	}
	if s.Ended.IsZero() { // a panic cut it short
		span.Ended = now
	}
	to.Add(span)
	to.Int("tandem.attempt", s.Attempt)
	if s.Worker == nil {
		to.Int("tandem.queue.position", s.Ahead)
	} else {
		addLeg(to, r, s)
	}
	if s.Failure != "" {
		to.String("error.type", s.Failure)
		to.Fail(s.Failure)
	}
}

// addLeg adds the attributes of a call's span.
func addLeg(to *trace.Tree, r *handoff.Record, s *handoff.Step) {
	host, port := serverOf(s.Worker.Address)
	to.String("http.request.method", http.MethodPost)
	to.String("server.address", host)
	to.Int("server.port", port)
	to.String("tandem.worker.id", s.Worker.ID)
	to.Int("tandem.rank", s.Rank)
	to.String("tandem.policy", s.Why.Policy)
	to.Int("tandem.overlap_blocks", s.Why.Overlap)
	if s.Prediction > 0 {
		to.Float("tandem.prediction_ms", float64(s.Prediction)/float64(time.Millisecond))
	}
	if s.Role != pools.Prefill {
		if r.Reason != "" {
			to.String("tandem.one_leg", r.Reason)
		}
		if r.Call.Request.Stream && !s.First.IsZero() {
			to.Event("first_token", s.First)
		}
		if s.From != (trace.SpanID{}) {
			to.Link(s.From, "tandem.link", "resumes")
		}
	}
}

func serverOf(address string) (host string, port int) {
	scheme, rest, _ := strings.Cut(address, "://")
	rest, _, _ = strings.Cut(rest, "/")
	host, text, err := net.SplitHostPort(rest)
	switch {
	case err != nil && scheme == "https":
		return rest, 443
	case err != nil:
		return rest, 80
	}
	port, _ = strconv.Atoi(text)
	return host, port
}
