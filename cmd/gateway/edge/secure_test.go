package edge

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptrace"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/certs"
	"github.com/tandem-pd/tandem/internal/certs/certstest"
)

// vouched is what a server with TLS needs, in a folder.
type vouched struct {
	ca    *certstest.Authority
	dir   string
	store *certs.Store
}

func newVouched(t testing.TB) *vouched {
	g := &vouched{ca: certstest.New(t, "ca"), dir: t.TempDir(), store: certs.NewStore(time.Millisecond, slog.New(slog.DiscardHandler))}
	g.issue(t)
	return g
}

// issue replaces the certificate.
func (g *vouched) issue(t testing.TB) certstest.Pair {
	p := g.ca.Issue(certstest.Leaf{Names: []string{"t", "127.0.0.1"}})
	p.Write(t, g.dir, "gateway")
	return p
}

// option serves with the certificate.
func (g *vouched) option(c *Config) {
	c.TLS.CertFile, c.TLS.KeyFile = filepath.Join(g.dir, "gateway.pem"), filepath.Join(g.dir, "gateway.key")
	c.Certs = g.store
}

// client is the configuration of a client, with a certificate of the names where there are any.
func (g *vouched) client(t testing.TB, by *certstest.Authority, names ...string) *tls.Config {
	c := &tls.Config{RootCAs: g.ca.Pool(), ServerName: "t"}
	if by != nil {
		p := by.Issue(certstest.Leaf{Names: names})
		pair, err := tls.X509KeyPair(p.Cert, p.Key)
		if err != nil {
			t.Fatal(err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c
}

// secured is the client over TLS.
func (c *client) secured(config *tls.Config) *client {
	return newClient(c.t, tls.Client(c.Conn, config))
}

// Requests, streams, further requests on one connection and long answers pass over TLS as without.
func TestAnswersOverTLS(t *testing.T) {
	long := strings.Repeat("x", 3<<20)
	g := newVouched(t)
	sv := serve(t, loopback(t), func(ctx context.Context, c handoff.Call, out handoff.Sink) error {
		if c.Request.Stream {
			return answerStream(ctx, c, out)
		}
		out.Start("application/json")
		return out.Write([]byte(long))
	}, g.option)
	cl := sv.dial().secured(g.client(t, nil))
	for range 3 {
		cl.send(post(goodBody))
		if _, body := cl.receive(); body != long {
			t.Fatalf("%d bytes", len(body))
		}
		cl.send(post(streamBody))
		if _, body := cl.receive(); body != wholeStream {
			t.Fatalf("the stream: %q", body)
		}
	}
	cl.send("NONSENSE\r\n\r\n")
	resp, body := cl.receive()
	wantError(t, resp, body, 400, "malformed_request")
	cl.closed()
	if _, err := tls.Dial("tcp", sv.ln.Addr().String(), &tls.Config{RootCAs: g.ca.Pool(), ServerName: "t", MaxVersion: tls.VersionTLS11}); err == nil {
		t.Error("TLS 1.1 is spoken")
	}
}

// A client that reads nothing is given up over TLS, and one that reads slowly is not.
func TestSlowClientsOverTLS(t *testing.T) {
	t.Parallel()
	g := newVouched(t)
	ended := make(chan error, 1)
	sv := serve(t, loopback(t), func(_ context.Context, _ handoff.Call, out handoff.Sink) error {
		out.Start("text/event-stream; charset=utf-8")
		for event := []byte("data: " + strings.Repeat("x", 60<<10) + "\n\n"); ; {
			if err := out.Write(event); err != nil {
				ended <- err
				return err
			}
		}
	}, g.option, func(c *Config) { c.WriteStall = time.Second })
	cl := sv.dial().secured(g.client(t, nil))
	cl.send(post(streamBody))
	body := cl.head().Body
	b := make([]byte, 256<<10)
	for begin, pace := time.Now(), time.NewTicker(10*time.Millisecond); time.Since(begin) < 1200*time.Millisecond; <-pace.C {
		if _, err := io.ReadFull(body, b); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case err := <-ended:
		t.Fatalf("a client that reads was given up: %v", err)
	default:
	}
	if err := <-ended; !errors.Is(err, fault.ErrClientGone) {
		t.Errorf("ended by %v", err)
	}
}

// The certificate is replaced 20 times under 200 requests a second, each on a connection of its own or on one that is
// kept: none fails, and the last certificate is shown at the end. Half of the time the reload is by hand, as SIGHUP's.
func TestRotationUnderLoad(t *testing.T) {
	g := newVouched(t)
	sv := serve(t, loopback(t), answerStream, g.option)
	ctx, cancel := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	watching.Go(func() { _ = g.store.Run(ctx) })
	defer watching.Wait()
	defer cancel()
	transport := &http.Transport{TLSClientConfig: g.client(t, nil), MaxIdleConnsPerHost: 16}
	defer transport.CloseIdleConnections()
	var failed, requests, fresh atomic.Int64
	ask := func() {
		requests.Add(1)
		trace := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) {
			if !c.Reused {
				fresh.Add(1)
			}
		}})
		req, _ := http.NewRequestWithContext(trace, http.MethodPost, "https://"+sv.ln.Addr().String()+"/v1/completions", strings.NewReader(streamBody))
		req.Header.Set("Content-Type", "application/json")
		req.Close = requests.Load()%2 == 0
		req.Host = "t"
		resp, err := transport.RoundTrip(req)
		if err == nil {
			var b []byte
			b, err = io.ReadAll(resp.Body)
			resp.Body.Close()
			if string(b) != wholeStream {
				err = errors.Join(err, errors.New(string(b)))
			}
		}
		if err != nil {
			failed.Add(1)
			t.Log(err)
		}
	}
	loaded, stop := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(loaded)
		tick := time.NewTicker(time.Second / 200)
		defer tick.Stop()
		var asking sync.WaitGroup
		defer asking.Wait()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				asking.Go(ask)
			}
		}
	}()
	const rotations = 20
	var last certstest.Pair
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for i := range rotations {
		<-tick.C
		if last = g.issue(t); i%2 == 0 {
			_ = g.store.Reload()
		}
	}
	close(stop)
	<-loaded
	eventually(t, "the last certificate", func() bool {
		c, err := tls.Dial("tcp", sv.ln.Addr().String(), g.client(t, nil))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0].SerialNumber.Cmp(last.Serial) == 0
	})
	if failed.Load() > 0 || fresh.Load() == 0 {
		t.Errorf("%d of %d requests failed, on %d connections", failed.Load(), requests.Load(), fresh.Load())
	}
}

// HTTP without TLS gets an answer that says so, and the connection's end.
func TestPlainHTTPOnTheTLSPort(t *testing.T) {
	g := newVouched(t)
	sv := serve(t, loopback(t), answerJSON, g.option)
	for _, request := range []string{post(goodBody), get("GET /health")} {
		cl := sv.dial()
		cl.send(request)
		resp, body := cl.receive()
		wantError(t, resp, body, 400, "tls_required")
		cl.closed()
		cl.Close()
	}
	cl := sv.dial() // neither
	cl.send("\x00\x01\x02\x03\x04\x05\x06")
	eventually(t, "the counts", func() bool {
		return sv.metric("tandem_frontend_tls_failures_total", "plain_http") == 2 && sv.metric("tandem_frontend_tls_failures_total", "handshake") == 1
	})
	cl.Close()
	eventually(t, "the connections' end", func() bool { return sv.main.conns.len() == 0 })
}

// A handshake that does not go on ends, and holds no place that a client needs.
func TestSilentHandshakes(t *testing.T) {
	g := newVouched(t)
	sv := serve(t, loopback(t), answerJSON, g.option, func(c *Config) { c.ReadTimeout, c.MaxConnections = 200*time.Millisecond, 4 })
	for range 8 {
		sv.dial().send("\x16\x03\x01")
	}
	cl := sv.dial().secured(g.client(t, nil))
	cl.send(post(goodBody))
	resp, _ := cl.receive()
	assert.Equal(t, 200, resp.StatusCode)
	cl.Close()
	eventually(t, "the connections' end", func() bool { return sv.main.conns.len() == 0 })
}

// Clients and operators show certificates of their own authorities, where those are named.
func TestClientCertificatesByAddress(t *testing.T) {
	g := newVouched(t)
	staff := certstest.New(t, "staff")
	sv := serve(t, loopback(t), answerJSON, g.option, func(c *Config) {
		c.AdminAddress, c.TLS.ClientCA, c.TLS.AdminCA, c.TLS.Names = "127.0.0.1:0", g.ca.Bundle(g.dir), staff.Bundle(g.dir), []string{"spiffe://td/app"}
	})
	admin, _ := sv.administered()
	get := func(addr, path string, config *tls.Config) (int, error) {
		tr := &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+addr+path, nil)
		req.Host = "t"
		resp, err := tr.RoundTrip(req)
		if err != nil {
			return 0, err
		}
		resp.Body.Close()
		return resp.StatusCode, nil
	}
	app, operator := g.client(t, g.ca, "spiffe://td/app"), g.client(t, staff, "someone")
	for _, c := range []struct {
		name   string
		addr   string
		path   string
		client *tls.Config
		served bool
	}{
		{"client", sv.ln.Addr().String(), "/v1/models", app, true},
		{"client without", sv.ln.Addr().String(), "/v1/models", g.client(t, nil), false},
		{"client of another name", sv.ln.Addr().String(), "/v1/models", g.client(t, g.ca, "spiffe://td/other"), false},
		{"operator as a client", sv.ln.Addr().String(), "/v1/models", operator, false},
		{"operator", admin.ln.Addr().String(), "/workers", operator, true},
		{"client as an operator", admin.ln.Addr().String(), "/workers", app, false},
		{"operator without", admin.ln.Addr().String(), "/workers", g.client(t, nil), false},
	} {
		status, err := get(c.addr, c.path, c.client)
		if c.served != (err == nil && status == 200) || !c.served && !strings.Contains(err.Error(), "remote error: tls: ") {
			t.Errorf("%s: status %d, %v", c.name, status, err)
		}
	}
	eventually(t, "the refusals' counts", func() bool { // a client reads of its refusal before it is counted
		return sv.metric("tandem_frontend_tls_failures_total", "client_certificate") == 5
	})
	eventually(t, "the refusals' log lines", func() bool {
		said := sv.logs.String()
		return strings.Contains(said, "client didn't provide a certificate") && strings.Contains(said, "spiffe://td/other")
	})
}
