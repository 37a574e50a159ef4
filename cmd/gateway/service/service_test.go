package service

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tandem-pd/tandem/internal/auth"
	"github.com/tandem-pd/tandem/kv/follow"
	"github.com/tandem-pd/tandem/kv/wire"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
)

var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

var quiet = slog.New(slog.DiscardHandler)

// newIndex is an index that is ready, and not running.
func newIndex(t testing.TB, cfg Config) *Server {
	t.Helper()
	s := NewIndex(cfg, follow.Config{}, nil, http.NotFoundHandler(), quiet, prometheus.NewRegistry())
	return s
}

// newSelect is the same of the other service.
func newSelect(t *testing.T, sel SelectConfig) *Server {
	t.Helper()
	return newSelectOver(t, nil, prometheus.NewRegistry(), sel)
}

// newSelectOver is newSelect with events over bus, and its metrics in reg.
func newSelectOver(t *testing.T, bus wire.Bus, reg *prometheus.Registry, sel SelectConfig) *Server {
	t.Helper()
	base := router.DefaultConfig()
	base.Seed = 7
	sel.Routers = map[pools.Role]router.Config{}
	for _, role := range []pools.Role{pools.Prefill, pools.Decode, pools.Both} {
		sel.Routers[role] = base.For(role)
	}
	s, err := NewSelect(Config{}, sel, bus, http.NotFoundHandler(), quiet, reg)
	require.NoError(t, err)
	return s
}

// ask sends one request.
func ask(t testing.TB, s *Server, method, path, body string) *httptest.ResponseRecorder {
	t.Helper()
	res := httptest.NewRecorder()
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Host = "localhost"
	s.Handler().ServeHTTP(res, r)
	return res
}

// must is ask for an answer of the given status; it returns the body.
func must(t testing.TB, s *Server, status int, method, path, body string) string {
	t.Helper()
	res := ask(t, s, method, path, body)
	require.Equal(t, status, res.Code, "%s %s %s is answered X: %s", method, path, body, res.Body)
	return res.Body.String()
}

// start runs s on a port of its own until the test ends, and waits until it is
// ready.
func start(t testing.TB, s *Server) (url string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx, ln) }()
	t.Cleanup(func() { stop(); assert.NoError(t, <-ended) })
	url = "http://" + ln.Addr().String()
	require.Eventually(t, func() bool {
		res, err := client.Get(url + "/ready")
		if err == nil {
			res.Body.Close()
		}
		return err == nil && res.StatusCode == http.StatusOK
	}, 20*time.Second, 2*time.Millisecond, "it becomes ready")
	return url
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// New tokens hold from then on, the old ones no longer.
func TestTokens(t *testing.T) {
	s := newIndex(t, Config{Tokens: auth.NewKeys("secret-one", "secret-two")})
	is := func(want int, path, header string) {
		t.Helper()
		r := httptest.NewRequest("GET", path, nil)
		r.Header.Set("Authorization", header)
		res := httptest.NewRecorder()
		s.Handler().ServeHTTP(res, r)
		assert.Equal(t, want, res.Code, "%s with %q", path, header)
		assert.NotContains(t, res.Body.String(), "secret")
	}
	for _, header := range []string{"", "Bearer secret", "Basic secret-one"} {
		is(401, "/workers", header)
	}
	is(200, "/workers", "Bearer secret-one")
	is(200, "/workers", "bearer secret-two")
	is(200, "/ready", "")
	is(200, "/live", "")
	s.SetTokens(auth.NewKeys("secret-two", "secret-three"))
	is(401, "/workers", "Bearer secret-one")
	is(200, "/workers", "Bearer secret-two")
	is(200, "/workers", "Bearer secret-three")
}

// TestEveryEndpointHasItsChecks walks both services' endpoints: no token or a
// compressed body, and nothing of the body is read; a web page is not served.
func TestEveryEndpointHasItsChecks(t *testing.T) {
	for name, s := range map[string]*Server{"index": newIndex(t, Config{}), "select": newSelect(t, SelectConfig{})} {
		assert.GreaterOrEqual(t, len(s.patterns), 6, "%s endpoints", name)
		for _, pattern := range append([]string{"GET /metrics", "GET /nothing"}, s.patterns...) {
			method, path, _ := strings.Cut(pattern, " ")
			path = strings.ReplaceAll(path, "{id}", "x")
			ask := func(host string, headers ...string) (status int, read bool) {
				body := &unread{}
				r := httptest.NewRequest(method, path, body)
				r.Host = host
				for i := 0; i < len(headers); i += 2 {
					r.Header.Set(headers[i], headers[i+1])
				}
				w := httptest.NewRecorder()
				s.Handler().ServeHTTP(w, r)
				return w.Code, body.read
			}
			s.SetTokens(auth.NewKeys("a-token-of-some-length"))
			if status, read := ask("h"); status != 401 || read {
				t.Errorf("%s %s without a token: status %d, body read: %v", name, pattern, status, read)
			}
			s.SetTokens(nil)
			s.loopback.Store(true)
			for _, page := range [][]string{{"127.0.0.1:8090", "Origin", "https://evil.example"}, {"evil.example:8090"}} {
				if status, read := ask(page[0], page[1:]...); status != 403 || read {
					t.Errorf("%s %s of a web page at %s: status %d, body read: %v", name, pattern, page[0], status, read)
				}
			}
			s.loopback.Store(false)
			if pattern == "GET /metrics" || pattern == "GET /nothing" {
				continue
			}
			if status, read := ask("h", "Content-Encoding", "gzip"); status != 415 || read {
				t.Errorf("%s %s with a compressed body: status %d, body read: %v", name, pattern, status, read)
			}
		}
	}
}

// unread notes whether it was read.
type unread struct{ read bool }

func (u *unread) Read([]byte) (int, error) { u.read = true; return 0, io.EOF }

// What is too large is refused: of administration, whose bodies have no prompts in them, early.
func TestStoppingAndTooLarge(t *testing.T) {
	long := strings.Repeat(" ", small)
	must(t, newIndex(t, Config{}), 413, "POST", "/register", `{"id": "w1"}`+long)
	must(t, newIndex(t, Config{}), 400, "POST", "/query", `{}`+long)
	s := newIndex(t, Config{MaxBodyBytes: 32})
	assert.Contains(t, must(t, s, 413, "POST", "/query", `{"model": "`+strings.Repeat("m", 64)+`"}`), "body_too_large")
	must(t, s, 405, "GET", "/query", "")
	must(t, s, 404, "GET", "/nothing", "")
	s.leaving.Store(true)
	must(t, s, 503, "GET", "/ready", "")
	must(t, s, 200, "GET", "/live", "")
}

const stored = `{"worker": "w1", "events": [
	{"type": "stored", "block_hashes": [11, 12], "token_ids": [1, 2, 3, 4], "block_size": 2},
	{"type": "stored", "block_hashes": ["0xd"], "parent_block_hash": 12, "token_ids": [5, 6], "block_size": 2, "medium": "CPU"}]}`

// What is kept of a rank is bounded; removals make room.
func TestPostedBlocksAreBounded(t *testing.T) {
	s := newIndex(t, Config{})
	must(t, s, 201, "POST", "/register", `{"id": "w1", "model": "m", "block_size": 2}`)
	p, err := s.backend.(*shared).rank("w1", 0)
	require.NoError(t, err)
	p.limit = 3
	must(t, s, 200, "POST", "/events", stored)
	more := `{"worker": "w1", "events": [{"type": "stored", "block_hashes": [99], "token_ids": [9, 9], "block_size": 2}]}`
	assert.Contains(t, must(t, s, 409, "POST", "/events", more), "too_many_blocks")
	must(t, s, 200, "POST", "/events", `{"worker": "w1", "events": [{"type": "cleared"}]}`)
	must(t, s, 200, "POST", "/events", more)
}

const (
	workerP = `{"id": "p", "model": "m", "role": "prefill", "engine": "vllm", "address": "http://10.0.0.1:8000", "block_size": 2, "total_kv_blocks": 100}`
	workerD = `{"id": "d", "model": "m", "role": "decode", "engine": "vllm", "address": "http://10.0.0.2:8000", "block_size": 2, "total_kv_blocks": 100}`
)
