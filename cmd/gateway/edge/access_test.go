package edge

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/handoff"
)

// guarded is a server with both kinds of keys.
func guarded(t *testing.T, settings ...option) *served {
	t.Helper()
	client, admin := keyFile(t, "# keys\n"+clientKey+"\n"+clientKey2), keyFile(t, adminKey)
	return serve(t, loopback(t), answerJSON, append([]option{func(c *Config) { c.APIKeyFile, c.AdminKeyFile = client, admin }},
		settings...)...)
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

// What is a key is internal/auth's; that every route asks for its own is TestEveryRouteHasItsChecks'.
func TestAccess(t *testing.T) {
	sv := guarded(t)
	for _, request := range []string{
		get("GET /health"), get("GET /live"), get("GET /v1/models", key(clientKey)), get("GET /workers", key(adminKey)),
		post(goodBody, key(clientKey)), post(goodBody, key(clientKey2)), post(goodBody, "authorization: BEARER  "+clientKey),
		post(goodBody, key(adminKey)), post(goodBody, "X-Api-Key: "+clientKey), post(goodBody, "api-key: "+clientKey),
		post(goodBody, key("wrong-key-1"), "X-Api-Key: "+clientKey),
		change("/workers/decode-1/cordon", key(adminKey)), change("/workers/lost-1/forget", key(adminKey)),
	} {
		sv.serves(request)
	}
	c, secrets := sv.dial(), []string{clientKey, clientKey2, adminKey, "sk-unknown", clientKey[:10]}
	for _, tc := range []struct {
		request, code string
		status        int
		contains      string
	}{
		{post(goodBody), "invalid_api_key", 401, ""},
		{post(goodBody, key("sk-unknown-0123456789")), "invalid_api_key", 401, ""},
		{post(goodBody, key(clientKey[:10])), "invalid_api_key", 401, ""},
		{post(goodBody, key(clientKey), key(clientKey)), "invalid_api_key", 401, ""},
		{post(goodBody, "X-Api-Key: wrong-key-1"), "invalid_api_key", 401, "Authorization: Bearer KEY, or x-api-key: KEY"},
		{post(goodBody, "X-Api-Key: "+clientKey, "X-Api-Key: "+clientKey), "invalid_api_key", 401, ""},
		{get("GET /workers", "X-Api-Key: "+adminKey), "invalid_admin_key", 401, ""},
		{get("GET http://t/v1/models"), "invalid_api_key", 401, ""},
		{get("GET /v1/models?x=/health"), "invalid_api_key", 401, ""},
		{get("GET /v1/nothing"), "invalid_api_key", 401, ""},
		{get("GET /v1/nothing", key(clientKey)), "not_found", 404, ""},
		{get("DELETE /v1/models"), "invalid_api_key", 401, ""},
		{get("GET /workers", key(clientKey)), "invalid_admin_key", 401, ""},
		{change("/workers/decode-1/cordon", key(clientKey)), "invalid_admin_key", 401, ""},
		{change("/workers/decode-9/cordon", key(adminKey)), "worker_not_found", 404, ""},
		{change("/workers/decode-9/forget", key(adminKey)), "worker_not_found", 404, ""},
		{change("/workers/decode-1/explode", key(adminKey)), "not_found", 404, ""},
	} {
		resp, body := c.ask(tc.request)
		wantError(t, resp, body, tc.status, tc.code)
		assert.Equal(t, strings.HasPrefix(tc.request, "POST /v1/"), resp.Close, "closed, except where no body can follow: %s", tc.request)
		if resp.Close {
			c = sv.dial()
		}
		assert.Contains(t, body, tc.contains)
		assert.Equal(t, map[bool]string{true: "Bearer"}[tc.status == 401], resp.Header.Get("WWW-Authenticate"), tc.request)
		for _, secret := range secrets {
			assert.NotContains(t, body, secret)
		}
	}
	for _, secret := range secrets {
		assert.NotContains(t, sv.logs.String(), secret)
	}
	assert.Contains(t, sv.logs.String(), "client_keys=2 admin_keys=1")
}

// TestAGetDoesNotWaitForItsBody: a GET takes no body, so that a long one which is declared
// and does not come does not delay the answer.
func TestAGetDoesNotWaitForItsBody(t *testing.T) {
	sv := serve(t, loopback(t), answerJSON)
	for path, want := range map[string]int{"/live": 200, "/health": 200, "/v1/models": 200, "/workers": 200, "/nothing": 404} {
		for _, method := range []string{"GET", "HEAD"} {
			for _, framing := range []string{"Content-Length: 10000\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n",
				"Content-Length: 10000\r\n\r\nxx"} {
				resp, _ := sv.ask(method+" "+path+" HTTP/1.1\r\nHost: t\r\n", framing)
				assert.True(t, resp.StatusCode == want && resp.Close, "%s %s, %q: %+v, want %d and the connection's end", method, path, framing,
					resp, want)
			}
		}
	}
	assert.EqualValues(t, 6, sv.metric("tandem_frontend_http_responses_total", "live", "200"))
}

func TestWithoutKeysOnlyThisMachineChanges(t *testing.T) {
	sv := serve(t, loopback(t), answerJSON)
	for _, header := range []string{"X-Forwarded-For: 10.0.0.1", "Forwarded: for=10.0.0.1", "Origin: http://evil.example"} {
		e := sv.refuses(change("/workers/decode-1/cordon", header), 403, "admin_forbidden")
		assert.Contains(t, e["message"], "admin-key-file")
		assert.False(t, sv.catalog.cordoned.Load(), header)
	}
	sv.serves(change("/workers/decode-1/cordon", "X-Nothing: 1"))
	assert.True(t, sv.catalog.cordoned.Load())
}

// TestStrangersChangeNothing: a peer that is not on this machine may look and
// not change. (A connection in memory has no address that could be trusted.)
func TestStrangersChangeNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sv := serve(t, newPipes(), answerJSON)
		c := sv.dial()
		go io.WriteString(c, get("GET /workers")+change("/workers/decode-1/drain"))
		resp, body := c.receive()
		assert.Equal(t, 200, resp.StatusCode, body)
		resp, body = c.receive()
		e := wantError(t, resp, body, 403, "admin_forbidden")
		assert.Contains(t, e["message"], "admin-key-file")
		assert.Contains(t, e["message"], "admin-address")
		assert.False(t, sv.catalog.cordoned.Load())
		c.Close()
		sv.stop()
		sv.done <- nil // for the clean-up's stop
	})
	for addr, want := range map[net.Addr]bool{
		&net.TCPAddr{IP: net.IPv4(127, 3, 2, 1)}: true, &net.TCPAddr{IP: net.IPv6loopback}: true,
		&net.TCPAddr{IP: net.ParseIP("::ffff:127.0.0.1")}: true, &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1)}: false,
		&net.TCPAddr{}: false, &net.UnixAddr{Name: "@"}: false, nil: false,
	} {
		assert.Equal(t, want, loopbackPeer(addr), "%v", addr)
	}
}

func TestCordonDrainUncordon(t *testing.T) {
	sv := serve(t, loopback(t), answerJSON)
	for _, tc := range []struct {
		action, state string
		cordoned      bool
	}{{"cordon", "draining", true}, {"cordon", "draining", true}, {"drain", "draining", true}, {"uncordon", "up", false},
		{"uncordon", "up", false}} {
		c := sv.dial()
		resp, body := c.ask(change("/workers/decode-1/" + tc.action))
		assert.Equal(t, `{"id":"decode-1","model":"tandem-sim","role":"decode","state":"`+tc.state+`","requests":2,"active_blocks":7,"prefill_tokens":0,"kept":"yes"}`, body)
		assert.Equal(t, tc.cordoned, sv.catalog.cordoned.Load())
		line := ""
		for l := range strings.Lines(sv.logs.String()) {
			if strings.Contains(l, resp.Header.Get("X-Request-Id")) {
				line += l
			}
		}
		for _, part := range []string{"msg=administration", "action=" + tc.action, "worker=decode-1", "outcome=done", "peer=" +
			c.LocalAddr().String()} {
			assert.Contains(t, line, part, "the audit line")
		}
	}
	sv.refuses(get("GET /workers/decode-1/cordon"), 405, "method_not_allowed")
}

// administered serves administration on an address of its own until the test's end.
func (sv *served) administered() (admin *served, ended chan error) {
	sv.t.Helper()
	ln, err := sv.ListenAdmin()
	require.NoError(sv.t, err)
	ended = make(chan error, 1)
	go func() { ended <- sv.ServeAdmin(ln); close(ended) }()
	sv.t.Cleanup(func() { ln.Close(); <-ended })
	return &served{Server: sv.Server, t: sv.t, ln: ln}, ended
}

// TestAdminAddress: administration is on its own address and only there, as
// long as the others drain, and both end with a shutdown.
func TestAdminAddress(t *testing.T) {
	enough := make(chan struct{})
	flow := func(ctx context.Context, c *handoff.Call, out handoff.Sink) error {
		out.Start("text/event-stream; charset=utf-8")
		<-enough
		return writeStream(out)
	}
	sv := serve(t, loopback(t), flow, func(c *Config) { c.AdminAddress = "127.0.0.1:0" })
	admin, adminEnded := sv.administered()
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
		for where, want := range map[*served]int{sv: tc.main, admin: tc.admin} {
			resp, body := where.ask(tc.request)
			assert.Equal(t, want, resp.StatusCode, "administration %v, %q: %s", where == admin, tc.request, body)
		}
	}
	resp, _ := admin.ask(post(goodBody))
	assert.Equal(t, 404, resp.StatusCode, "a completion")

	busy := sv.dial()
	busy.send(post(streamBody))
	eventually(t, "the flow runs", func() bool { return sv.live.Len() == 1 })
	down := make(chan error, 1)
	go func() { down <- sv.Shutdown(context.Background()) }()
	eventually(t, "the main listener is closed", func() bool {
		c, err := net.Dial("tcp", sv.ln.Addr().String())
		if err == nil {
			c.Close()
		}
		return err != nil
	})
	c := admin.dial()
	resp, body := c.ask(get("GET /health"), get("GET /workers"))
	assert.Equal(t, 503, resp.StatusCode, "/health while draining")
	assert.Contains(t, body, "draining")
	resp, _ = c.receive()
	assert.Equal(t, 200, resp.StatusCode, "/workers while draining")
	close(enough)
	_, body = busy.receive()
	assert.Equal(t, wholeStream, body, "the answer in flight")
	assert.NoError(t, <-down)
	assert.NoError(t, <-adminEnded)
	_, err := http.ReadResponse(bufio.NewReader(c), nil)
	assert.Error(t, err, "administration is still there")
}
