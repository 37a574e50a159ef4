package edge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/openai"
)

// TestBadRequests sends each over a connection of its own: the flow must not
// see it, the answer has the one shape, the log has a line without the prompt,
// and the server lives on.
func TestBadRequests(t *testing.T) {
	flow := func(context.Context, *handoff.Call, handoff.Sink) error {
		t.Error("the flow was called")
		return nil
	}
	sv := serve(t, loopback(t), flow, func(c *Config) { c.MaxBodyBytes = 4096 })
	const secret = "a prompt that must not be logged"
	big := `{"prompt":"` + strings.Repeat("x", 5000) + `"}`
	head := "POST /v1/completions HTTP/1.1\r\nHost: t\r\n"
	for _, tc := range []struct {
		name, request, code, param string
		status                     int
	}{
		{"no JSON", post(`{"prompt": "` + secret), "invalid_json", "", 400},
		{"no body at all", head + "\r\n", "", "", 400},
		{"wrong type", post(`{"model":"m","prompt":"` + secret + `","max_tokens":"many"}`), "", "max_tokens", 400},
		{"brotli", post("\x1f\x8b\x08", "Content-Encoding: br"), "unsupported_media_type", "", 415},
		{"gzip twice", post("\x1f\x8b\x08", "Content-Encoding: gzip", "Content-Encoding: gzip"), "unsupported_media_type", "", 415},
		{"half a gzip head", post("\x1f\x8b\x08", "Content-Encoding: gzip"), "invalid_encoding", "", 400},
		{"form", head + "Content-Type: multipart/form-data\r\nContent-Length: 3\r\n\r\na=b", "unsupported_media_type", "", 415},
		{"multipart", head + "Content-Type: multipart/form-data; boundary=b\r\nContent-Length: 7\r\n\r\n--b--\r\n", "unsupported_media_type",
			"", 415},
		{"priority of letters", post(goodBody, "x-dynamo-request-priority: high"), "", "x-dynamo-request-priority", 400},
		{"negative strict priority", post(goodBody, "x-dynamo-request-strict-priority: -1"), "", "x-dynamo-request-strict-priority", 400},
		{"length twice over", head + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "ambiguous_length", "", 400},
		{"coding before length", head + "TRANSFER-ENCODING: chunked\r\ncontent-length: 3\r\n\r\n0\r\n\r\n", "ambiguous_length", "", 400},
		{"identity and length", head + "Transfer-Encoding: identity\r\nContent-Length: 2\r\n\r\n{}", "ambiguous_length", "", 400},
		{"two lengths", head + "Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}", "malformed_request", "", 400},
		{"no host", "GET /live HTTP/1.1\r\n\r\n", "malformed_request", "", 400},
		{"no request line", "hello\r\n\r\n", "malformed_request", "", 400},
		{"HTTP/2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "unknown_method", "", 501},
		{"identity", head + "Transfer-Encoding: identity\r\n\r\n" + goodBody, "malformed_request", "", 400},
		{"form of curl's", head + "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 2\r\n\r\n{}", "unsupported_media_type",
			"", 415},
		{"bad chunk size", head + "Transfer-Encoding: chunked\r\n\r\nxyz\r\n", "malformed_request", "", 400},
		{"body over the limit", post(big), "request_too_large", "", 413},
		{"chunk over the limit", head + "Transfer-Encoding: chunked\r\n\r\nffff\r\n" + big, "request_too_large", "", 413},
		{"announced over the limit", head + "Expect: 100-continue\r\nContent-Length: 5000\r\n\r\n", "request_too_large", "", 413},
		{"head over the limit", "GET /live HTTP/1.1\r\nHost: t\r\nX-Long: " + strings.Repeat("x", headBytes) + "\r\n\r\n", "header_too_large",
			"", 431},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := sv.dial()
			c.t = t
			resp, body := c.ask(tc.request)
			e := wantError(t, resp, body, tc.status, tc.code)
			param, _ := e["param"].(string)
			assert.Equal(t, tc.param, param)
			assert.Equal(t, 1, strings.Count(sv.logs.String(), "request_id="+resp.Header.Get("X-Request-Id")), "log lines")
			if resp.Close {
				c.ends()
			}
		})
	}
	assert.NotContains(t, sv.logs.String(), secret)
	sv.serves(get("GET /live"))
}

// TestTooLargeBodyIsAnswered: a client that sends half as much again as is
// allowed, or without a key, all of it before it reads, gets to read why not.
func TestTooLargeBodyIsAnswered(t *testing.T) {
	const limit = 8 << 20 // more than the socket buffers take
	sv := guarded(t, func(c *Config) { c.MaxBodyBytes = limit })
	piece := strings.Repeat("x", 1<<20)
	length, chunk := fmt.Sprintf("Content-Length: %d\r\n\r\n", limit*3/2), fmt.Sprintf("%x\r\n%s\r\n", len(piece), piece)
	for _, tc := range []struct {
		key, framing, piece string
		status              int
		code                string
	}{
		{clientKey, length, piece, 413, "request_too_large"},
		{clientKey, "Transfer-Encoding: chunked\r\n\r\n", chunk, 413, "request_too_large"},
		{"", length, piece, 401, "invalid_api_key"},
	} {
		c := sv.dial()
		c.send("POST /v1/completions HTTP/1.1\r\nHost: t\r\n", key(tc.key), "\r\n", tc.framing)
		for range limit * 3 / 2 / len(piece) {
			c.send(tc.piece)
		}
		resp, body := c.receive()
		wantError(t, resp, body, tc.status, tc.code)
		assert.True(t, resp.Close, "the connection stays open")
		c.Close()
	}
	eventually(t, "the connections' end", func() bool { return sv.main.server.Conns.Len() == 0 })
}

// TestSlowSendersGetTimeout: what is not complete after ReadTimeout is refused,
// however steadily it drips.
func TestSlowSendersGetTimeout(t *testing.T) {
	for name, begin := range map[string]string{
		"head": "POST /v1/completions HTTP/1.1\r\nHost: t\r\nX-Slow: ",
		"body": "POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 1000\r\n\r\n",
	} {
		bubble(t, name, func(t *testing.T) {
			sv := serve(t, newPipes(), answerJSON)
			c := sv.dial()
			start := time.Now()
			c.send(begin)
			var drips sync.WaitGroup
			drips.Go(func() {
				for {
					time.Sleep(7 * time.Second)
					if _, err := io.WriteString(c, "x"); err != nil {
						return
					}
				}
			})
			defer drips.Wait()
			resp, body := c.receive()
			wantError(t, resp, body, 408, "request_timeout")
			assert.Equal(t, sv.cfg.ReadTimeout, time.Since(start))
			c.closed()
		})
	}
}

// TestSilentConnectionsAreClosed, without an unsolicited answer.
func TestSilentConnectionsAreClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sv := serve(t, newPipes(), answerJSON)
		fresh, used := sv.dial(), sv.dial()
		start := time.Now()
		used.send("GET /live HTTP/1.1\r\nHost: t\r\n\r\n")
		used.receive()
		fresh.closed()
		assert.Equal(t, sv.cfg.ReadTimeout, time.Since(start), "the fresh one")
		used.closed()
		assert.Equal(t, sv.cfg.IdleTimeout, time.Since(start), "the used one")
		assert.EqualValues(t, 1, sv.metric("tandem_frontend_http_responses_total"))
	})
}

// TestCallCarriesTheHeaders checks what the flow is handed. The trace is TestOnlyListedFieldsReachTheFlow's.
func TestCallCarriesTheHeaders(t *testing.T) {
	calls := make(chan handoff.Call, 1)
	sv := serve(t, loopback(t), keeps(calls))
	c := sv.dial()
	begin := time.Now()
	c.send(post(goodBody, "x-request-id: mine", "x-dynamo-request-priority: -7", "x-dynamo-request-strict-priority: 3",
		"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"))
	resp, _ := c.receive()
	call := <-calls
	assert.Equal(t, "mine", call.ID)
	assert.Equal(t, "mine", resp.Header.Get("X-Request-Id"))
	assert.EqualValues(t, -7, *call.Priority)
	assert.EqualValues(t, 3, *call.StrictPriority)
	assert.Equal(t, openai.Completions, call.Request.Endpoint)
	assert.Equal(t, goodBody, string(call.Request.Raw))
	assert.WithinRange(t, call.Arrival, begin, time.Now())

	// The second request on the connection must not inherit any of it.
	c.send(strings.Replace(post(`{"model":"m","messages":[{"role":"user","content":"hi"}]                  }`), "completions",
		"chat/completions", 1))
	c.receive()
	next := <-calls
	if next.ID == "mine" || next.Priority != nil || next.StrictPriority != nil || next.TraceParent != "" ||
		next.Request.Endpoint != openai.Chat {
		t.Errorf("the second call: %+v", next)
	}
	assert.True(t, next.Arrival.After(call.Arrival), "the second call has the first one's arrival")
	assert.Equal(t, goodBody, string(call.Request.Raw), "the second request overwrote the first one's body")
	// A body too long for one read is no part of the next request on its connection.
	for range 3 {
		begin := time.Now()
		c.send(post(fmt.Sprintf(`{"model":"m","prompt":%q}`, strings.Repeat("x", 50_000))))
		c.receive()
		assert.WithinRange(t, (<-calls).Arrival, begin, time.Now())
	}
}

func TestRequestID(t *testing.T) {
	for _, given := range []string{"a", strings.Repeat("i", 128), "9b2f/x:~!"} {
		assert.Equal(t, given, requestID([]byte(given)))
	}
	for _, given := range []string{"", strings.Repeat("i", 129), "two words", "caf\xc3\xa9", "tab\t"} {
		made := requestID([]byte(given))
		assert.Len(t, made, 32, "given %q", given)
		assert.NotEqual(t, made, requestID([]byte(given)), "given %q", given)
	}
}

// TestFlowErrorsAreAnswers: an error before Start is the answer, wrapped or
// not; one that has no status is a 500 and in the log.
func TestFlowErrorsAreAnswers(t *testing.T) {
	var fail error
	sv := serve(t, loopback(t), func(context.Context, *handoff.Call, handoff.Sink) error { return fail })
	c := sv.dial()
	for _, tc := range []struct {
		err        error
		status     int
		code       string
		retryAfter string
	}{
		{openai.NotFoundModel("m"), 404, "model_not_found", ""},
		{fmt.Errorf("admit: %w", openai.Overloaded(time.Millisecond, "full")), 503, "server_is_overloaded", "1"},
		{openai.SlowDown(time.Millisecond, "full"), 429, "slow_down", "1"},
		{openai.Unavailable("no_workers", "none"), 503, "no_workers", "5 6 7 8"},
		{errors.New("a bug"), 500, "internal_error", ""},
		{nil, 500, "internal_error", ""}, // no answer and no error
	} {
		fail = tc.err
		resp, body := c.ask(post(goodBody))
		wantError(t, resp, body, tc.status, tc.code)
		if got := resp.Header.Get("Retry-After"); !slices.Contains(strings.Split(tc.retryAfter, " "), got) {
			t.Errorf("%v: Retry-After %q, want %q", tc.err, got, tc.retryAfter)
		}
	}
	assert.Equal(t, 2, strings.Count(sv.logs.String(), "level=ERROR"), "errors in the log, want 2: %s", sv.logs)
	assert.EqualValues(t, 2, sv.metric("tandem_frontend_http_responses_total", "completions", "503"),
		"answers with 503 counted, want 2")
}

// TestPanicsAreContained: the flow's, and one in a handler.
func TestPanicsAreContained(t *testing.T) {
	sv := serve(t, loopback(t), func(context.Context, *handoff.Call, handoff.Sink) error { panic("ouch") })
	sv.catalog.broken.Store(true)
	c := sv.dial()
	resp, body := c.ask(post(goodBody), get("GET /live"), get("GET /workers"))
	wantError(t, resp, body, 500, "internal_error")
	resp, _ = c.receive()
	assert.Equal(t, 200, resp.StatusCode, "/live on the same connection")
	resp, body = c.receive()
	wantError(t, resp, body, 500, "internal_error")
	assert.Equal(t, 1, strings.Count(sv.logs.String(), "panic=ouch"))
	assert.Equal(t, 1, strings.Count(sv.logs.String(), "panic=broken"))
}

// The ranges of numbers are internal/setting's.
func TestConfigNamesWhatIsWrong(t *testing.T) {
	for _, host := range []string{DefaultConfig().Host, "127.0.0.1", "::1", "fe80::1%eth0", "localhost"} {
		cfg := DefaultConfig()
		cfg.Host = host
		assert.NoError(t, cfg.Validate())
	}
	tls := func(set option) option {
		return func(c *Config) { c.TLS.CertFile, c.TLS.KeyFile = "x", "x"; set(c) }
	}
	for _, tc := range []struct {
		name string
		set  option
	}{
		{"http-host", func(c *Config) { c.Host = "127.0.0.1:80" }},
		{"http-port", func(c *Config) { c.Port = 65536 }},
		{"cache-salt-by-key", func(c *Config) { c.SaltByKey = true }}, // without keys
		{"tls-cert-file: ", func(c *Config) { c.TLS.CertFile = "x" }},
		{"tls-key-file: ", func(c *Config) { c.TLS.KeyFile = "x" }},
		{"tls-client-ca-file: ", func(c *Config) { c.TLS.ClientCA = "x" }},
		{"tls-client-names: ", tls(func(c *Config) { c.TLS.Names = []string{"a"} })},
		{"tls-client-names: ", tls(func(c *Config) { c.TLS.ClientCA, c.TLS.Names = "x", []string{"*"} })},
	} {
		cfg := DefaultConfig()
		tc.set(&cfg)
		err := cfg.Validate()
		assert.True(t, err != nil && strings.HasPrefix(err.Error(), tc.name) && !strings.Contains(err.Error(), "\n"),
			"%s: %v", tc.name, err)
		_, err = New(cfg, nil, nil, nil, nil, nil)
		assert.Error(t, err, "New takes a bad %s", tc.name)
	}
}

// unserved is a server without a listener.
func unserved(t *testing.T, cfg Config) *Server {
	t.Helper()
	s, err := New(cfg, flowFunc(answerJSON), &catalog{}, http.NotFoundHandler(), slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	require.NoError(t, err)
	return s
}
