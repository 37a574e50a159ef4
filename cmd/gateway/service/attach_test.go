package service

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// fakeSidecar is registered as soon as it awaits nothing.
type fakeSidecar struct{ awaits string }

func (s *fakeSidecar) Registered() (bool, string) { return s.awaits == "", s.awaits }

func TestBeside(t *testing.T) {
	of := &fakeSidecar{awaits: "the engine at http://h:1"}
	h := NewSidecar(of, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("metrics")) }))
	ask := func(method, path string, status int, contains string) {
		t.Helper()
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, path, nil))
		assert.True(t, w.Code == status && strings.Contains(w.Body.String(), contains),
			"%s %s: %d %s, want %d and %q", method, path, w.Code, w.Body, status, contains)
	}
	ask("GET", "/live", 200, `"live"`)
	ask("GET", "/metrics", 200, "metrics")
	ask("GET", "/ready", 503, `{"status":"waiting","awaits":"the engine at http://h:1"}`)
	of.awaits = ""
	ask("GET", "/ready", 200, `{"status":"registered"}`)
	ask("POST", "/ready", 405, "")
	ask("GET", "/workers", 404, "")
}

func TestServeSidecarEndsWithItsContext(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- ServeSidecar(ctx, ln, NewSidecar(&fakeSidecar{}, http.NotFoundHandler()), slog.New(slog.DiscardHandler))
	}()
	res, err := http.Get("http://" + ln.Addr().String() + "/live")
	require.True(t, err == nil && res.StatusCode == http.StatusOK, "%v %v", res, err)
	_ = res.Body.Close()
	cancel()
	assert.NoError(t, <-ended)
}
