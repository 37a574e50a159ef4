package http1

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// tee keeps what is written to a connection.
type tee struct {
	net.Conn
	out *bytes.Buffer
}

func (t tee) Write(p []byte) (int, error) {
	t.out.Write(p)
	return t.Conn.Write(p)
}

// What leaves is byte for byte what net/http's client sends.
func TestRequestIsNetHTTPs(t *testing.T) {
	base := engine(t, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	for name, change := range map[string]func(*Leg){
		"least":           func(*Leg) {},
		"every header":    func(l *Leg) { l.Stream, l.Rank, l.TraceParent = true, 12, "00-aa-bb-01" },
		"trace state":     func(l *Leg) { l.TraceParent, l.TraceState = "00-aa-bb-01", "a=1,b=2" },
		"forwarded":       func(l *Leg) { l.Forward = []Field{{"X-Tenant", "a"}, {"X-Zone", " b "}} },
		"base with path":  func(l *Leg) { l.Base += "/engine/a%20b" },
		"base with query": func(l *Leg) { l.Base += "/x?key=v&w" },
		"path to escape":  func(l *Leg) { l.Path = "/v1/models/ä b/c+d" },
		"values trimmed":  func(l *Leg) { l.RequestID, l.TraceParent = " a b\t", " 00 " },
		"no request id":   func(l *Leg) { l.RequestID = "" },
		"long body":       func(l *Leg) { l.Body = Body{bytes.Repeat([]byte("x"), copiedBytes+1)} },
		"segments":        func(l *Leg) { l.Body = Body{[]byte("a"), nil, bytes.Repeat([]byte("x"), copiedBytes), []byte("b")} },
		"short segments":  func(l *Leg) { l.Body = Body{[]byte("a"), []byte("b")} },
		"longest body":    func(l *Leg) { l.Body = Body{bytes.Repeat([]byte("x"), LeavesWhole+1)} },
	} {
		var sent bytes.Buffer
		dial := func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := (&net.Dialer{}).DialContext(ctx, network, address)
			return tee{c, &sent}, err
		}
		l, theirs := leg(base), newNetHTTP()
		change(&l)
		finish(t, called(t, client(t, ClientConfig{Dial: dial}), l))
		ours := sent.String()
		sent.Reset()
		if u, query, ok := strings.Cut(l.Base, "?"); ok {
			l.Base, l.Path = u, l.Path+"?"+query
		}
		l.Path = strings.ReplaceAll(l.Path, " ", "%20")
		theirs.transport.DialContext = dial
		finish(t, called(t, theirs, l))
		theirs.CloseIdle()
		assert.Equal(t, ours, sent.String(), "%s: ours\nnet/http's", name)
	}
}

// A value that could end its header, or a path that is none, is never sent, and is not reported as the worker's
// refusal.
func TestRequestIsRefusedBeforeItIsSent(t *testing.T) {
	h := client(t, ClientConfig{Dial: func(context.Context, string, string) (net.Conn, error) {
		t.Error("dialed")
		return nil, net.ErrClosed
	}})
	for name, change := range map[string]func(*Leg){
		"request id":  func(l *Leg) { l.RequestID = "a\r\nX: y" },
		"traceparent": func(l *Leg) { l.TraceParent = "a\x00" },
		"tracestate":  func(l *Leg) { l.TraceState = "a\n" },
		"a length":    func(l *Leg) { l.Forward = []Field{{"Content-length", "3"}} },
		"no name":     func(l *Leg) { l.Forward = []Field{{"X: y\r\nA", "3"}} },
		"no value":    func(l *Leg) { l.Forward = []Field{{"A", "X: y\r\nB: c"}} },
		"path":        func(l *Leg) { l.Path = "v1" },
	} {
		l := leg("http://127.0.0.1:1")
		change(&l)
		_, err := h.Call(t.Context(), l)
		assertFailed(t, err, OpHead)
		assert.NotContains(t, err.Error(), "X: y", name)
	}
}

func TestTarget(t *testing.T) {
	for _, c := range []struct{ base, address, host, name string }{
		{"http://h:81", "h:81", "h:81", "h"},
		{"http://h", "h:80", "h", "h"},
		{"http://h:", "h:80", "h", "h"},
		{"https://h", "h:443", "h", "h"},
		{"http://[::1]:81", "[::1]:81", "[::1]:81", "::1"},
		{"https://[fe80::1%25eth0]:81/p", "[fe80::1%eth0]:81", "[fe80::1]:81", "fe80::1"},
		{"http://user:secret@h:81", "h:81", "h:81", "h"},
	} {
		got, err := newTarget(c.base)
		assert.True(t, err == nil && got.address == c.address && got.host == c.host && got.name == c.name, "%s: %+v, %v", c.base, got, err)
	}
	for _, bad := range []string{"", "h:81", "ftp://h", "http://", "http://:80", "http://münchen", "http://user:secret@h:x",
		"http://user:secret@ä"} {
		got, err := newTarget(bad)
		assert.True(t, err != nil && !strings.Contains(err.Error(), "secret"), "%s: %+v, %v", bad, got, err)
	}
}

func TestConfigValidate(t *testing.T) {
	for field, c := range map[string]ClientConfig{
		"DialTimeout": {DialTimeout: -1}, "IdlePerWorker": {IdlePerWorker: -1}, "IdleTimeout": {IdleTimeout: -1},
		"BearerToken": {BearerToken: "a\r\nb"},
	} {
		err := c.Validate()
		assert.True(t, err != nil && strings.HasPrefix(strings.TrimPrefix(err.Error(), "http1.ClientConfig."), field+": ") &&
			!strings.Contains(err.Error(), "a\r"),
			"%s: %v", field, err)
	}
	assert.NoError(t, (ClientConfig{BearerToken: "abc", DialTimeout: time.Second}).Validate())
}

// A worker behind TLS: verified by name, the token sent, the connection used
// again; one whose certificate is somebody else's is a failed dial.
func TestTLS(t *testing.T) {
	var sni, token string
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sni, token = r.TLS.ServerName, r.Header.Get("Authorization")
		raw, _ := io.ReadAll(r.Body)
		_, _ = w.Write(raw)
	}))
	srv.Config.ErrorLog = quietLog
	srv.StartTLS()
	defer srv.Close()
	trust := system{&tls.Config{RootCAs: srv.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs}}
	h := client(t, ClientConfig{Trust: trust, BearerToken: "key", Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, srv.Listener.Addr().String())
	}})
	for _, size := range []int{3, copiedBytesTLS + 1, 1 << 20} {
		l := leg("https://example.com")
		l.Body = Body{bytes.Repeat([]byte("x"), size-1), []byte("y")}
		got := finish(t, called(t, h, l))
		assert.True(t, got == string(l.Body.AppendTo(nil)) && sni == "example.com" && token == "Bearer key",
			"%d bytes of %d, SNI %q, token %q", len(got), size, sni, token)
	}
	assert.Equal(t, Stats{Base: "https://example.com", Open: 1, Idle: 1, Dialed: 1, Reused: 2}, h.Stats()[0])
	_, err := h.Call(t.Context(), leg("https://other.example.net"))
	assertFailed(t, err, OpDial) // somebody else's certificate
	assert.Zero(t, h.Stats()[1].Open)
}
