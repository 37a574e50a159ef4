package edge

import (
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/tandem-pd/tandem/internal/certs"
	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/setting"
)

// TLS is the settings of TLS for clients.
type TLS struct {
	CertFile string `flag:"tls-cert-file,tls-cert-path" help:"PEM certificate chain for clients and operators, who must then use TLS. Read again within 10 s of a change. Empty serves without TLS."`
	KeyFile  string `flag:"tls-key-file,tls-key-path" help:"PEM private key of tls-cert-file."`
	ClientCA string `flag:"tls-client-ca-file" help:"PEM authorities of clients' certificates, which all must then show, health probes too. Read again on change. Empty requires none."`
	// Names are read by [certs.Named].
	Names []string `flag:"tls-client-names" help:"A client's certificate must have one of these names: a DNS name, *.DOMAIN, or a URI, /* at the end for all below. Empty takes any."`
}

// validate returns what does not go together.
func (t *TLS) validate() error {
	var errs []error
	need := func(name string, missing bool, what string) {
		if missing {
			errs = append(errs, setting.Errorf(name, "it needs %s", what))
		}
	}
	need("tls-cert-file", t.CertFile != "" && t.KeyFile == "", "tls-key-file, its private key")
	need("tls-key-file", t.KeyFile != "" && t.CertFile == "", "tls-cert-file, whose key it is")
	need("tls-client-ca-file", t.ClientCA != "" && t.CertFile == "", "tls-cert-file: clients show certificates over TLS only")
	need("tls-client-names", len(t.Names) > 0 && t.ClientCA == "", "tls-client-ca-file, which vouches for the names")
	for _, name := range t.Names {
		if err := certs.CheckName(name); err != nil {
			errs = append(errs, setting.Errorf("tls-client-names", "%w", err))
		}
	}
	return errors.Join(errs...)
}

// Files returns the certificate and its key, for a use.
func (t *TLS) Files(use string) certs.Files {
	return certs.Files{
		Use:  use,
		Cert: certs.File{Setting: "tls-cert-file", Path: t.CertFile}, Key: certs.File{Setting: "tls-key-file", Path: t.KeyFile},
	}
}

// secure sets up the frontends' TLS, if configured.
func (s *Server) secure() error {
	cfg := &s.cfg
	if cfg.TLS.CertFile == "" {
		return nil
	}
	store := cfg.Certs
	if store == nil {
		store = certs.NewStore(0, s.log)
	}
	files := cfg.TLS.Files("clients")
	files.CA = certs.File{Setting: "tls-client-ca-file", Path: cfg.TLS.ClientCA}
	source, err := store.Open(files)
	if err != nil {
		return err
	}
	for _, f := range s.frontends() {
		f.server.TLS = source.Server(cfg.TLS.Names, "http/1.1")
	}
	return nil
}

// HandshakeFailed counts and logs a failed handshake, and answers a client that uses HTTP without TLS.
func (f *frontend) HandshakeFailed(c *http1.ServerConn, err error) {
	reason := handshakeFailure(err)
	if reason == "" {
		return
	}
	f.s.metrics.connections.WithLabelValues(reason).Inc()
	if suppressed, ok := f.s.refusals.Allow("handshake "+reason, time.Now()); ok {
		f.s.log.Warn("TLS handshake with a client failed", "reason", reason, "peer", c.RemoteAddr().String(), slog.Any("error", err),
			slog.Int("suppressed", suppressed))
	}
	if plain, ok := errors.AsType[tls.RecordHeaderError](err); ok && reason == "plain_http" {
		f.answerPlain(plain.Conn)
	}
}

// The values of the metric's label reason.
var handshakeReasons = []string{"plain_http", "client_certificate", "handshake"}

// handshakeFailure returns the reason of an error, empty for a client that just left.
func handshakeFailure(err error) string {
	if plain, ok := errors.AsType[tls.RecordHeaderError](err); ok && plain.Conn != nil && isHTTP(plain.RecordHeader) {
		return "plain_http"
	}
	remote, _ := errors.AsType[*net.OpError](err)
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed), errors.Is(err, os.ErrDeadlineExceeded):
		return ""
	case remote != nil && remote.Op == "remote error":
		return "handshake"
	case remote != nil:
		return "" // a network error
	case strings.Contains(err.Error(), "certificate"): // a missing client certificate has no error type
		return "client_certificate"
	}
	return "handshake"
}

// isHTTP reports whether a connection's first bytes are HTTP without TLS.
func isHTTP(first [5]byte) bool {
	return slices.Contains([]string{"GET /", "HEAD ", "POST ", "PUT /", "OPTIO", "DELET", "PATCH"}, string(first[:]))
}

// answerPlain answers a client that uses HTTP without TLS with a 400, and drains what it still sends.
func (f *frontend) answerPlain(c net.Conn) {
	var ctx fasthttp.RequestCtx
	res := &ctx.Response
	id := requestID(nil)
	res.Header.Set(headerRequestID, id)
	f.s.writeError(&ctx, id, &openai.Error{
		Status: http.StatusBadRequest, Type: "invalid_request_error", Code: "tls_required",
		Message: "the request came without TLS: this address takes https:// only",
	})
	res.SetConnectionClose()
	if c.SetDeadline(time.Now().Add(http1.LingerTime)) != nil {
		return
	}
	if _, err := res.WriteTo(c); err == nil {
		http1.Drain(c, int64(f.s.cfg.MaxBodyBytes))
	}
}
