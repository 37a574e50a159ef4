package upstream

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
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
	}))
	defer srv.Close()
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
		t.Run(name, func(t *testing.T) {
			l := leg(srv.URL)
			change(&l)
			record := func(make func(dial func(context.Context, string, string) (net.Conn, error)) Transport) string {
				var sent bytes.Buffer
				tr := make(func(ctx context.Context, network, address string) (net.Conn, error) {
					c, err := (&net.Dialer{}).DialContext(ctx, network, address)
					return tee{c, &sent}, err
				})
				defer tr.(interface{ CloseIdle() }).CloseIdle()
				call := l
				if u, query, ok := strings.Cut(l.Base, "?"); ok {
					if _, ours := tr.(*HTTP); !ours {
						call.Base, call.Path = u, l.Path+"?"+query
					}
				}
				if _, ours := tr.(*HTTP); !ours {
					call.Path = strings.ReplaceAll(call.Path, " ", "%20")
				}
				s, err := tr.Call(t.Context(), call)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := io.ReadAll(s); err != nil {
					t.Error(err)
				}
				s.Close()
				return sent.String()
			}
			ours := record(func(dial func(context.Context, string, string) (net.Conn, error)) Transport {
				return newHTTP(Config{Dial: dial})
			})
			theirs := record(func(dial func(context.Context, string, string) (net.Conn, error)) Transport {
				n := newNetHTTP()
				n.transport.DialContext = dial
				return n
			})
			if ours != theirs {
				t.Errorf("ours:\n%.600q\nnet/http's:\n%.600q", ours, theirs)
			}
		})
	}
}

// A value that could end its header, or a path that is none, is never sent,
// and is not said to be the worker's refusal.
func TestRequestIsRefusedBeforeItIsSent(t *testing.T) {
	h := newHTTP(Config{Dial: func(context.Context, string, string) (net.Conn, error) {
		t.Error("dialed")
		return nil, net.ErrClosed
	}})
	defer h.CloseIdle()
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
		e, ok := err.(*Error)
		if !ok || e.Op != OpHead || strings.Contains(err.Error(), "X: y") {
			t.Errorf("%s: %v", name, err)
		}
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
		if err != nil || got.address != c.address || got.host != c.host || got.name != c.name {
			t.Errorf("%s: %+v, %v", c.base, got, err)
		}
	}
	for _, bad := range []string{"", "h:81", "ftp://h", "http://", "http://:80", "http://münchen", "http://user:secret@h:x", "http://user:secret@ä"} {
		got, err := newTarget(bad)
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %+v, %v", bad, got, err)
		}
	}
}

func TestConfigValidate(t *testing.T) {
	for field, c := range map[string]Config{
		"DialTimeout": {DialTimeout: -1}, "IdlePerWorker": {IdlePerWorker: -1}, "IdleTimeout": {IdleTimeout: -1}, "BearerToken": {BearerToken: "a\r\nb"},
	} {
		if err := c.Validate(); err == nil || !strings.HasPrefix(strings.TrimPrefix(err.Error(), "upstream.Config."), field+": ") || strings.Contains(err.Error(), "a\r") {
			t.Errorf("%s: %v", field, err)
		}
	}
	if err := (Config{BearerToken: "abc", DialTimeout: time.Second}).Validate(); err != nil {
		t.Error(err)
	}
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
	trust := srv.Client().Transport.(*http.Transport).TLSClientConfig
	dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, srv.Listener.Addr().String())
	}
	h := newHTTP(Config{Trust: system{&tls.Config{RootCAs: trust.RootCAs}}, BearerToken: "key", Dial: dial})
	defer h.CloseIdle()
	for _, size := range []int{3, copiedBytesTLS + 1, 1 << 20} {
		l := leg("https://example.com")
		l.Body = Body{bytes.Repeat([]byte("x"), size-1), []byte("y")}
		s, err := h.Call(t.Context(), l)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(s)
		if err != nil || !bytes.Equal(got, l.Body.AppendTo(nil)) || sni != "example.com" || token != "Bearer key" {
			t.Errorf("%d bytes of %d, %v, SNI %q, token %q", len(got), size, err, sni, token)
		}
		s.Close()
	}
	if st := h.Stats()[0]; st.Dialed != 1 || st.Reused != 2 || st.Idle != 1 {
		t.Errorf("%+v", st)
	}
	wrong := newHTTP(Config{Trust: system{&tls.Config{RootCAs: trust.RootCAs}}, Dial: dial})
	defer wrong.CloseIdle()
	_, err := wrong.Call(t.Context(), leg("https://other.example.net"))
	if e, ok := err.(*Error); !ok || e.Op != OpDial || wrong.Stats()[0].Open != 0 {
		t.Errorf("somebody else's certificate: %v", err)
	}
}
