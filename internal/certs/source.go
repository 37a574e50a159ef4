package certs

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tandem-pd/tandem/internal/setting"
)

// File is a file, and the setting that names it, for errors. A Path of "" is no file.
type File struct{ Setting, Path string }

// Files are a certificate with its key and the CA bundle for the other side. Each part may be absent; certificate and
// key belong together.
type Files struct {
	Use       string // their purpose, in metrics and the log: clients, admin, workers, nats, etcd
	Cert, Key File   // our own, in PEM; Cert includes the chain
	CA        File   // authorities that vouch for the other side, in PEM; a client without it uses the system's
}

// Given reports whether any file is named.
func (f *Files) Given() bool { return f.Cert.Path+f.Key.Path+f.CA.Path != "" }

// maxFileBytes bounds a file, so that a path given by mistake is an error and not a gigabyte in memory.
const maxFileBytes = 4 << 20

// contents are the files' bytes; empty where there is no file.
type contents struct{ cert, key, ca []byte }

// read reads the files. Its error names the setting.
func (f *Files) read() (c contents, err error) {
	for _, one := range []struct {
		file File
		into *[]byte
	}{{f.Cert, &c.cert}, {f.Key, &c.key}, {f.CA, &c.ca}} {
		if one.file.Path == "" {
			continue
		}
		if *one.into, err = readBounded(one.file.Path); err != nil {
			return c, setting.Errorf(one.file.Setting, "%w", err)
		}
	}
	return c, nil
}

func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err == nil && len(b) > maxFileBytes {
		err = fmt.Errorf("%s: it is larger than %d bytes", path, maxFileBytes)
	}
	return b, err
}

func (c *contents) digest() (sum [sha256.Size]byte) {
	h := sha256.New()
	for _, b := range [][]byte{c.cert, c.key, c.ca} {
		fmt.Fprintf(h, "%d:", len(b))
		h.Write(b)
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// material is contents that can be used.
type material struct {
	digest [sha256.Size]byte
	pem    []byte           // certificate and key
	pair   *tls.Certificate // nil without a certificate
	roots  *x509.CertPool   // nil without a bundle
	client *tls.Config      // see Source.Client
}

// parse decodes contents. Its error names the setting and the reason.
func (f *Files) parse(c *contents, now time.Time) (*material, error) {
	m := &material{digest: c.digest()}
	if f.Cert.Path != "" {
		pair, err := tls.X509KeyPair(c.cert, c.key)
		if err != nil {
			return nil, f.blame(c, err)
		}
		if err := valid(pair.Leaf, now); err != nil {
			return nil, setting.Errorf(f.Cert.Setting, "%s: %w", f.Cert.Path, err)
		}
		m.pair, m.pem = &pair, slices.Concat(c.cert, []byte("\n"), c.key)
	}
	if f.CA.Path != "" {
		roots, err := bundle(c.ca, now)
		if err != nil {
			return nil, setting.Errorf(f.CA.Setting, "%s: %w", f.CA.Path, err)
		}
		m.roots = roots
	}
	m.client = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: m.roots, ClientSessionCache: tls.NewLRUClientSessionCache(256)}
	if m.pair != nil {
		m.client.Certificates = []tls.Certificate{*m.pair}
	}
	return m, nil
}

// blame names the file of a pair that is at fault.
func (f *Files) blame(c *contents, err error) error {
	if chain, of := blocks(c.cert, "CERTIFICATE"), f.Cert; len(chain) == 0 {
		return setting.Errorf(of.Setting, "%s: there is no whole certificate in it", of.Path)
	} else if _, broken := x509.ParseCertificate(chain[0]); broken != nil {
		return setting.Errorf(of.Setting, "%s: %w", of.Path, broken)
	}
	return setting.Errorf(f.Key.Setting, "%s: %w", f.Key.Path, err)
}

// valid is the error of a certificate that is not in force at now.
func valid(leaf *x509.Certificate, now time.Time) error {
	switch {
	case now.After(leaf.NotAfter):
		return fmt.Errorf("the certificate expired on %s", leaf.NotAfter.UTC().Format(time.RFC3339))
	case now.Before(leaf.NotBefore):
		return fmt.Errorf("the certificate is valid from %s only", leaf.NotBefore.UTC().Format(time.RFC3339))
	}
	return nil
}

// bundle reads CA certificates, at least one of them in force: an expired one may stay in the bundle.
func bundle(text []byte, now time.Time) (*x509.CertPool, error) {
	found := blocks(text, "CERTIFICATE")
	if len(found) == 0 {
		return nil, errors.New("there is no whole certificate in it")
	}
	roots, inForce := x509.NewCertPool(), errors.New("")
	for _, der := range found {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, err
		}
		if err := valid(c, now); inForce != nil {
			inForce = err
		}
		roots.AddCert(c)
	}
	return roots, inForce
}

// blocks are the PEM blocks of a kind in text, decoded.
func blocks(text []byte, kind string) (found [][]byte) {
	for {
		var b *pem.Block
		if b, text = pem.Decode(text); b == nil {
			return found
		}
		if b.Type == kind {
			found = append(found, b.Bytes)
		}
	}
}

// Source holds the last good contents of some files. It is safe for concurrent use.
type Source struct {
	files Files
	now   atomic.Pointer[material]

	copies []string // paths of copies of the pair; guarded by the store's lock
	failed string   // why the files could not be used when they were last read; the store's, under its lock
}

// Client is the configuration of connections that we make: the authorities and our certificate as they are now. The
// caller clones it to add to it. Each reload gives another pointer.
func (s *Source) Client() *tls.Config { return s.now.Load().client }

// Roots returns the current authorities of the bundle; nil without one.
func (s *Source) Roots() *x509.CertPool { return s.now.Load().roots }

// Pair returns our current certificate, or an empty one, which a handshake treats as none.
func (s *Source) Pair() tls.Certificate {
	if m := s.now.Load(); m.pair != nil {
		return *m.pair
	}
	return tls.Certificate{}
}

// Server returns the configuration of a listener, which reads the certificate at each handshake. With a bundle, clients
// must show a certificate of one of its authorities with one of names, if any; see [Named]. protocols are for ALPN.
func (s *Source) Server(names []string, protocols ...string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: protocols,
		// Servers that look for a certificate before they listen find one here.
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.now.Load().pair, nil },
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			m := s.now.Load()
			c := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: protocols, Certificates: []tls.Certificate{*m.pair}}
			if m.roots != nil {
				// A resumed session would admit a client whose authority has left the bundle.
				c.ClientCAs, c.ClientAuth, c.SessionTicketsDisabled = m.roots, tls.RequireAndVerifyClientCert, true
				c.VerifyConnection = func(state tls.ConnectionState) error { return Named(state.PeerCertificates[0], names) }
			}
			return c, nil
		},
	}
}

// ServerConfig returns the configuration of a connection to a server of this process that shows this source's
// certificate. It accepts exactly that certificate, whatever its names.
func (s *Source) ServerConfig() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: true, //nolint:gosec // VerifyConnection compares
		VerifyConnection: func(state tls.ConnectionState) error {
			if m := s.now.Load(); m.pair == nil || len(state.PeerCertificates) == 0 || !bytes.Equal(state.PeerCertificates[0].Raw, m.pair.Leaf.Raw) {
				return errors.New("the other side does not show this process's own certificate")
			}
			return nil
		},
	}
}

// PeerConfig returns the configuration, for both sides, of connections between processes that share this source's
// certificate: each accepts exactly that one.
func (s *Source) PeerConfig() *tls.Config {
	c := s.ServerConfig()
	c.ClientAuth = tls.RequireAnyClientCert
	c.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { pair := s.Pair(); return &pair, nil }
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { pair := s.Pair(); return &pair, nil }
	return c
}

// Explain adds to the error of a handshake which setting it is about. Other errors stay as they are.
func (s *Source) Explain(err error) error {
	var (
		unknown  x509.UnknownAuthorityError
		invalid  x509.CertificateInvalidError
		plain    tls.RecordHeaderError
		refused  = refused(err)
		ca, cert = s.files.CA, s.files.Cert
	)
	switch {
	case errors.As(err, &unknown) && ca.Path == "":
		return fmt.Errorf("%w: name its authority by %s", err, ca.Setting)
	case errors.As(err, &unknown):
		return fmt.Errorf("%w: it is not in %s, %s", err, ca.Setting, ca.Path)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired && invalid.Cert != nil:
		return fmt.Errorf("%w: it is the other side's certificate, of %s, in force from %s to %s",
			err, bearer(invalid.Cert), invalid.Cert.NotBefore.UTC().Format(time.RFC3339), invalid.Cert.NotAfter.UTC().Format(time.RFC3339))
	case errors.As(err, &plain):
		return fmt.Errorf("%w: the other side does not speak TLS", err)
	case refused && cert.Path == "":
		return fmt.Errorf("%w: the other side asks for a certificate: %s and %s are not given", err, cert.Setting, s.files.Key.Setting)
	case refused:
		return fmt.Errorf("%w: the other side refuses the certificate of %s, %s", err, cert.Setting, cert.Path)
	}
	return err
}

// bearer names the side that shows a certificate: by its first name, else its subject.
func bearer(c *x509.Certificate) string {
	switch {
	case len(c.DNSNames) > 0:
		return c.DNSNames[0]
	case len(c.IPAddresses) > 0:
		return c.IPAddresses[0].String()
	}
	return c.Subject.String()
}

// refused reports whether the other side rejected our certificate, or its absence, by an alert: handshake_failure,
// bad_certificate to certificate_unknown, unknown_ca, access_denied, certificate_required. crypto/tls has no type for a
// received alert.
func refused(err error) bool {
	remote, ok := errors.AsType[*net.OpError](err)
	return ok && remote.Op == "remote error" &&
		slices.ContainsFunc([]tls.AlertError{40, 42, 43, 44, 45, 46, 48, 49, 116}, func(a tls.AlertError) bool {
			return remote.Err.Error() == a.Error()
		})
}
