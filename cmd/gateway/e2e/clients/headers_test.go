package clients

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
)

// TestOnlyListedHeadersReachEngines sends what browsers, proxies and attackers
// send and checks the exact set that each engine got.
func TestOnlyListedHeadersReachEngines(t *testing.T) {
	const trace, secret = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "sk-a-secret-of-the-client"
	f := fleet.New(t, fleet.Options{Prefill: 1, Decode: 1, Gateway: func(c *stack.GatewayConfig) { c.Edge.ForwardHeaders = []string{"x-tenant"} }})
	prefill, decode := f.Record("prefill-1"), f.Record("decode-1")
	hostile := []string{
		"Authorization", "Bearer " + secret, "Proxy-Authorization", "Basic " + secret, "Cookie", "session=" + secret, "X-Api-Key", secret,
		"X-Request-Id", "mine", "X-Data-Parallel-Rank", "7", "X-Forwarded-For", "10.0.0.1", "Forwarded", "for=10.0.0.1", "User-Agent", "theirs",
		"Accept", "text/plain", "Accept-Encoding", "gzip", "Accept-Language", "de", "Content-Language", "de", "Origin", "http://a", "Referer", "http://a/b",
		"X-Vllm-Priority", "-9", "X-Session-Id", "another's", "X-Override-Rid", "r", "X-Override-Bootstrap-Host", "10.0.0.1", "X-Override-Bootstrap-Room", "7",
		"X-Override-Routed-Dp-Rank", "1", "X-Override-Priority", "9", "X-Override-Conversation-Id", "c", "X-Smg-Target-Worker", "0",
		"Te", "trailers", "X-Other", "1", "X-Dynamo-Request-Priority", "3", "Baggage", "user=" + secret,
	}
	for name, tc := range map[string]struct {
		sent, passed []string
		stream       bool
	}{
		"nothing":           {nil, nil, false},
		"all":               {slices.Concat(hostile, []string{"traceparent", trace, "tracestate", "a=1", "x-tenant", "blue"}), []string{"Traceparent", trace, "Tracestate", "a=1", "X-Tenant", "blue"}, false},
		"all, streamed":     {slices.Concat(hostile, []string{"traceparent", trace, "x-tenant", "blue"}), []string{"Traceparent", trace, "X-Tenant", "blue"}, true},
		"a malformed trace": {[]string{"traceparent", "00-zz", "tracestate", "a=1"}, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			body := `{"model":"tandem-sim","max_tokens":3,"ignore_eos":true,"prompt":"` + strings.Repeat("word ", 200) + `"`
			if tc.stream {
				body += `,"stream":true`
			}
			f.Good("/v1/completions", body+"}", tc.sent...)
			for leg, r := range map[string]*fleet.Recorder{"prefill": prefill, "decode": decode} {
				heads := r.Take()
				if len(heads) != 1 {
					t.Fatalf("%s was called %d times", leg, len(heads))
				}
				got := heads[0]
				want := map[string]string{"User-Agent": "tandem", "Content-Type": "application/json", "Content-Length": got.Get("Content-Length"), "X-Request-Id": got.Get("X-Request-Id"), "Tandem-Gateway": got.Get("Tandem-Gateway")}
				if tc.stream && leg == "decode" {
					want["Accept"] = "text/event-stream"
				}
				for i := 0; i < len(tc.passed); i += 2 {
					want[tc.passed[i]] = tc.passed[i+1]
				}
				flat := map[string]string{}
				for name, values := range got {
					flat[name] = strings.Join(values, " and ")
				}
				if !maps.Equal(flat, want) {
					t.Errorf("%s got %v, want %v", leg, flat, want)
				}
				if id := got.Get("X-Request-Id"); id == "" || strings.Contains(id, "mine") {
					t.Errorf("%s got the request id %q", leg, id)
				}
			}
		})
	}
	f.Eventually("the request's line has the trace's id", func() bool {
		return strings.Contains(f.Logs.String(), "trace_id=0af7651916cd43dd8448eb211c80319c")
	})
	if strings.Contains(f.Logs.String(), secret) {
		t.Error("the log has the client's secret")
	}
}
