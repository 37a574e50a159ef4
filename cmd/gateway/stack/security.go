package stack

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/tandem-pd/tandem/internal/auth"
	"github.com/tandem-pd/tandem/internal/certs"
	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/pools/discovery"
)

// Identity is the certificate that etcd, NATS and workers are shown when they require one.
type Identity struct {
	Cert string `flag:"client-cert-file" help:"PEM client certificate for etcd, NATS and https:// workers. Read again on change."`
	Key  string `flag:"client-key-file" help:"PEM private key of client-cert-file."`
}

// open reads the files, with those authorities of the other side, and keeps them up to date in store.
func (i *Identity) open(use, setting, ca string, store *certs.Store) (*certs.Source, error) {
	return store.Open(certs.Files{
		Use: use, CA: certs.File{Setting: setting, Path: ca},
		Cert: certs.File{Setting: "client-cert-file", Path: i.Cert}, Key: certs.File{Setting: "client-key-file", Path: i.Key},
	})
}

// EtcdAccess is how etcd knows us, and we it.
type EtcdAccess struct {
	EtcdPasswordFile string `flag:"etcd-password-file" help:"File with the password of the user that etcd-endpoints name as USER@. Read once."`
	EtcdCA           string `flag:"etcd-ca-file" help:"PEM authorities of etcd's certificate. Empty uses the system's. Read again on change."`
}

// access reads what the settings name.
func (a *EtcdAccess) access(endpoints []string, own *Identity, store *certs.Store, log *slog.Logger) (discovery.Access, error) {
	out := discovery.Access{Log: log}
	if a.EtcdPasswordFile != "" {
		var err error
		if out.Password, err = auth.ReadOne(a.EtcdPasswordFile); err != nil {
			return out, setting.Errorf("etcd-password-file", "%w", err)
		}
	}
	if a.EtcdCA != "" || strings.Contains(strings.Join(endpoints, ","), "https://") {
		source, err := own.open("etcd", "etcd-ca-file", a.EtcdCA, store)
		if err != nil {
			return out, err
		}
		out.Trust = source
	}
	return out, nil
}

// NATSAccess is credentials and trust for NATS.
type NATSAccess struct {
	NATSCreds string `flag:"nats-creds" help:"NATS credentials file, as nsc makes it. Read at every connection. A name and password go into nats-url."`
	NATSCA    string `flag:"nats-ca-file" help:"PEM authorities of NATS's certificate; requires TLS. Empty uses the system's. Read again on change."`
	Identity
}

// options returns the client options of the settings.
func (a *NATSAccess) options(url string, store *certs.Store, log *slog.Logger) ([]nats.Option, error) {
	source, err := a.open("nats", "nats-ca-file", a.NATSCA, store)
	if err != nil {
		return nil, err
	}
	failed := &reasons{log: log}
	options := []nats.Option{
		// A password changed on one side first must not end the connection for good.
		nats.IgnoreAuthErrorAbort(),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) {
			failed.note("NATS unreachable; retrying", source.Explain(err))
		}),
		// A server may require TLS that we do not.
		func(o *nats.Options) error {
			o.Secure = a.NATSCA != "" || strings.Contains(url, "tls://") || strings.Contains(url, "wss://")
			o.TLSCertCB = func() (tls.Certificate, error) { return source.Pair(), nil }
			o.RootCAsCB = func() (*x509.CertPool, error) { return source.Roots(), nil }
			return nil
		},
	}
	if a.NATSCreds != "" {
		if err := checkCreds(a.NATSCreds); err != nil {
			return nil, setting.Errorf("nats-creds", "%w", err)
		}
		options = append(options, nats.UserCredentials(a.NATSCreds))
	}
	return options, nil
}

// checkCreds validates a credentials file. The error quotes nothing of it.
func checkCreds(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if _, err := nkeys.ParseDecoratedJWT(text); err != nil {
		return fmt.Errorf("%s: there is no user's JWT in it", path)
	}
	pair, err := nkeys.ParseDecoratedNKey(text)
	if err != nil {
		return fmt.Errorf("%s: there is no user's seed in it", path)
	}
	pair.Wipe()
	return nil
}

// reasons logs an error only when it differs from the previous one.
type reasons struct {
	log *slog.Logger

	mu   sync.Mutex
	last string
}

func (r *reasons) note(what string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if text := err.Error(); text != r.last {
		r.last = text
		r.log.Warn(what, "error", err)
	}
}

// WorkerTLS is credentials and trust for workers.
type WorkerTLS struct {
	CA string `flag:"worker-ca-file" help:"PEM authorities of https:// workers, whose certificates must name the URL's host. Empty uses the system's. Read again on change."`
}

// Open reads the files and keeps them up to date in store.
func (w *WorkerTLS) Open(own *Identity, store *certs.Store) (*certs.Source, error) {
	return own.open("workers", "worker-ca-file", w.CA, store)
}
