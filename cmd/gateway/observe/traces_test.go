package observe

import (
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/decode"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/trace"
	"github.com/tandem-pd/tandem/lab/testkit"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
)

// tracedRequest is a sampled request that has ended, with a wait and two legs.
func tracedRequest(at time.Time) *handoff.Record {
	own := trace.Context{Trace: trace.NewTraceID(), Span: trace.NewSpanID(), Flags: trace.Sampled}
	r := &handoff.Record{Call: handoff.Call{ID: "mine", Client: "10.0.0.1:1", Request: &openai.Request{Model: "m"}, Arrival: at}, ID: "r",
		Known: true, ISL: 100, Attempts: 1, Outcome: "ok"}
	r.Sent = decode.Transcript{Started: true, Tokens: 8, First: at.Add(time.Second), CachedTokens: 1}
	steps := []handoff.Step{{Attempt: 1, Began: at, Ended: at}}
	for _, role := range []pools.Role{pools.Prefill, pools.Decode} {
		w := &pools.Worker{ID: string(role) + "-1", Role: role, Address: "http://10.0.0.2:8000"}
		steps = append(steps, handoff.Step{ID: trace.NewSpanID(), Role: role, Attempt: 1, Began: at, First: at,
			Ended: at.Add(time.Second), Worker: w, Why: &router.Why{Policy: "kv"}, Prediction: time.Second})
	}
	r.Trace = handoff.NewTrace(own, trace.SpanID{}, steps...)
	return r
}

// spanOf is the span of a request that ended so, as a collector has it.
func spanOf(t *testing.T, c *testkit.Collector, r *handoff.Record, ended error) testkit.Span {
	t.Helper()
	e, err := trace.NewExporter(trace.ExporterConfig{Endpoint: c.URL, Sampler: "always_on"}, slog.New(slog.DiscardHandler),
		prometheus.NewRegistry())
	require.NoError(t, err)
	traced(e, r, ended, time.Now())
	e.Close()
	all := c.Spans()
	i := slices.IndexFunc(all, func(s testkit.Span) bool { return s.ID == r.Trace.Own.Span.String() })
	require.GreaterOrEqual(t, i, 0, "the span has come")
	return all[i]
}

// The span of a request has what its client got: the status, and an error where that is the gateway's or a worker's.
func TestOwnSpans(t *testing.T) {
	c := testkit.StartCollector(t)
	for name, tt := range map[string]struct {
		outcome string
		err     error
		change  func(r *handoff.Record)
		status  any
		failed  string
	}{
		"well":                 {"ok", nil, nil, 200, ""},
		"its client's mistake": {"rejected", openai.BadRequest("n", "wrong"), func(r *handoff.Record) { r.Sent.Started = false }, 400, ""},
		"no worker": {"no_worker", openai.Unavailable("no_worker", "none"),
			func(r *handoff.Record) { r.Sent.Started = false }, 503, "no_worker"},
		"the client left":     {"client_gone", fault.ErrClientGone, nil, nil, ""},
		"a stream that broke": {"reset", errors.New("broke"), func(r *handoff.Record) { r.Call.Request.Stream = true }, 200, "reset"},
		"a panic": {"engine_error", errors.New("panic"), func(r *handoff.Record) { r.Sent.Started = false }, 500,
			"engine_error"},
		"a model that is half a rune": {"model_not_found", openai.BadRequest("model", "no"), func(r *handoff.Record) {
			r.Call.Request.Model,
				r.Sent.Started = "a\xc3", false
		}, 400, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := tracedRequest(time.Now())
			r.Outcome = tt.outcome
			if tt.change != nil {
				tt.change(r)
			}
			s := spanOf(t, c, r, tt.err)
			if s.Attributes["http.response.status_code"] != tt.status || s.Failed != tt.failed ||
				(s.Attributes["error.type"] != nil) != (tt.outcome != "ok") {
				t.Errorf("failed %q, %v", s.Failed, s.Attributes)
			}
		})
	}
}

// A span has what is known of the answer, and of the conversation that it is part of.
func TestSpansOfAnswers(t *testing.T) {
	r := tracedRequest(time.Now())
	body := `{"model":"m","prompt":"x","prompt_cache_key":"talk-7","response_format":{"type":"json_schema","json_schema":{}}}`
	var err error
	r.Call.Request, err = (openai.Limits{}).Scan(openai.Completions, []byte(body))
	require.NoError(t, err)
	r.Call.Server = "[::1]:8000"
	r.Sent.Reason, r.Sent.ReasoningTokens = "tool_calls", 3
	s := spanOf(t, testkit.StartCollector(t), r, nil)
	for name, want := range map[string]any{
		"gen_ai.conversation.id": "talk-7", "gen_ai.output.type": "json", "gen_ai.response.model": "m",
		"gen_ai.response.finish_reasons":       "tool_calls",
		"gen_ai.usage.reasoning.output_tokens": 3, "server.address": "::1", "server.port": 8000,
	} {
		assert.Equal(t, want, s.Attributes[name], name)
	}
}

func TestServerOf(t *testing.T) {
	for address, want := range map[string]struct {
		host string
		port int
	}{"http://10.0.0.1:8000": {"10.0.0.1", 8000}, "https://[::1]:81/base": {"::1", 81}, "http://worker": {"worker", 80},
		"https://worker/v1": {"worker", 443}} {
		if host, port := serverOf(address); host != want.host || port != want.port {
			t.Errorf("%s: %s, %d", address, host, port)
		}
	}
}
