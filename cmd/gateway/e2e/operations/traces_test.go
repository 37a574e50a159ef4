package operations

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/trace"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/lab/fleet"
	"github.com/tandem-pd/tandem/lab/testkit"
	"github.com/tandem-pd/tandem/pools"
)

// clientsSpan is the traceparent of a client whose own span is recorded.
const (
	clientsTrace = "0af7651916cd43dd8448eb211c80319c"
	clientsSpan  = "b7ad6b7169203331"
	traceparent  = "00-" + clientsTrace + "-" + clientsSpan + "-01"
)

// tracing is a fleet with a collector, which gets the spans of every request, the gateway's and the engines'.
func tracing(t *testing.T, o fleet.Options) (*fleet.Fleet, *testkit.Collector) {
	t.Helper()
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "5")
	c := testkit.StartCollector(t)
	gateway, worker := o.Gateway, o.Worker
	o.Gateway = func(cfg *stack.GatewayConfig) {
		cfg.Traces = trace.ExporterConfig{Endpoint: c.URL, Sampler: "parentbased_always_on"}
		if gateway != nil {
			gateway(cfg)
		}
	}
	o.Worker = func(cfg *devfleet.WorkerConfig) {
		cfg.Traces.Endpoint = c.URL
		if worker != nil {
			worker(cfg)
		}
	}
	return fleet.New(t, o), c
}

// tree is the spans of one request.
type tree struct {
	root   testkit.Span
	below  []testkit.Span          // the root's children
	engine map[string]testkit.Span // the engines' own, by their parent
}

// names are those of the root's children.
func (t *tree) names() string {
	var out []string
	for _, s := range t.below {
		out = append(out, s.Name)
	}
	return strings.Join(out, " ")
}

// tree waits for n spans of one trace and puts them together.
func treeOf(f *fleet.Fleet, c *testkit.Collector, n int) *tree {
	f.T.Helper()
	f.Eventually(fmt.Sprint(n, " spans have come"), func() bool { return len(c.Spans()) >= n })
	out := &tree{engine: map[string]testkit.Span{}}
	spans := c.Spans()
	for _, s := range spans {
		assert.Equal(f.T, spans[0].Trace, s.Trace, "%s is of another trace", s.Name)
		switch {
		case s.Name == "llm_request":
			out.engine[s.Parent] = s
		case s.Kind == "SERVER":
			assert.Empty(f.T, out.root.ID, "two trees: %v and %v", out.root, s)
			out.root = s
		}
	}
	for _, s := range spans {
		switch {
		case s.ID == out.root.ID || s.Name == "llm_request":
		case s.Parent != out.root.ID:
			f.T.Errorf("%s is below %s, not below %s", s.Name, s.Parent, out.root.ID)
		default:
			out.below = append(out.below, s)
		}
		if s.Ended.Before(s.Began) || s.Name != "llm_request" && (s.Began.Before(out.root.Began) || s.Ended.After(out.root.Ended)) {
			f.T.Errorf("%s lasts from %v to %v", s.Name, s.Began, s.Ended)
		}
		for name := range s.Attributes {
			assert.True(f.T, !strings.HasPrefix(name, "gen_ai.usage.") || s.ID == out.root.ID || s.Name == "llm_request",
				"%s counts tokens a second time: %s", s.Name, name)
		}
	}
	if len(spans) != n {
		f.T.Errorf("%d spans, want %d; below the root: %s", len(spans), n, out.names())
	}
	return out
}

// TestTracesAreTrees: a request is one trace, in which each engine's span hangs below the leg that called it, whichever
// way the legs are called in.
func TestTracesAreTrees(t *testing.T) {
	for _, engine := range []string{"sim", "vllm", "sglang", "trtllm"} {
		for stream, headers := range map[bool][]string{false: nil, true: {"traceparent", traceparent, "tracestate", "vendor=1"}} {
			t.Run(fmt.Sprintf("%s, stream %v, %d headers", engine, stream, len(headers)/2), func(t *testing.T) {
				o := fleet.Of(engine)
				o.Prefill, o.Decode = 1, 1
				f, c := tracing(t, o)
				a, err := f.Try(context.Background(), fleet.CompletionPath,
					`{"model":"tandem-sim","max_tokens":5,"ignore_eos":true,"temperature":0.5,`+
						fmt.Sprintf(`"stream":%v,"prompt":%q}`, stream, fleet.Long), nil, headers...)
				require.True(t, err == nil && a.Status == http.StatusOK, "status %d, %v: %s", a.Status, err, a.Body)
				tr := treeOf(f, c, 6)
				if headers == nil && tr.root.Parent != "" || headers != nil &&
					(tr.root.Parent != clientsSpan || tr.root.Trace != clientsTrace || tr.root.State != "vendor=1") {
					t.Errorf("the root's parent: %q, trace %s, state %q", tr.root.Parent, tr.root.Trace, tr.root.State)
				}
				for name, want := range map[string]any{
					"http.route": fleet.CompletionPath, "http.response.status_code": 200,
					"gen_ai.operation.name": "text_completion", "gen_ai.request.model": "tandem-sim",
					"gen_ai.request.max_tokens": 5, "gen_ai.request.temperature": .5, "gen_ai.usage.output_tokens": 5,
					"gen_ai.usage.input_tokens": len(fleet.TextPrompt(fleet.Long)),
					"gen_ai.request.stream":     stream, "tandem.outcome": "ok", "gen_ai.response.model": "tandem-sim",
					"gen_ai.response.finish_reasons": "length",
					"server.address":                 "127.0.0.1",
				} {
					if got := tr.root.Attributes[name]; got != want {
						t.Errorf("%s is %v, want %v", name, got, want)
					}
				}
				if tr.root.Name != "POST "+fleet.CompletionPath || tr.root.Service != "tandem-gateway" || tr.root.Failed != "" {
					t.Errorf("the root: %+v", tr.root)
				}
				if _, known := tr.root.Attributes["gen_ai.response.time_to_first_chunk"]; known != stream {
					t.Errorf("a time to the first chunk: %v", known)
				}
				seen := map[string]bool{}
				for _, s := range tr.below {
					seen[s.Name] = true
					// A prefill leg beside decode's is cut 50 ms after the answer's end, on a machine that stood still.
					cut := s.Name == "tandem.prefill" && engine == "sglang" && s.Failed == "client_gone"
					assert.True(t, s.Attributes["tandem.attempt"] == 1 && (s.Failed == "" || cut), "%+v", s)
					if s.Kind == "INTERNAL" {
						continue
					}
					role := strings.TrimPrefix(s.Name, "tandem.")
					if own := tr.engine[s.ID]; s.Kind != "CLIENT" || s.Attributes["tandem.worker.id"] != role+"-1" ||
						own.Service != "tandem-worker-"+role+"-1" {
						t.Errorf("%s of %v: below it %+v", s.Name, s.Attributes, own)
					}
					assert.Equal(t, (len(s.Events) == 1 && s.Events[0] == "first_token"), role == "decode" && stream,
						"%s has the events %q", s.Name, s.Events)
				}
				if !seen["tandem.queue"] || !seen["tandem.prefill"] || !seen["tandem.decode"] {
					t.Errorf("below the root: %s", tr.names())
				}
			})
		}
	}
}

// failing is a transport whose first call of a purpose breaks.
type failing struct {
	http1.Transport
	purpose pools.Role
	calls   atomic.Int32
}

func (f *failing) Call(ctx context.Context, leg http1.Leg) (http1.Stream, error) {
	if leg.Purpose == string(f.purpose) && f.calls.Add(1) == 1 {
		return nil, &http1.Error{Worker: leg.Worker, Op: http1.OpHead, Err: errors.New("the wire is cut")}
	}
	return f.Transport.Call(ctx, leg)
}

// TestRetriesAreSiblings: the legs of all rounds are siblings, and the failed one has an error status. In mode eft the
// decode worker is chosen once the prompt is computed, and the waits and legs of one attempt stand in that order.
func TestRetriesAreSiblings(t *testing.T) {
	for _, tt := range []struct {
		mode    string
		fails   pools.Role
		want    string
		engines int // calls that reach one
	}{
		{"kv", pools.Prefill, "tandem.queue tandem.prefill tandem.queue tandem.prefill tandem.decode", 2},
		{"kv", pools.Decode, "tandem.queue tandem.prefill tandem.decode tandem.queue tandem.prefill tandem.decode", 3},
		{"eft", "", "tandem.queue tandem.prefill tandem.queue tandem.decode", 2},
	} {
		t.Run(tt.mode+string(tt.fails), func(t *testing.T) {
			f, c := tracing(t, fleet.Options{Gateway: func(cfg *stack.GatewayConfig) {
				cfg.Router.Mode = tt.mode
				cfg.WrapTransport = func(inner http1.Transport) http1.Transport {
					return &failing{Transport: inner, purpose: tt.fails}
				}
			}})
			f.Exact(fleet.Long, 4)
			tr := treeOf(f, c, 1+len(strings.Fields(tt.want))+tt.engines)
			if got := tr.names(); got != tt.want || tr.root.Failed != "" {
				t.Errorf("%s, want %s; the request: %q", got, tt.want, tr.root.Failed)
			}
			var failed []string
			for _, s := range tr.below {
				if s.Failed != "" {
					failed = append(failed, fmt.Sprint(s.Name, s.Attributes["error.type"], s.Attributes["tandem.attempt"]))
				} else if tt.fails == "" && s.Attributes["tandem.attempt"] != 1 {
					t.Errorf("%s: %v", s.Name, s.Attributes)
				}
			}
			if want := fmt.Sprintf("[tandem.%sreset1]", tt.fails); tt.fails != "" && fmt.Sprint(failed) != want || tt.fails == "" &&
				failed != nil {
				t.Errorf("failed: %q, want %s", failed, want)
			}
		})
	}
}

// TestResumedStreamsAreLinked: the leg that continues an answer links to the one that was cut.
func TestResumedStreamsAreLinked(t *testing.T) {
	f, c := tracing(t, fleet.Options{Prefill: 1, Decode: 2, Speedup: 2})
	a, _ := f.Cut(fleet.CompletionPath, `{"model":"tandem-sim","stream":true,"temperature":0,"ignore_eos":true,"max_tokens":120,`+
		`"prompt":"`+fleet.Long+`"}`, 30)
	f.Read(a)
	var decodes []testkit.Span
	var root testkit.Span
	f.Eventually("the request's spans have come", func() bool {
		decodes = nil
		for _, s := range c.Spans() {
			switch {
			case s.Name == "tandem.decode":
				decodes = append(decodes, s)
			case s.Service == "tandem-gateway" && s.Kind == "SERVER":
				root = s
			}
		}
		return root.ID != "" && len(decodes) > 1
	})
	if len(decodes) != 2 || decodes[0].Failed == "" || len(decodes[0].Links) > 0 || len(decodes[1].Links) != 1 ||
		decodes[1].Links[0] != decodes[0].ID || decodes[1].Parent != root.ID {
		t.Errorf("decode legs: %+v", decodes)
	}
	assert.True(t, root.Attributes["tandem.resumes"] == 1 && root.Attributes["gen_ai.usage.output_tokens"] == 120,
		"the request: %v", root.Attributes)
}

// TestNoPromptInSpans looks for a prompt, an answer and a client's key in all bytes that a collector gets.
func TestNoPromptInSpans(t *testing.T) {
	f, c := tracing(t, fleet.Options{Prefill: 1, Decode: 1})
	const secret = "the launch code is swordfish"
	body := `{"model":"tandem-sim","max_tokens":8,"user":"` + secret + `","stop":["` + secret + `"],"messages":[{"role":"user",` +
		`"content":"` + secret + `"}]}`
	a := f.Good(fleet.ChatPath, body, "authorization", "Bearer sk-swordfish")
	treeOf(f, c, 6)
	f.Post(fleet.ChatPath, `{"model":"tandem-sim","max_tokens":4,"prompt_logprobs":"`+secret+`","messages":[{"role":"user",`+
		`"content":"`+secret+`"}]}`)
	f.Post(fleet.CompletionPath, `{"model":"tandem-sim","max_tokens":300000,"prompt":"`+secret+`"}`)
	f.Eventually("the refused requests have come", func() bool { return len(c.Spans()) >= 8 })
	raw := c.Raw()
	if words := strings.Fields(f.Text(a)); len(words) < 3 || bytes.Contains(raw, []byte(strings.Join(words[:3], " "))) {
		t.Errorf("spans hold the answer %q", words)
	}
	if i := bytes.Index(raw, []byte("swordfish")); i >= 0 {
		t.Errorf("spans hold what is the client's: …%q…", raw[max(0, i-100):i+20])
	}
}

// TestExemplars: scrapes in OpenMetrics show the trace of a request that was sampled next to its TTFT, of the gateway
// and of the legs; other scrapes are as ever.
func TestExemplars(t *testing.T) {
	f, c := tracing(t, fleet.Options{Prefill: 1, Decode: 1})
	f.Good(fleet.CompletionPath, fleet.Ask(fleet.Long, 3))
	tr := treeOf(f, c, 6)
	scrape := func(accept string) string {
		req, err := http.NewRequest(http.MethodGet, f.URL+"/metrics", nil)
		require.NoError(t, err)
		req.Header.Set("Accept", accept)
		res, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		return string(text)
	}
	spans := map[string]string{"tandem_frontend_time_to_first_token_seconds_bucket{model=": tr.root.ID}
	for _, s := range tr.below {
		if role, ok := strings.CutPrefix(s.Name, "tandem."); ok && s.Kind == "CLIENT" {
			spans[`tandem_component_router_time_to_first_token_seconds_bucket{model="tandem-sim",role="`+role] = s.ID
		}
	}
	open := scrape("application/openmetrics-text;version=1.0.0")
	for series, span := range spans {
		found := false
		for line := range strings.Lines(open) {
			_, exemplar, _ := strings.Cut(line, " # ")
			found = found || strings.HasPrefix(line, series) && strings.Contains(exemplar, `span_id="`+span+`"`) &&
				strings.Contains(exemplar, `trace_id="`+tr.root.Trace+`"`)
		}
		assert.True(t, found, "no exemplar of %s:\n%s", series, open)
	}
	if text := scrape("text/plain"); len(spans) != 3 || strings.Contains(text, "trace_id") || !strings.Contains(text, `le="1"`) {
		t.Errorf("the text has exemplars, or other bounds of buckets; %d series", len(spans))
	}
}

// TestDeadCollectorDelaysNothing: requests are answered beside a collector that answers nothing, or is not there, and
// what waits for it is bounded. The sampled spans of a request are dropped, never waited with.
func TestDeadCollectorDelaysNothing(t *testing.T) {
	const requests, room, spansARequest = 40, 32, 4
	t.Setenv("OTEL_BSP_MAX_QUEUE_SIZE", fmt.Sprint(room))
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "1")
	for name, at := range map[string]string{"silent": testkit.SilentCollector(t), "not there": "http://127.0.0.1:1"} {
		t.Run(name, func(t *testing.T) {
			f := fleet.New(t, fleet.Options{Prefill: 1, Decode: 1, Gateway: func(cfg *stack.GatewayConfig) {
				cfg.Traces = trace.ExporterConfig{Endpoint: at, Sampler: "always_on"}
			}})
			for i := range requests {
				f.Good(fleet.CompletionPath, fleet.Ask(fmt.Sprint(i, fleet.Long), 2))
			}
			f.Eventually("no more spans wait for the collector than there is room for", func() bool {
				waiting := float64(requests*spansARequest) - f.Value("tandem_trace_spans_total")
				return waiting >= 0 && waiting <= 2*room // in the queue, and on their way
			})
			assert.EqualValues(t, 0, f.Value("tandem_trace_spans_total", "exported"), "spans count as exported")
		})
	}
}
