package edge

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/certs"
	"github.com/tandem-pd/tandem/lab/testkit"
)

// vouched is what a server with TLS needs, in a folder.
type vouched struct {
	ca    *testkit.Authority
	dir   string
	store *certs.Store
}

func newVouched(t testing.TB) *vouched {
	g := &vouched{ca: testkit.NewAuthority(t, "ca"), dir: t.TempDir(), store: certs.NewStore(time.Millisecond, slog.New(slog.DiscardHandler))}
	g.issue(t)
	return g
}

// issue replaces the certificate.
func (g *vouched) issue(t testing.TB) testkit.Pair {
	p := g.ca.Issue(testkit.Leaf{Names: []string{"t", "127.0.0.1"}})
	p.Write(t, g.dir, "gateway")
	return p
}

// option serves with the certificate.
func (g *vouched) option(c *Config) {
	c.TLS.CertFile, c.TLS.KeyFile = filepath.Join(g.dir, "gateway.pem"), filepath.Join(g.dir, "gateway.key")
	c.Certs = g.store
}

// client is the configuration of a client, with a certificate of the names where there are any.
func (g *vouched) client(t testing.TB, by *testkit.Authority, names ...string) *tls.Config {
	c := &tls.Config{RootCAs: g.ca.Pool(), ServerName: "t"}
	if by != nil {
		p := by.Issue(testkit.Leaf{Names: names})
		pair, err := tls.X509KeyPair(p.Cert, p.Key)
		require.NoError(t, err)
		c.Certificates = []tls.Certificate{pair}
	}
	return c
}

// where is option, where TLS is wanted.
func (g *vouched) where(secure bool) option {
	if secure {
		return g.option
	}
	return func(*Config) {}
}

// dial connects over TLS, or without.
func (g *vouched) dial(sv *served, secure bool) *client {
	sv.t.Helper()
	if secure {
		return sv.dial().secured(g.client(sv.t, nil))
	}
	return sv.dial()
}

// secured is the client over TLS.
func (c *client) secured(config *tls.Config) *client {
	return newClient(c.t, tls.Client(c.Conn, config))
}

// TestAnswers: streams, long answers and further requests on one connection pass over TLS as without. A request that is refused
// by its head, or cannot be read, is answered behind a stream too: it was not, and one that could not be read was read again
// and again.
func TestAnswers(t *testing.T) {
	long := strings.Repeat("x", 3<<20)
	g := newVouched(t)
	for _, secure := range []bool{false, true} {
		sv := serve(t, loopback(t), func(ctx context.Context, c *handoff.Call, out handoff.Sink) error {
			if c.Request.Stream {
				return answerStream(ctx, c, out)
			}
			out.Start("application/json")
			return out.Write([]byte(long))
		}, g.where(secure))
		for _, refused := range []struct {
			request string
			status  int
			code    string
		}{
			{"NONSENSE\r\n\r\n", 400, "malformed_request"},
			{get("POST /v1/completions", "Content-Type: application/json", "Content-Length: 99999999999"), 413, "request_too_large"},
		} {
			cl := g.dial(sv, secure)
			for range 3 {
				_, body := cl.ask(post(goodBody))
				require.True(t, body == long, "%d bytes", len(body))
				resp, body := cl.ask(post(streamBody))
				require.Equal(t, wholeStream, body)
				assert.Equal(t, 200, resp.StatusCode)
				assert.Equal(t, "text/event-stream; charset=utf-8", resp.Header.Get("Content-Type"))
				assert.Equal(t, []string{"chunked"}, resp.TransferEncoding)
				assert.Equal(t, "no-cache", resp.Header.Get("Cache-Control"))
			}
			_ = cl.SetReadDeadline(time.Now().Add(10 * time.Second))
			resp, body := cl.ask(refused.request)
			wantError(t, resp, body, refused.status, refused.code)
			cl.closed()
		}
		eventually(t, "all answers counted and no stream open", func() bool {
			return sv.metric("tandem_frontend_http_responses_total", "completions", "200") == 12 &&
				sv.metric("tandem_frontend_open_connections", "streaming") == 0
		})
		assert.Zero(t, sv.metric("tandem_frontend_disconnected_clients"))
		_, err := tls.Dial("tcp", sv.ln.Addr().String(), &tls.Config{RootCAs: g.ca.Pool(), ServerName: "t", MaxVersion: tls.VersionTLS11})
		assert.Error(t, err, "TLS 1.1")
	}
}

// The certificate is replaced 20 times under 200 requests a second, each on a connection of its own or on one that is
// kept: none fails, and the last certificate is shown at the end. Half of the time the reload is by hand, as SIGHUP's.
func TestRotationUnderLoad(t *testing.T) {
	g := newVouched(t)
	sv := serve(t, loopback(t), answerStream, g.option)
	ctx, cancel := context.WithCancel(t.Context())
	var watching, asking sync.WaitGroup
	watching.Go(func() { _ = g.store.Run(ctx) })
	defer watching.Wait()
	defer cancel()
	transport := &http.Transport{TLSClientConfig: g.client(t, nil), MaxIdleConnsPerHost: 16}
	defer transport.CloseIdleConnections()
	ask := func(alone bool) {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+sv.ln.Addr().String()+"/v1/completions",
			strings.NewReader(streamBody))
		req.Header.Set("Content-Type", "application/json")
		req.Close, req.Host = alone, "t"
		resp, err := transport.RoundTrip(req)
		if !assert.NoError(t, err) {
			return
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		assert.NoError(t, err)
		assert.Equal(t, wholeStream, string(b))
	}
	const rotations, requests = 20, 4 // for each of them, 5 ms apart
	tick := time.NewTicker(time.Second / 200)
	defer tick.Stop()
	var last testkit.Pair
	for i := range rotations * requests {
		<-tick.C
		asking.Go(func() { ask(i%2 == 0) })
		if i%requests == 0 {
			last = g.issue(t)
		}
		if i%(2*requests) == 0 {
			_ = g.store.Reload()
		}
	}
	asking.Wait()
	eventually(t, "the last certificate", func() bool {
		c, err := tls.Dial("tcp", sv.ln.Addr().String(), g.client(t, nil))
		if err != nil {
			return false
		}
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0].SerialNumber.Cmp(last.Serial) == 0
	})
}

// HTTP without TLS gets an error that names TLS, and the connection is closed.
func TestPlainHTTPOnTheTLSPort(t *testing.T) {
	g := newVouched(t)
	sv := serve(t, loopback(t), answerJSON, g.option)
	for _, request := range []string{post(goodBody), get("GET /health")} {
		cl := sv.dial()
		resp, body := cl.ask(request)
		wantError(t, resp, body, 400, "tls_required")
		cl.closed()
		cl.Close()
	}
	cl := sv.dial() // neither
	cl.send("\x00\x01\x02\x03\x04\x05\x06")
	eventually(t, "the counts", func() bool {
		return sv.metric("tandem_frontend_connection_problems_total", "plain_http") == 2 && sv.metric("tandem_frontend_connection_problems_total",
			"handshake") == 1
	})
	cl.Close()
	eventually(t, "the connections' end", func() bool { return sv.main.server.Conns.Len() == 0 })
}

// A stalled handshake ends, and does not block other clients.
func TestSilentHandshakes(t *testing.T) {
	g := newVouched(t)
	sv := serve(t, loopback(t), answerJSON, g.option, func(c *Config) { c.ReadTimeout, c.MaxConnections = 200*time.Millisecond, 4 })
	for range 8 {
		sv.dial().send("\x16\x03\x01")
	}
	cl := sv.dial().secured(g.client(t, nil))
	resp, _ := cl.ask(post(goodBody))
	assert.Equal(t, 200, resp.StatusCode)
	cl.Close()
	eventually(t, "the connections' end", func() bool { return sv.main.server.Conns.Len() == 0 })
}

// Clients, and operators at an address of their own, show certificates of one authority, with one of the names.
func TestClientCertificates(t *testing.T) {
	g := newVouched(t)
	sv := serve(t, loopback(t), answerJSON, g.option, func(c *Config) {
		c.AdminAddress, c.TLS.ClientCA, c.TLS.Names = "127.0.0.1:0", g.ca.Bundle(g.dir), []string{"spiffe://td/app"}
	})
	admin, _ := sv.administered()
	app, stranger := g.client(t, g.ca, "spiffe://td/app"), g.client(t, testkit.NewAuthority(t, "other"), "spiffe://td/app")
	for _, c := range []struct {
		name   string
		where  *served
		client *tls.Config
		served bool
	}{
		{"client", sv, app, true},
		{"client without", sv, g.client(t, nil), false},
		{"client of another name", sv, g.client(t, g.ca, "spiffe://td/other"), false},
		{"client of another authority", sv, stranger, false},
		{"operator", admin, app, true},
		{"operator of another authority", admin, stranger, false},
		{"operator without", admin, g.client(t, nil), false},
	} {
		cl := c.where.dial().secured(c.client)
		_, _ = io.WriteString(cl, get("GET /health"))
		resp, err := http.ReadResponse(cl.br, nil)
		if c.served {
			require.NoError(t, err, c.name)
			assert.Equal(t, 200, resp.StatusCode, c.name)
		} else {
			assert.ErrorContains(t, err, "remote error: tls: ", c.name)
		}
	}
	eventually(t, "the refusals' counts", func() bool { // a client reads of its refusal before it is counted
		return sv.metric("tandem_frontend_connection_problems_total", "client_certificate") == 5
	})
	eventually(t, "the refusals' log lines", func() bool {
		lines := sv.logs.String()
		return strings.Contains(lines, "client didn't provide a certificate") && strings.Contains(lines, "spiffe://td/other")
	})
}
