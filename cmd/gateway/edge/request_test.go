package edge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/openai"
)

// TestBadRequests sends each over a connection of its own: the flow must not
// see it, the answer has the one shape, the log has a line without the prompt,
// and the server lives on.
func TestBadRequests(t *testing.T) {
	flow := func(context.Context, handoff.Call, handoff.Sink) error {
		t.Error("the flow was called")
		return nil
	}
	sv := serve(t, loopback(t), flow, func(c *Config) { c.MaxBodyBytes = 4096 })
	const secret = "a prompt that nobody may log"
	big := `{"prompt":"` + strings.Repeat("x", 5000) + `"}`
	head := "POST /v1/completions HTTP/1.1\r\nHost: t\r\n"
	for _, tc := range []struct {
		name, request, code, param string
		status                     int
	}{
		{"no JSON", post(`{"prompt": "` + secret), "invalid_json", "", 400},
		{"not an object", post(`[]`), "invalid_json", "", 400},
		{"empty body", post(``), "", "", 400},
		{"no body at all", head + "\r\n", "", "", 400},
		{"wrong type", post(`{"model":"m","prompt":"` + secret + `","max_tokens":"many"}`), "", "max_tokens", 400},
		{"no UTF-8", post("{\"model\":\"m\",\"prompt\":\"\xff\"}"), "invalid_json", "", 400},
		{"gzip", post("\x1f\x8b\x08", "Content-Encoding: gzip"), "unsupported_media_type", "", 415},
		{"form", head + "Content-Type: multipart/form-data\r\nContent-Length: 3\r\n\r\na=b", "unsupported_media_type", "", 415},
		{"multipart", head + "Content-Type: multipart/form-data; boundary=b\r\nContent-Length: 7\r\n\r\n--b--\r\n", "unsupported_media_type", "", 415},
		{"priority of letters", post(goodBody, "x-dynamo-request-priority: high"), "", "x-dynamo-request-priority", 400},
		{"priority too large", post(goodBody, "x-dynamo-request-priority: 2147483648"), "", "x-dynamo-request-priority", 400},
		{"negative strict priority", post(goodBody, "x-dynamo-request-strict-priority: -1"), "", "x-dynamo-request-strict-priority", 400},
		{"length twice over", head + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "ambiguous_length", "", 400},
		{"coding before length", head + "TRANSFER-ENCODING: chunked\r\ncontent-length: 3\r\n\r\n0\r\n\r\n", "ambiguous_length", "", 400},
		{"identity and length", head + "Transfer-Encoding: identity\r\nContent-Length: 2\r\n\r\n{}", "ambiguous_length", "", 400},
		{"two lengths", head + "Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}", "malformed_request", "", 400},
		{"no host", "GET /live HTTP/1.1\r\n\r\n", "malformed_request", "", 400},
		{"no request line", "hello\r\n\r\n", "malformed_request", "", 400},
		{"HTTP/2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "unknown_method", "", 501},
		{"identity", head + "Transfer-Encoding: identity\r\n\r\n" + goodBody, "malformed_request", "", 400},
		{"form of curl's", head + "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 2\r\n\r\n{}", "unsupported_media_type", "", 415},
		{"bad chunk size", head + "Transfer-Encoding: chunked\r\n\r\nxyz\r\n", "malformed_request", "", 400},
		{"body over the limit", post(big), "request_too_large", "", 413},
		{"chunk over the limit", head + "Transfer-Encoding: chunked\r\n\r\nffff\r\n" + big, "request_too_large", "", 413},
		{"announced over the limit", head + "Expect: 100-continue\r\nContent-Length: 5000\r\n\r\n", "request_too_large", "", 413},
		{"head over the limit", "GET /live HTTP/1.1\r\nHost: t\r\nX-Long: " + strings.Repeat("x", headBytes) + "\r\n\r\n", "header_too_large", "", 431},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := sv.dial()
			c.t = t
			c.send(tc.request)
			resp, body := c.receive()
			e := wantError(t, resp, body, tc.status, tc.code)
			if param, _ := e["param"].(string); param != tc.param {
				t.Errorf("param %q, want %q", param, tc.param)
			}
			id := resp.Header.Get("X-Request-Id")
			if n := strings.Count(sv.logs.String(), "request_id="+id); n != 1 {
				t.Errorf("%d log lines, want 1", n)
			}
			if resp.Close {
				c.Conn.(*net.TCPConn).CloseWrite()
				c.closed()
			}
		})
	}
	if strings.Contains(sv.logs.String(), secret) {
		t.Errorf("the prompt is in the log: %s", sv.logs)
	}
	c := sv.dial()
	c.send("GET /live HTTP/1.1\r\nHost: t\r\n\r\n")
	if resp, _ := c.receive(); resp.StatusCode != 200 {
		t.Errorf("afterwards /live answers %d", resp.StatusCode)
	}
}

// TestTooLargeBodyIsAnswered: a client that sends half as much again as is
// allowed, all of it before it reads, gets to read the 413.
func TestTooLargeBodyIsAnswered(t *testing.T) {
	const limit = 8 << 20 // more than the socket buffers take
	sv := serve(t, loopback(t), answerJSON, func(c *Config) { c.MaxBodyBytes = limit })
	piece := strings.Repeat("x", 1<<20)
	chunk := fmt.Sprintf("%x\r\n%s\r\n", len(piece), piece)
	for name, parts := range map[string][2]string{
		"Content-Length": {fmt.Sprintf("Content-Length: %d\r\n\r\n", limit*3/2), piece},
		"chunked":        {"Transfer-Encoding: chunked\r\n\r\n", chunk},
	} {
		t.Run(name, func(t *testing.T) {
			c := sv.dial()
			c.t = t
			c.send("POST /v1/completions HTTP/1.1\r\nHost: t\r\n", parts[0])
			for range limit * 3 / 2 / len(piece) {
				c.send(parts[1])
			}
			resp, body := c.receive()
			wantError(t, resp, body, 413, "request_too_large")
			if !resp.Close {
				t.Error("the connection stays open")
			}
			c.Close()
		})
	}
	eventually(t, "the connections' end", func() bool { return sv.main.conns.len() == 0 })
}

// TestSlowSendersGetTimeout: what is not complete after ReadTimeout is refused,
// however steadily it drips.
func TestSlowSendersGetTimeout(t *testing.T) {
	for name, begin := range map[string]string{
		"head": "POST /v1/completions HTTP/1.1\r\nHost: t\r\nX-Slow: ",
		"body": "POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 1000\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
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
				if took := time.Since(start); took != sv.cfg.ReadTimeout {
					t.Errorf("answered after %v, want %v", took, sv.cfg.ReadTimeout)
				}
				c.closed()
			})
		})
	}
}

// TestSilentConnectionsAreClosed, without an answer that nobody asked for.
func TestSilentConnectionsAreClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sv := serve(t, newPipes(), answerJSON)
		fresh, used := sv.dial(), sv.dial()
		start := time.Now()
		used.send("GET /live HTTP/1.1\r\nHost: t\r\n\r\n")
		used.receive()
		fresh.closed()
		if took := time.Since(start); took != sv.cfg.ReadTimeout {
			t.Errorf("the fresh one was closed after %v, want %v", took, sv.cfg.ReadTimeout)
		}
		used.closed()
		if took := time.Since(start); took != sv.cfg.IdleTimeout {
			t.Errorf("the used one was closed after %v, want %v", took, sv.cfg.IdleTimeout)
		}
		if n := sv.metric("tandem_frontend_http_responses_total"); n != 1 {
			t.Errorf("%v requests counted, want 1", n)
		}
	})
}

// TestCallCarriesTheHeaders checks what the flow is handed.
func TestCallCarriesTheHeaders(t *testing.T) {
	calls := make(chan handoff.Call, 1)
	sv := serve(t, loopback(t), func(ctx context.Context, c handoff.Call, out handoff.Sink) error {
		calls <- c
		return answerJSON(ctx, c, out)
	})
	c := sv.dial()
	begin := time.Now()
	c.send(post(goodBody, "x-request-id: mine", "x-dynamo-request-priority: -7", "x-dynamo-request-strict-priority: 3",
		"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"))
	resp, _ := c.receive()
	call := <-calls
	if call.ID != "mine" || resp.Header.Get("X-Request-Id") != "mine" {
		t.Errorf("id %q, answered %q", call.ID, resp.Header.Get("X-Request-Id"))
	}
	if call.Priority == nil || *call.Priority != -7 || call.StrictPriority == nil || *call.StrictPriority != 3 {
		t.Errorf("priorities %v, %v", call.Priority, call.StrictPriority)
	}
	if call.TraceParent != "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01" {
		t.Errorf("traceparent %q", call.TraceParent)
	}
	if call.Request.Endpoint != openai.Completions || string(call.Request.Raw) != goodBody {
		t.Errorf("endpoint %v, body %s", call.Request.Endpoint, call.Request.Raw)
	}
	if call.Arrival.Before(begin) || call.Arrival.After(time.Now()) {
		t.Errorf("arrival %v", call.Arrival)
	}

	// The second request on the connection must not inherit any of it.
	c.send("POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 74\r\n\r\n",
		fmt.Sprintf("%-74s", `{"model":"m","messages":[{"role":"user","content":"hi"}]}`))
	c.receive()
	next := <-calls
	if next.ID == "mine" || next.Priority != nil || next.StrictPriority != nil || next.TraceParent != "" || next.Request.Endpoint != openai.Chat {
		t.Errorf("the second call: %+v", next)
	}
	if !next.Arrival.After(call.Arrival) {
		t.Error("the second call has the first one's arrival")
	}
	if string(call.Request.Raw) != goodBody {
		t.Error("the second request overwrote the first one's body")
	}
}

// TestArrivalIsTheRequestsOwn: a body too long for one read is no part of the
// next request on its connection.
func TestArrivalIsTheRequestsOwn(t *testing.T) {
	calls := make(chan handoff.Call, 1)
	sv := serve(t, loopback(t), func(ctx context.Context, c handoff.Call, out handoff.Sink) error {
		calls <- c
		return answerJSON(ctx, c, out)
	})
	c := sv.dial()
	long := fmt.Sprintf(`{"model":"m","prompt":%q}`, strings.Repeat("x", 50_000))
	for i := range 3 {
		begin := time.Now()
		c.send(post(long))
		c.receive()
		if call := <-calls; call.Arrival.Before(begin) {
			t.Errorf("request %d arrived %v before it was sent", i, begin.Sub(call.Arrival))
		}
	}
}

func TestRequestID(t *testing.T) {
	for _, tc := range []struct {
		given string
		taken bool
	}{
		{"a", true},
		{strings.Repeat("i", 128), true},
		{"9b2f/x:~!", true},
		{"", false},
		{strings.Repeat("i", 129), false},
		{"two words", false},
		{"caf\xc3\xa9", false},
		{"tab\t", false},
	} {
		got := requestID([]byte(tc.given))
		if taken := got == tc.given; taken != tc.taken {
			t.Errorf("given %q: got %q", tc.given, got)
		}
		if !tc.taken && (len(got) != 32 || got == requestID([]byte(tc.given))) {
			t.Errorf("given %q: made %q", tc.given, got)
		}
	}
}

// TestFlowErrorsAreAnswers: an error before Start is the answer, wrapped or
// not; one that has no status is a 500 and in the log.
func TestFlowErrorsAreAnswers(t *testing.T) {
	var fail error
	sv := serve(t, loopback(t), func(context.Context, handoff.Call, handoff.Sink) error { return fail })
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
		c.send(post(goodBody))
		resp, body := c.receive()
		wantError(t, resp, body, tc.status, tc.code)
		if got := resp.Header.Get("Retry-After"); !slices.Contains(strings.Split(tc.retryAfter, " "), got) {
			t.Errorf("%v: Retry-After %q, want %q", tc.err, got, tc.retryAfter)
		}
	}
	if n := strings.Count(sv.logs.String(), "level=ERROR"); n != 2 {
		t.Errorf("%d errors in the log, want 2: %s", n, sv.logs)
	}
	if n := sv.metric("tandem_frontend_http_responses_total", "completions", "503"); n != 2 {
		t.Errorf("%v answers with 503 counted, want 2", n)
	}
}

// TestPanicsAreContained: the flow's, and one in a handler.
func TestPanicsAreContained(t *testing.T) {
	sv := serve(t, loopback(t), func(context.Context, handoff.Call, handoff.Sink) error { panic("ouch") })
	c := sv.dial()
	c.send(post(goodBody))
	resp, body := c.receive()
	wantError(t, resp, body, 500, "internal_error")
	c.send("GET /live HTTP/1.1\r\nHost: t\r\n\r\n")
	if resp, _ := c.receive(); resp.StatusCode != 200 {
		t.Errorf("/live on the same connection: %d", resp.StatusCode)
	}
	if n := strings.Count(sv.logs.String(), "panic=ouch"); n != 1 {
		t.Errorf("logged %d times, want once", n)
	}

	sv.catalog.broken.Store(true)
	c.send("GET /workers HTTP/1.1\r\nHost: t\r\n\r\n")
	resp, body = c.receive()
	wantError(t, resp, body, 500, "internal_error")
	if n := strings.Count(sv.logs.String(), "panic=broken"); n != 1 {
		t.Errorf("logged %d times, want once", n)
	}
}

func TestConfigNamesWhatIsWrong(t *testing.T) {
	if err := DefaultConfig().Validate(); err != nil {
		t.Errorf("the defaults: %v", err)
	}
	for _, host := range []string{"127.0.0.1", "::1", "fe80::1%eth0", "localhost"} {
		cfg := DefaultConfig()
		if cfg.Host = host; cfg.Validate() != nil {
			t.Errorf("host %q: %v", host, cfg.Validate())
		}
	}
	for name, set := range map[string]option{
		"http-host":           func(c *Config) { c.Host = "127.0.0.1:80" },
		"http-port":           func(c *Config) { c.Port = 65536 },
		"max-body-bytes":      func(c *Config) { c.MaxBodyBytes = 0 },
		"read-timeout":        func(c *Config) { c.ReadTimeout = 0 },
		"idle-timeout":        func(c *Config) { c.IdleTimeout = -1 },
		"write-stall-timeout": func(c *Config) { c.WriteStall = 0 },
		"sse-heartbeat":       func(c *Config) { c.Heartbeat = -1 },
	} {
		cfg := DefaultConfig()
		set(&cfg)
		err := cfg.Validate()
		if err == nil || !strings.HasPrefix(err.Error(), name) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := New(cfg, nil, nil, nil, nil, nil); err == nil {
			t.Errorf("New takes a bad %s", name)
		}
	}
}

// unserved is a server that serves nobody.
func unserved(t *testing.T, cfg Config) *Server {
	t.Helper()
	s, err := New(cfg, flowFunc(answerJSON), &catalog{}, http.NotFoundHandler(), slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestListenTakesAFreePort and names the settings when it cannot have one.
func TestListenTakesAFreePort(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Host, cfg.Port = "127.0.0.1", 0
	free := unserved(t, cfg)
	ln, err := free.Listen()
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	cfg.Port = ln.Addr().(*net.TCPAddr).Port
	if _, err := unserved(t, cfg).Listen(); err == nil || !strings.Contains(err.Error(), "http-port") || !strings.Contains(err.Error(), "0 picks a free one") {
		t.Errorf("the port is taken, and the error is %v", err)
	}
}
