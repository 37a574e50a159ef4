package edge

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/tandem-pd/tandem/handoff"
)

// guarded is a server with both kinds of keys.
func guarded(t *testing.T, settings ...option) *served {
	t.Helper()
	client, admin := keyFile(t, "# keys\n"+clientKey+"\n"+clientKey2), keyFile(t, adminKey)
	return serve(t, loopback(t), answerJSON, append([]option{func(c *Config) { c.APIKeyFile, c.AdminKeyFile = client, admin }}, settings...)...)
}

// get is a request without a body.
func get(line string, headers ...string) string {
	return line + " HTTP/1.1\r\nHost: t\r\n" + strings.Join(append(headers, ""), "\r\n") + "\r\n"
}

func key(k string) string { return "Authorization: Bearer " + k }

// change is a POST without a body.
func change(path string, headers ...string) string {
	return get("POST "+path, append(headers, "Content-Length: 0")...)
}

func TestWhoMayAsk(t *testing.T) {
	sv := guarded(t)
	for _, tc := range []struct {
		name, request string
		status        int
		code          string
	}{
		{"health", get("GET /health"), 200, ""},
		{"live", get("GET /live"), 200, ""},
		{"no key", post(goodBody), 401, "invalid_api_key"},
		{"a client's key", post(goodBody, key(clientKey)), 200, ""},
		{"another client's", post(goodBody, key(clientKey2)), 200, ""},
		{"scheme in capitals", post(goodBody, "authorization: BEARER  "+clientKey), 200, ""},
		{"an operator's key", post(goodBody, key(adminKey)), 200, ""},
		{"a key of nobody", post(goodBody, key("sk-nobody-0123456789")), 401, "invalid_api_key"},
		{"the beginning of a key", post(goodBody, key(clientKey[:10])), 401, "invalid_api_key"},
		{"no scheme", post(goodBody, "Authorization: "+clientKey), 401, "invalid_api_key"},
		{"basic", post(goodBody, "Authorization: Basic "+clientKey), 401, "invalid_api_key"},
		{"nothing behind the scheme", post(goodBody, "Authorization: Bearer "), 401, "invalid_api_key"},
		{"two keys", post(goodBody, key(clientKey), key(clientKey)), 401, "invalid_api_key"},
		{"X-Api-Key", post(goodBody, "X-Api-Key: "+clientKey), 401, "invalid_api_key"},
		{"Api-Key", post(goodBody, "api-key: "+clientKey), 401, "invalid_api_key"},
		{"X-Api-Key of an operator", get("GET /workers", "X-Api-Key: "+adminKey), 401, "invalid_admin_key"},
		{"models", get("GET /v1/models"), 401, "invalid_api_key"},
		{"models, with a key", get("GET /v1/models", key(clientKey)), 200, ""},
		{"one model", get("GET /v1/models/tandem-sim"), 401, "invalid_api_key"},
		{"in absolute form", get("GET http://t/v1/models"), 401, "invalid_api_key"},
		{"with a query", get("GET /v1/models?x=/health"), 401, "invalid_api_key"},
		{"no such path", get("GET /v1/nothing"), 401, "invalid_api_key"},
		{"no such path, with a key", get("GET /v1/nothing", key(clientKey)), 404, "not_found"},
		{"no such method", get("DELETE /v1/models"), 401, "invalid_api_key"},
		{"workers", get("GET /workers"), 401, "invalid_admin_key"},
		{"workers by a client", get("GET /workers", key(clientKey)), 401, "invalid_admin_key"},
		{"workers by an operator", get("GET /workers", key(adminKey)), 200, ""},
		{"metrics", get("GET /metrics"), 401, "invalid_admin_key"},
		{"metrics by an operator", get("GET /metrics", key(adminKey)), 200, ""},
		{"a change", change("/workers/decode-1/cordon"), 401, "invalid_admin_key"},
		{"a change by a client", change("/workers/decode-1/cordon", key(clientKey)), 401, "invalid_admin_key"},
		{"a change by an operator", change("/workers/decode-1/cordon", key(adminKey)), 200, ""},
		{"a change of nobody", change("/workers/decode-9/cordon", key(adminKey)), 404, "worker_not_found"},
		{"no such change", change("/workers/decode-1/explode", key(adminKey)), 404, "not_found"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := sv.dial()
			c.t = t
			c.send(tc.request)
			resp, body := c.receive()
			if tc.status == 200 {
				if resp.StatusCode != 200 {
					t.Errorf("%d %s", resp.StatusCode, body)
				}
				return
			}
			wantError(t, resp, body, tc.status, tc.code)
			if header, _, _ := strings.Cut(tc.name, " "); strings.HasSuffix(header, "Api-Key") && !strings.Contains(body, ": Authorization: Bearer KEY; "+header+" is not read\"") {
				t.Errorf("the answer names not the headers: %s", body)
			}
			if want := map[bool]string{true: "Bearer"}[tc.status == 401]; resp.Header.Get("WWW-Authenticate") != want {
				t.Errorf("WWW-Authenticate: %q", resp.Header.Get("WWW-Authenticate"))
			}
			for _, secret := range []string{clientKey, clientKey2, adminKey, "sk-nobody"} {
				if strings.Contains(body, secret) {
					t.Errorf("the answer has a key: %s", body)
				}
			}
			if resp.Close {
				c.Conn.(*net.TCPConn).CloseWrite()
				c.closed()
			}
		})
	}
	for _, secret := range []string{clientKey, clientKey2, adminKey, "sk-nobody", clientKey[:10]} {
		if strings.Contains(sv.logs.String(), secret) {
			t.Errorf("the log has a key: %s", sv.logs)
		}
	}
	if !strings.Contains(sv.logs.String(), "client_keys=2 admin_keys=1") {
		t.Errorf("the log does not count the keys: %s", sv.logs)
	}
}

// TestNoKeyNoBody: who has no key is answered before the body has come, however
// it is announced, and reads the answer although it goes on sending.
func TestNoKeyNoBody(t *testing.T) {
	const limit = 8 << 20
	sv := guarded(t, func(c *Config) { c.MaxBodyBytes = limit })
	head := "POST /v1/completions HTTP/1.1\r\nHost: t\r\n"
	for path, code := range map[string]string{"/v1/completions": "invalid_api_key", "/busy_threshold": "invalid_admin_key", "/workers/decode-1/drain": "invalid_admin_key"} {
		for name, framing := range map[string]string{
			"length":    "Content-Length: 1000\r\n\r\n",
			"chunked":   "Transfer-Encoding: chunked\r\n\r\n100\r\n",
			"announced": "Expect: 100-continue\r\nContent-Length: 1000\r\n\r\n",
			"both":      "Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n",
		} {
			t.Run(path+" "+name, func(t *testing.T) {
				c := sv.dial()
				c.t = t
				c.send("POST "+path+" HTTP/1.1\r\nHost: t\r\n", framing) // and not a byte of it
				resp, body := c.receive()
				wantError(t, resp, body, 401, code)
				if !resp.Close {
					t.Error("the connection stays open with a body on its way")
				}
				c.Conn.(*net.TCPConn).CloseWrite()
				c.closed()
			})
		}
	}
	t.Run("sent whole", func(t *testing.T) {
		c := sv.dial()
		c.t = t
		c.send(head, fmt.Sprintf("Content-Length: %d\r\n\r\n", limit))
		for range limit >> 20 {
			c.send(strings.Repeat("x", 1<<20))
		}
		resp, body := c.receive()
		wantError(t, resp, body, 401, "invalid_api_key")
		c.Close()
	})
	eventually(t, "the connections' end", func() bool { return sv.main.conns.len() == 0 })
}

// TestAGetWaitsForNoBody: a GET takes no body, so that a long one which is declared
// and does not come does not delay the answer.
func TestAGetWaitsForNoBody(t *testing.T) {
	sv := serve(t, loopback(t), answerJSON)
	for _, path := range []string{"/live", "/health", "/v1/models", "/workers", "/nothing"} {
		for _, method := range []string{"GET", "HEAD"} {
			for _, framing := range []string{"Content-Length: 10000\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n", "Content-Length: 10000\r\n\r\nxx"} {
				c := sv.dial()
				c.send(method+" "+path+" HTTP/1.1\r\nHost: t\r\n", framing)
				resp, err := http.ReadResponse(c.br, &http.Request{Method: method})
				if want := map[bool]int{true: 404, false: 200}[path == "/nothing"]; err != nil || resp.StatusCode != want || !resp.Close {
					t.Errorf("%s %s, %q: %+v, %v, want %d and the connection's end", method, path, framing, resp, err, want)
				}
				c.Close()
			}
		}
	}
	if n := sv.metric("tandem_frontend_http_responses_total", "live", "200"); n != 6 {
		t.Errorf("%v answers were counted, want 6", n)
	}
}

// TestConnectionOutlivesARefusal: without a body to come, a client may try
// again on the same connection.
func TestConnectionOutlivesARefusal(t *testing.T) {
	sv := guarded(t)
	c := sv.dial()
	c.send(get("GET /v1/models"), get("GET /v1/models", key(clientKey)), post(goodBody, key(clientKey)))
	if resp, body := c.receive(); resp.StatusCode != 401 || resp.Close {
		t.Errorf("%d, closes %v: %s", resp.StatusCode, resp.Close, body)
	}
	for range 2 {
		if resp, body := c.receive(); resp.StatusCode != 200 {
			t.Errorf("%d %s", resp.StatusCode, body)
		}
	}
}

// TestLargeBodiesWithAKey: the small limit is for those without one.
func TestLargeBodiesWithAKey(t *testing.T) {
	sv := guarded(t)
	body := `{"model":"m","prompt":"` + strings.Repeat("x", 1<<20) + `"}`
	for _, framing := range []string{
		fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body),
		fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(body), body),
	} {
		c := sv.dial()
		c.send("POST /v1/completions HTTP/1.1\r\nHost: t\r\n", key(clientKey), "\r\n", framing)
		if resp, answer := c.receive(); resp.StatusCode != 200 {
			t.Errorf("%d %s", resp.StatusCode, answer)
		}
	}
}

func TestWithoutKeysOnlyThisMachineChanges(t *testing.T) {
	sv := serve(t, loopback(t), answerJSON)
	for _, tc := range []struct {
		name   string
		header string
		status int
	}{
		{"from here", "X-Nothing: 1", 200},
		{"through a proxy", "X-Forwarded-For: 10.0.0.1", 403},
		{"through a proper proxy", "Forwarded: for=10.0.0.1", 403},
		{"from a page", "Origin: http://evil.example", 403},
	} {
		t.Run(tc.name, func(t *testing.T) {
			sv.catalog.cordoned.Store(false)
			c := sv.dial()
			c.t = t
			c.send(change("/workers/decode-1/cordon", tc.header))
			resp, body := c.receive()
			if tc.status == 403 {
				e := wantError(t, resp, body, 403, "admin_forbidden")
				if !strings.Contains(e["message"].(string), "admin-key-file") {
					t.Errorf("the message names no setting: %s", body)
				}
			}
			if resp.StatusCode != tc.status || sv.catalog.cordoned.Load() != (tc.status == 200) {
				t.Errorf("%d %s; cordoned %v", resp.StatusCode, body, sv.catalog.cordoned.Load())
			}
		})
	}
}

// TestStrangersChangeNothing: a peer that is not on this machine may look and
// not change. (A connection in memory has no address that could be trusted.)
func TestStrangersChangeNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sv := serve(t, newPipes(), answerJSON)
		c := sv.dial()
		go io.WriteString(c, get("GET /workers")+change("/workers/decode-1/drain"))
		if resp, body := c.receive(); resp.StatusCode != 200 {
			t.Errorf("%d %s", resp.StatusCode, body)
		}
		resp, body := c.receive()
		e := wantError(t, resp, body, 403, "admin_forbidden")
		if m := e["message"].(string); !strings.Contains(m, "admin-key-file") || !strings.Contains(m, "admin-address") {
			t.Errorf("the message does not name what would allow it: %s", m)
		}
		if sv.catalog.cordoned.Load() {
			t.Error("the worker is cordoned")
		}
		c.Close()
		sv.stop()
		sv.done <- nil // for the clean-up's stop
	})
	for addr, want := range map[net.Addr]bool{
		&net.TCPAddr{IP: net.IPv4(127, 3, 2, 1)}: true, &net.TCPAddr{IP: net.IPv6loopback}: true,
		&net.TCPAddr{IP: net.ParseIP("::ffff:127.0.0.1")}: true, &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1)}: false,
		&net.TCPAddr{}: false, &net.UnixAddr{Name: "@"}: false,
	} {
		if loopbackPeer(addr) != want {
			t.Errorf("%v: %v", addr, !want)
		}
	}
	if loopbackPeer(nil) {
		t.Error("nobody is trusted")
	}
}

// A worker that is lost can be forgotten, and no other.
func TestForget(t *testing.T) {
	sv := serve(t, loopback(t), answerJSON)
	for id, want := range map[string]int{"lost-1": http.StatusOK, "decode-1": http.StatusConflict, "unknown": http.StatusNotFound} {
		c := sv.dial()
		c.send(change("/workers/" + id + "/forget"))
		if resp, body := c.receive(); resp.StatusCode != want {
			t.Errorf("%s: %d %s", id, resp.StatusCode, body)
		}
	}
}

func TestCordonDrainUncordon(t *testing.T) {
	sv := serve(t, loopback(t), answerJSON)
	for _, tc := range []struct {
		action, state string
		cordoned      bool
	}{{"cordon", "draining", true}, {"cordon", "draining", true}, {"drain", "draining", true}, {"uncordon", "up", false}, {"uncordon", "up", false}} {
		c := sv.dial()
		c.send(change("/workers/decode-1/" + tc.action))
		resp, body := c.receive()
		want := `{"id":"decode-1","model":"tandem-sim","role":"decode","state":"` + tc.state + `","requests":2,"active_blocks":7,"prefill_tokens":0,"kept":"yes"}`
		if resp.StatusCode != 200 || body != want || sv.catalog.cordoned.Load() != tc.cordoned {
			t.Errorf("%s: %d %s", tc.action, resp.StatusCode, body)
		}
		id := resp.Header.Get("X-Request-Id")
		line := ""
		for l := range strings.Lines(sv.logs.String()) {
			if strings.Contains(l, id) {
				line += l
			}
		}
		for _, part := range []string{"msg=administration", "action=" + tc.action, "worker=decode-1", "outcome=done", "peer=" + c.LocalAddr().String()} {
			if !strings.Contains(line, part) {
				t.Errorf("the audit line %q lacks %s", line, part)
			}
		}
	}
	c := sv.dial()
	c.send(get("GET /workers/decode-1/cordon"))
	resp, body := c.receive()
	wantError(t, resp, body, 405, "method_not_allowed")
}

// TestAdminAddress: administration is on its own address and only there, as
// long as the others drain, and both end with a shutdown.
func TestAdminAddress(t *testing.T) {
	enough := make(chan struct{})
	flow := func(ctx context.Context, c handoff.Call, out handoff.Sink) error {
		out.Start("text/event-stream; charset=utf-8")
		<-enough
		return writeStream(out)
	}
	sv := serve(t, loopback(t), flow, func(c *Config) { c.AdminAddress = "127.0.0.1:0" })
	ln, err := sv.ListenAdmin()
	if err != nil {
		t.Fatal(err)
	}
	adminDone := make(chan error, 1)
	go func() { adminDone <- sv.ServeAdmin(ln) }()
	admin := func() *client {
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		return newClient(t, c)
	}
	for _, tc := range []struct {
		request     string
		main, admin int
	}{
		{get("GET /health"), 200, 200},
		{get("GET /live"), 200, 200},
		{get("GET /metrics"), 404, 200},
		{get("GET /workers"), 404, 200},
		{change("/workers/decode-1/drain"), 404, 200},
		{change("/workers/decode-1/drain", "X-Forwarded-For: 10.0.0.1"), 404, 200},
		{change("/workers/decode-1/drain", "Origin: http://evil.example"), 404, 403},
		{get("GET /v1/models"), 200, 404},
	} {
		for where, c := range map[string]*client{"main": sv.dial(), "admin": admin()} {
			want := map[string]int{"main": tc.main, "admin": tc.admin}[where]
			c.send(tc.request)
			if resp, body := c.receive(); resp.StatusCode != want {
				t.Errorf("%s: %q: %d %s, want %d", where, tc.request, resp.StatusCode, body, want)
			}
		}
	}
	c := admin()
	c.send(post(goodBody))
	if resp, body := c.receive(); resp.StatusCode != 404 {
		t.Errorf("admin: a completion: %d %s", resp.StatusCode, body)
	}

	busy := sv.dial()
	busy.send(post(streamBody))
	eventually(t, "the flow runs", func() bool { return sv.live.len() == 1 })
	down := make(chan error, 1)
	go func() { down <- sv.Shutdown(context.Background()) }()
	eventually(t, "the main listener is closed", func() bool {
		c, err := net.Dial("tcp", sv.ln.Addr().String())
		if err == nil {
			c.Close()
		}
		return err != nil
	})
	c = admin()
	c.send(get("GET /health"), get("GET /workers"))
	if resp, body := c.receive(); resp.StatusCode != 503 || !strings.Contains(body, "draining") {
		t.Errorf("/health while draining: %d %s", resp.StatusCode, body)
	}
	if resp, _ := c.receive(); resp.StatusCode != 200 {
		t.Errorf("/workers while draining: %d", resp.StatusCode)
	}
	close(enough)
	if resp, body := busy.receive(); resp.StatusCode != 200 || body != wholeStream {
		t.Errorf("the answer in flight: %d %q", resp.StatusCode, body)
	}
	if err := <-down; err != nil {
		t.Errorf("shutdown: %v", err)
	}
	if err := <-adminDone; err != nil {
		t.Errorf("serving administration: %v", err)
	}
	if _, err := http.ReadResponse(bufio.NewReader(c), nil); err == nil {
		t.Error("administration is still there")
	}
}

func TestReloadKeys(t *testing.T) {
	path := keyFile(t, clientKey)
	sv := serve(t, loopback(t), answerJSON, func(c *Config) { c.APIKeyFile = path })
	status := func(k string) int {
		c := sv.dial()
		defer c.Close()
		c.send(get("GET /v1/models", key(k)))
		resp, _ := c.receive()
		return resp.StatusCode
	}
	if a, b := status(clientKey), status(clientKey2); a != 200 || b != 401 {
		t.Fatalf("before: %d, %d", a, b)
	}
	writeFile(t, path, clientKey2+"\nsh0rt\n")
	if err := sv.ReloadKeys(); err == nil || !strings.Contains(err.Error(), path+":2") {
		t.Errorf("a broken file: error %v", err)
	}
	if a, b := status(clientKey), status(clientKey2); a != 200 || b != 401 {
		t.Errorf("after a broken file: %d, %d", a, b)
	}
	writeFile(t, path, clientKey2)
	if err := sv.ReloadKeys(); err != nil {
		t.Fatal(err)
	}
	if a, b := status(clientKey), status(clientKey2); a != 401 || b != 200 {
		t.Errorf("after a good file: %d, %d", a, b)
	}
}
