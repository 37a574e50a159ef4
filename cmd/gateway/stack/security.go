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

// EtcdAccess is credentials and trust for etcd.
type EtcdAccess struct {
	EtcdUser         string `flag:"etcd-user" help:"etcd's user, in place of USER:PASSWORD@ in etcd-endpoints. Needs etcd-password-file."`
	EtcdPasswordFile string `flag:"etcd-password-file" help:"File with the password of etcd-user. Read once."`
	EtcdCA           string `flag:"etcd-ca-file" help:"PEM authorities of etcd's certificate. Empty uses the system's. Read again on change."`
	EtcdCert         string `flag:"etcd-cert-file" help:"PEM client certificate for etcd. Read again on change."`
	EtcdKey          string `flag:"etcd-key-file" help:"PEM private key of etcd-cert-file."`
}

func (a *EtcdAccess) files() certs.Files {
	return certs.Files{
		Use: "etcd", CA: certs.File{Setting: "etcd-ca-file", Path: a.EtcdCA},
		Cert: certs.File{Setting: "etcd-cert-file", Path: a.EtcdCert}, Key: certs.File{Setting: "etcd-key-file", Path: a.EtcdKey},
	}
}

// access reads the files of the settings.
func (a *EtcdAccess) access(endpoints []string, store *certs.Store, log *slog.Logger) (discovery.Access, error) {
	out := discovery.Access{User: a.EtcdUser, Log: log}
	switch {
	case a.EtcdUser != "" && a.EtcdPasswordFile == "":
		return out, setting.Errorf("etcd-password-file",
			"it is missing: etcd-user needs a password; without both, etcd can take the name of etcd-cert-file")
	case a.EtcdUser == "" && a.EtcdPasswordFile != "":
		return out, setting.Errorf("etcd-user", "it is missing: etcd-password-file is a user's")
	case a.EtcdPasswordFile != "":
		var err error
		if out.Password, err = auth.ReadOne(a.EtcdPasswordFile); err != nil {
			return out, setting.Errorf("etcd-password-file", "%w", err)
		}
	}
	if files := a.files(); files.Given() || strings.Contains(strings.Join(endpoints, ","), "https://") {
		source, err := store.Open(files)
		if err != nil {
			return out, err
		}
		out.Trust = source
	}
	return out, nil
}

// NATSAccess is credentials and trust for NATS.
type NATSAccess struct {
	NATSCreds string `flag:"nats-creds" help:"NATS credentials file of nsc, read at every connection. A password goes into nats-url."`
	NATSCA    string `flag:"nats-ca-file" help:"PEM authorities of NATS's certificate; needs TLS. Empty: the system's. Read again on change."`
	NATSCert  string `flag:"nats-cert-file" help:"PEM client certificate for NATS. Read again on change."`
	NATSKey   string `flag:"nats-key-file" help:"PEM private key of nats-cert-file."`
}

// options returns the client options of the settings.
func (a *NATSAccess) options(url string, store *certs.Store, log *slog.Logger) ([]nats.Option, error) {
	files := certs.Files{ // none for the embedded NATS
		Use: "nats", CA: certs.File{Setting: "nats-ca-file", Path: a.NATSCA},
		Cert: certs.File{Setting: "nats-cert-file", Path: a.NATSCert}, Key: certs.File{Setting: "nats-key-file", Path: a.NATSKey},
	}
	source, err := store.Open(files)
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
	}
	if files.Given() || strings.Contains(url, "tls://") || strings.Contains(url, "wss://") {
		options = append(options, nats.ClientTLSConfig(
			func() (tls.Certificate, error) { return source.Pair(), nil },
			func() (*x509.CertPool, error) { return source.Roots(), nil }))
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
	CA   string `flag:"worker-ca-file" help:"PEM authorities of https:// workers. Empty uses the system's. Read again on change."`
	Cert string `flag:"worker-cert-file" help:"PEM client certificate for https:// workers. Read again on change."`
	Key  string `flag:"worker-key-file" help:"PEM private key of worker-cert-file."`
}

// Open reads the files and keeps them up to date in store.
func (w *WorkerTLS) Open(store *certs.Store) (*certs.Source, error) {
	return store.Open(certs.Files{
		Use: "workers", CA: certs.File{Setting: "worker-ca-file", Path: w.CA},
		Cert: certs.File{Setting: "worker-cert-file", Path: w.Cert}, Key: certs.File{Setting: "worker-key-file", Path: w.Key},
	})
}
