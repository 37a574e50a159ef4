package e2e

import (
	"bytes"
	"context"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
)

// recorder stands before an engine and keeps the heads and bodies of what comes.
type recorder struct {
	mu     sync.Mutex
	heads  []http.Header
	bodies []string // each behind its path and a blank
}

// takeBodies is what came since the last time.
func (r *recorder) takeBodies() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	bodies := r.bodies
	r.bodies = nil
	return bodies
}

func (r *recorder) take() []http.Header {
	r.mu.Lock()
	defer r.mu.Unlock()
	heads := r.heads
	r.heads = nil
	return heads
}

// readWhole takes a request's body in before a proxy passes it on. The proxy's transport would else read on while the
// answer begins, when the server takes the body away: a connection that breaks now and then. What breaks off is
// passed on as far as it came, and fails there.
func readWhole(req *http.Request) []byte {
	body, _ := io.ReadAll(req.Body)
	req.Body = io.NopCloser(bytes.NewReader(body))
	return body
}

// record puts a recorder before a worker of the fleet.
func (f *fleet) record(id string) *recorder {
	f.t.Helper()
	w := f.workers[id].Record()
	target, err := url.Parse(w.Address)
	if err != nil {
		f.t.Fatal(err)
	}
	r := &recorder{}
	proxy := &httputil.ReverseProxy{Rewrite: func(p *httputil.ProxyRequest) { p.SetURL(target) }, FlushInterval: -1, Transport: &http.Transport{DisableKeepAlives: true}}
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		body := readWhole(req)
		if req.Method == http.MethodPost {
			r.mu.Lock()
			r.heads, r.bodies = append(r.heads, req.Header.Clone()), append(r.bodies, req.URL.Path+" "+string(body))
			r.mu.Unlock()
		}
		proxy.ServeHTTP(rw, req)
	}))
	f.t.Cleanup(server.Close)
	w.Address = server.URL
	if err := f.gateway.Roster.Put(w); err != nil {
		f.t.Fatal(err)
	}
	return r
}

// TestOnlyListedHeadersReachEngines sends what browsers, proxies and attackers
// send and checks the exact set that each engine got.
func TestOnlyListedHeadersReachEngines(t *testing.T) {
	const trace, secret = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "sk-a-secret-of-the-client"
	f := newFleet(t, options{prefill: 1, decode: 1, gateway: func(c *stack.GatewayConfig) { c.Edge.ForwardHeaders = []string{"x-tenant"} }})
	prefill, decode := f.record("prefill-1"), f.record("decode-1")
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
			a, err := f.try(context.Background(), "/v1/completions", body+"}", nil, tc.sent...)
			if err != nil || a.status != http.StatusOK {
				t.Fatalf("status %d, error %v: %s", a.status, err, a.body)
			}
			for leg, r := range map[string]*recorder{"prefill": prefill, "decode": decode} {
				heads := r.take()
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
	f.eventually("the request's line has the trace's id", func() bool {
		return strings.Contains(f.logs.String(), "trace_id=0af7651916cd43dd8448eb211c80319c")
	})
	if strings.Contains(f.logs.String(), secret) {
		t.Error("the log has the client's secret")
	}
}
