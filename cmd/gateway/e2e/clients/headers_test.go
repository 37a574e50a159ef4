package clients

import (
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/discovery"
)

// TestOnlyListedHeadersReachEngines sends what browsers, proxies and attackers
// send and checks the exact set that each engine got.
func TestOnlyListedHeadersReachEngines(t *testing.T) {
	const trace, secret = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "sk-a-secret-of-the-client"
	f := fleet.New(t, fleet.Options{Prefill: 1, Decode: 1,
		Gateway: func(c *stack.GatewayConfig) { c.Edge.ForwardHeaders = []string{"x-tenant"} }})
	prefill, decode := f.Record("prefill-1"), f.Record("decode-1")
	hostile := []string{
		"Authorization", "Bearer " + secret, "Proxy-Authorization", "Basic " + secret, "Cookie", "session=" + secret, "X-Api-Key", secret,
		"X-Request-Id", "mine", "X-Data-Parallel-Rank", "7", "X-Forwarded-For", "10.0.0.1", "Forwarded", "for=10.0.0.1",
		"User-Agent", "theirs",
		"Accept", "text/plain", "Accept-Encoding", "gzip", "Accept-Language", "de", "Content-Language", "de", "Origin", "http://a",
		"Referer", "http://a/b",
		"X-Vllm-Priority", "-9", "X-Session-Id", "another's", "X-Override-Rid", "r", "X-Override-Bootstrap-Host", "10.0.0.1",
		"X-Override-Bootstrap-Room", "7",
		"X-Override-Routed-Dp-Rank", "1", "X-Override-Priority", "9", "X-Override-Conversation-Id", "c", "X-Smg-Target-Worker", "0",
		"Te", "trailers", "X-Other", "1", "X-Dynamo-Request-Priority", "3", "Baggage", "user=" + secret,
	}
	for name, tc := range map[string]struct {
		sent, passed []string
		stream       bool
	}{
		"nothing": {nil, nil, false},
		"all": {slices.Concat(hostile, []string{"traceparent", trace, "tracestate", "a=1", "x-tenant", "blue"}),
			[]string{"Traceparent", trace, "Tracestate", "a=1", "X-Tenant", "blue"}, false},
		"all, streamed": {slices.Concat(hostile, []string{"traceparent", trace, "x-tenant", "blue"}),
			[]string{"Traceparent", trace, "X-Tenant", "blue"}, true},
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
				want := map[string]string{"User-Agent": "tandem", "Content-Type": "application/json",
					"Content-Length": got.Get("Content-Length"), "X-Request-Id": got.Get("X-Request-Id"),
					"Tandem-Gateway": got.Get("Tandem-Gateway")}
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

// TestWorkerKeyStaysWithAllowedHosts: whoever can write to etcd can register a host of its own. It gets the workers' key and
// prompts only where it is allowed to; without --worker-allow that is this machine alone.
func TestWorkerKeyStaysWithAllowedHosts(t *testing.T) {
	elsewhere, err := discovery.ParseHosts([]string{"10.0.0.0/8", "*.gpu.example"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		allow *discovery.Hosts
		want  bool
	}{
		{"another host is named", elsewhere, false},
		{"no host is named", nil, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var mu sync.Mutex
			var heads []string
			spy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				heads = append(heads, r.Header.Get("Authorization"))
				mu.Unlock()
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, `{"id":"x","object":"text_completion","choices":[{"index":0,"text":"t",`+
					`"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}`)
			}))
			defer spy.Close()
			f, links := fleet.NewRegistry(t, func(cfg *stack.GatewayConfig) {
				cfg.Upstream.BearerToken, cfg.Workers.Allow = "the-workers-key", c.allow
			})
			record := pools.Worker{
				ID: "spy", Incarnation: "1", Model: "m", Role: pools.Both, Engine: "vllm", Address: spy.URL, BlockSize: 16,
				ModelInput: "text",
			}
			value, err := json.Marshal(&record)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := links.Etcd.Put(t.Context(), discovery.Key(discovery.DefaultPrefix, &record), string(value)); err != nil {
				t.Fatal(err)
			}
			f.Eventually("the record has been looked at", func() bool {
				if c.want {
					return f.Status("/health") == http.StatusOK
				}
				return len(f.Gateway.Roster.Refused()) > 0
			})
			res, err := f.HTTP().Post(f.URL+"/v1/completions", "application/json",
				strings.NewReader(`{"model":"m","prompt":"secret","max_tokens":1}`))
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			mu.Lock()
			defer mu.Unlock()
			if got := len(heads) == 1 && heads[0] == "Bearer the-workers-key"; got != c.want || !c.want && len(heads) > 0 {
				t.Errorf("status %d, the record's host got %q", res.StatusCode, heads)
			}
		})
	}
}
