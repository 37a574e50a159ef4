package edge

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/http1"
)

func TestForwardHeadersRefuses(t *testing.T) {
	for _, name := range []string{
		"authorization", "Proxy-Authorization", "COOKIE", "host", "connection", "keep-alive", "te", "trailer", "transfer-encoding",
		"upgrade", "proxy-connection", "content-length", "Content-Type", "content-anything", "x-request-id", "X-data-parallel-rank",
		"x-vllm-priority", "X-Override-bootstrap-room", "x-override-rid", "X-Session-ID", "x-smg-routing-key", "X-API-Key",
		"accept-encoding", "traceparent", "tracestate", "expect", "tandem-gateway", "", "two words", "a:b", "x\r\ny", "x-ü",
	} {
		cfg := DefaultConfig()
		cfg.ForwardHeaders = []string{"x-fine", name}
		err := cfg.Validate()
		if err == nil || !strings.HasPrefix(err.Error(), "forward-headers: ") || strings.Contains(err.Error(), "x-fine") {
			t.Errorf("%q: error %v", name, err)
		}
	}
	cfg := DefaultConfig()
	cfg.ForwardHeaders = []string{"x-tenant", "X-Dynamo-Anything", "baggage"}
	assert.NoError(t, cfg.Validate())
}

// TestOnlyListedFieldsReachTheFlow: of a head with everything in it, the call
// carries the trace, the gateway's own id and what the operator named.
func TestOnlyListedFieldsReachTheFlow(t *testing.T) {
	calls := make(chan handoff.Call, 1)
	sv := serve(t, loopback(t), keeps(calls), func(c *Config) { c.ForwardHeaders = []string{"x-tenant", "X-TENANT", "baggage", "x-absent"} })
	const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for _, tc := range []struct {
		name          string
		head          []string
		parent, state string
		forward       []http1.Field
	}{
		{"nothing", nil, "", "", nil},
		{"everything", []string{
			"Authorization: Bearer x", "Cookie: a=b", "X-Other: 1", "traceparent: " + trace, "tracestate: a=1,b=2", "tracestate: c=3",
			"X-Tenant: one", "x-tenant: two", "baggage: k=v",
		}, trace, "a=1,b=2,c=3", []http1.Field{{Name: "X-Tenant", Value: "one"}, {Name: "X-Tenant", Value: "two"},
			{Name: "Baggage", Value: "k=v"}}},
		{"a malformed trace takes its state along", []string{"traceparent: 00-short", "tracestate: a=1"}, "", "", nil},
		{"two traces", []string{"traceparent: " + trace, "traceparent: " + trace, "tracestate: a=1"}, "", "", nil},
		{"a state that is too long", []string{"traceparent: " + trace, "tracestate: a=" + strings.Repeat("x", maxTraceStateBytes)}, trace,
			"", nil},
	} {
		sv.serves(post(goodBody, tc.head...))
		call := <-calls
		if call.TraceParent != tc.parent || call.TraceState != tc.state ||
			call.Forward[0].Name != headerGateway || !slices.Equal(call.Forward[1:], tc.forward) {
			t.Errorf("%s: trace %q, state %q, forward %q", tc.name, call.TraceParent, call.TraceState, call.Forward)
		}
	}
}

// TestRequestsThatComeBackAreRefused: each gateway recognizes its own id, and sends it in every answer.
func TestRequestsThatComeBackAreRefused(t *testing.T) {
	calls := make(chan handoff.Call, 1)
	sv := serve(t, loopback(t), keeps(calls))
	id := ""
	for _, path := range []string{"/health", "/v1/models", "/none"} {
		resp, _ := sv.ask(get("GET " + path))
		id = resp.Header.Get("Tandem-Gateway")
		assert.Len(t, id, 16, path)
	}
	const other = "00112233445566ff"
	for came, want := range map[string]string{
		"":                              id,
		other:                           other + ", " + id,
		other + ",  " + other:           other + ",  " + other + ", " + id,
		id:                              "",
		other + ", " + id:               "",
		id + "," + other:                "",
		strings.Repeat(other+",", 9):    "",
		"x" + strings.Repeat("x", 4000): id, // nobody's
	} {
		request := post(goodBody, "tandem-gateway: "+came)
		if came == "" {
			request = post(goodBody)
		}
		if want == "" {
			sv.refuses(request, http.StatusLoopDetected, "gateway_loop")
			continue
		}
		sv.serves(request)
		if call := <-calls; len(call.Forward) != 1 || call.Forward[0].Name != "Tandem-Gateway" || call.Forward[0].Value != want {
			t.Errorf("%q is passed on as %v, want %q", came, call.Forward, want)
		}
	}
}
