package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/internal/auth"
	"github.com/tandem-pd/tandem/internal/setting"
)

// local is how to reach a gateway configured by the same environment or file.
type local struct {
	Host string `flag:"http-host"`
	Port int    `flag:"http-port"`
	// Cert and Key are the gateway's, or an operator's.
	Cert string `flag:"tls-cert-file"`
	Key  string `flag:"tls-key-file"`
	// CA holds the authorities of a remote gateway's certificate.
	CA string `flag:"ca-file" help:"PEM authorities of the gateway's certificate, besides the system's. Locally tls-cert-file suffices."`
}

// url returns the gateway's URL on the same machine.
func (l local) url() string { return l.reachable(l.Host, strconv.Itoa(l.Port)) }

// reachable returns a listener's URL on this machine: loopback if it listens on every address.
func (l local) reachable(host, port string) string {
	switch host {
	case "", "0.0.0.0":
		host = "127.0.0.1"
	case "::":
		host = "::1"
	}
	scheme := "http://"
	if l.Cert != "" {
		scheme = "https://"
	}
	return scheme + net.JoinHostPort(host, port)
}

// tls returns the TLS settings for the gateway at base, nil without certificates. It trusts our own certificate,
// which the gateway on this machine shares, and the known authorities. Our certificate is sent on request.
func (l local) tls(base string) (*tls.Config, error) {
	if l.Cert == "" && l.CA == "" {
		return nil, nil
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		return nil, fmt.Errorf("the certificate authorities of this machine: %w", err)
	}
	if l.CA != "" {
		pem, err := os.ReadFile(l.CA)
		if err == nil && !roots.AppendCertsFromPEM(pem) {
			err = errors.New("no certificate is in it")
		}
		if err != nil {
			return nil, fmt.Errorf("ca-file: %w", err)
		}
	}
	if l.Cert == "" {
		return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}, nil
	}
	own, err := tls.LoadX509KeyPair(l.Cert, l.Key)
	if err != nil {
		return nil, fmt.Errorf("tls-cert-file, tls-key-file: %w", err)
	}
	at, err := url.Parse(base)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{own},
		InsecureSkipVerify: true, //nolint:gosec // VerifyConnection does it
		VerifyConnection: func(state tls.ConnectionState) error {
			leaf, chain := state.PeerCertificates[0], x509.NewCertPool()
			if leaf.Equal(own.Leaf) {
				return nil
			}
			for _, c := range state.PeerCertificates[1:] {
				chain.AddCert(c)
			}
			_, err := leaf.Verify(x509.VerifyOptions{DNSName: at.Hostname(), Intermediates: chain, Roots: roots})
			return err
		},
	}, nil
}

// administration is how to reach a gateway's administration.
type administration struct {
	AdminURL string `flag:"admin-url" form:"url http https" group:"Administration" help:"URL of the gateway's administration. Empty is this machine: admin-address, or http-host and http-port."`
	KeyFile  string `flag:"admin-key-file" group:"Administration" help:"File whose first key is sent."`
	JSON     bool   `flag:"json" default:"false" group:"Administration" help:"On: print the gateway's answer as JSON."`
	Address  string `flag:"admin-address" group:"Administration"`
	Local    local  `group:"Gateway on this machine"`
}

// operator returns the operator of that gateway.
func (a *administration) operator() (*operator, error) {
	base := a.AdminURL
	if base == "" {
		base = a.Local.url()
		if host, port, err := net.SplitHostPort(a.Address); err == nil {
			base = a.Local.reachable(host, port)
		}
	}
	return newOperator(a.Local, base, a.KeyFile)
}

// operator sends administration requests to a gateway.
type operator struct {
	url     string
	key     string // empty: none
	keyFile string // where it came from, for errors
	client  *http.Client
}

// askLimit bounds one request's time, maxAskBytes its answer.
const (
	askLimit    = 10 * time.Second
	maxAskBytes = 64 << 20
)

// newOperator returns an operator with the first key of keyFile, if any, and l's certificate.
func newOperator(l local, base, keyFile string) (*operator, error) {
	secure, err := l.tls(base)
	if err != nil {
		return nil, &setting.Error{Err: err}
	}
	o := &operator{url: strings.TrimRight(base, "/"), keyFile: keyFile, client: &http.Client{
		Timeout:   askLimit,
		Transport: &http.Transport{TLSClientConfig: secure},
		// The key is for this gateway only.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	if keyFile != "" {
		if o.key, err = auth.ReadFirst(keyFile); err != nil {
			return nil, setting.Errorf("admin-key-file", "%w", err)
		}
	}
	return o, nil
}

// close closes idle connections.
func (o *operator) close() { o.client.CloseIdleConnections() }

// send sends a request and returns the answer, whatever its status.
func (o *operator) send(ctx context.Context, method, path string) (status int, body []byte, err error) {
	res, err := o.do(ctx, method, path, nil)
	if err != nil {
		return 0, nil, err
	}
	defer res.Body.Close()
	body, err = io.ReadAll(io.LimitReader(res.Body, maxAskBytes))
	return res.StatusCode, body, err
}

// do sends a request, with a JSON body unless it is nil. The error is without the address, which callers add.
func (o *operator) do(ctx context.Context, method, path string, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, o.url+path, body)
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if o.key != "" {
		req.Header.Set("Authorization", "Bearer "+o.key)
	}
	res, err := o.client.Do(req)
	if sent, ok := errors.AsType[*url.Error](err); ok {
		err = sent.Err
	}
	return res, err
}

// refusal is an error answered by the gateway.
type refusal struct{ code, message string }

func (r *refusal) Error() string { return r.message }

// ask sends a request and decodes the answer into into. The error is for the operator, and wraps a *refusal if the
// gateway answered.
func (o *operator) ask(ctx context.Context, method, path string, into any) error {
	status, body, err := o.send(ctx, method, path)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil && status != 0:
		return fmt.Errorf("the answer of %s broke off: %w", o.url, err)
	case err != nil:
		return fmt.Errorf("cannot reach the gateway at %s: %w; --admin-url sets its address", o.url, err)
	case status != http.StatusOK:
		return o.explain(status, body)
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("%s does not answer as a gateway: %w", o.url, err)
	}
	return nil
}

// explain returns an error with advice for an answer other than 200.
func (o *operator) explain(status int, body []byte) error {
	var answer struct {
		Error struct{ Message, Code string }
	}
	_ = json.Unmarshal(body, &answer) // if it is not a gateway, only the status helps
	r := &refusal{answer.Error.Code, answer.Error.Message}
	if r.message == "" {
		r.message = fmt.Sprintf("it answered %d %s", status, http.StatusText(status))
	}
	switch {
	case status == http.StatusUnauthorized && o.key == "":
		return fmt.Errorf("%s wants an operator's key: --admin-key-file FILE (%w)", o.url, r)
	case status == http.StatusUnauthorized:
		return fmt.Errorf("%s does not take the first key of %s: --admin-key-file names another (%w)", o.url, o.keyFile, r)
	case status == http.StatusForbidden:
		return fmt.Errorf("%s refuses: %w; then --admin-key-file FILE or --admin-url URL here", o.url, r)
	case status == http.StatusNotFound && r.code != "worker_not_found":
		return fmt.Errorf("no administration at %s: if the gateway has an --admin-address, set --admin-url to it (%w)", o.url, r)
	default:
		return fmt.Errorf("%s: %w", o.url, r)
	}
}
