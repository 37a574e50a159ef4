package stack

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/tandem-pd/tandem/cmd/gateway/edge"
	"github.com/tandem-pd/tandem/internal/auth"
	"github.com/tandem-pd/tandem/internal/certs"
	"github.com/tandem-pd/tandem/internal/guard"
	"github.com/tandem-pd/tandem/internal/natsbus"
	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/pools/discovery"
)

// EmbedConfig is how the embedded servers run.
type EmbedConfig struct {
	Listen       string   `flag:"embed-listen" form:"host" help:"Address of an etcd and a NATS inside the gateway. Empty runs them on 127.0.0.1, but only where no etcd, NATS, worker URL or kubernetes-selector is given. Other than loopback needs tls-cert-file and embed-password-file."`
	PasswordFile string   `flag:"embed-password-file" help:"File with the password of user tandem in the embedded etcd and NATS. Needs tls-cert-file. Read once."`
	Dir          string   `flag:"embed-dir" help:"Directory of the embedded etcd and NATS. Empty uses a temporary one: cordons, thresholds and the event stream end with the gateway."`
	Ports        string   `flag:"embed-ports" default:"2379,4222,6222" help:"Ports of the embedded etcd, of the embedded NATS and of NATS for replica-peers. 0 picks a free one at every start; workers then do not find a restarted gateway."`
	Peers        []string `flag:"replica-peers" form:"hostport" group:"Replicas" help:"HOST:PORT, or a headless Service, of the other gateways' embedded NATS, which then form one. Needs embed-listen, one tls-cert-file for all, embed-password-file."`
	JetStream    bool     // NATS keeps streams
	OnlyNATS     bool     // no etcd

	// TLS is the gateway's own certificate, which both use with a PasswordFile.
	TLS *edge.TLS
	// Log logs certificate errors; it may be nil.
	Log *slog.Logger
}

const embedUser = "tandem"

// Validate returns what is missing to protect the servers.
func (c *EmbedConfig) Validate() error {
	own := edge.TLS{}
	if c.TLS != nil {
		own = *c.TLS
	}
	var missing []string
	for _, f := range []struct{ flag, value string }{
		{"tls-cert-file", own.CertFile}, {"tls-key-file", own.KeyFile}, {"embed-password-file", c.PasswordFile},
	} {
		if f.value == "" {
			missing = append(missing, f.flag)
		}
	}
	switch {
	case len(missing) == 0:
		return nil
	case c.Listen != "" && !auth.Loopback(c.Listen):
		return setting.Errorf("embed-listen", "other machines reach %s: give %s too, or leave etcd and NATS on the loopback",
			c.Listen, strings.Join(missing, ", "))
	case c.PasswordFile != "":
		return setting.Errorf("embed-password-file", "a password must not pass without TLS: give %s too", strings.Join(missing, ", "))
	}
	return nil
}

// ports are those of etcd, NATS and NATS's routes; all 0 where none is given.
func (c *EmbedConfig) ports() (ports [3]int, err error) {
	texts := strings.Split(cmp.Or(c.Ports, "0,0,0"), ",")
	if len(texts) != len(ports) {
		err = strconv.ErrSyntax
	}
	for i := 0; err == nil && i < len(ports); i++ {
		var n uint64
		n, err = strconv.ParseUint(texts[i], 10, 16)
		ports[i] = int(n)
	}
	if err != nil {
		return ports, setting.Errorf("embed-ports", "%q are not three ports, as 2379,4222,6222", c.Ports)
	}
	if c.OnlyNATS {
		ports[1] = 0 // only this process is its client
	}
	return ports, nil
}

// Embedded is an etcd and a NATS inside the process.
type Embedded struct {
	etcd     *discovery.EmbeddedEtcd
	nats     *natsbus.Server
	certs    *certs.Store   // nil without TLS
	copied   *guard.TempDir // etcd's copy of the certificate and its key; nil without
	trust    discovery.Access
	password string
	peers    []string
}

// Embed starts both at once, since etcd takes a while. With a PasswordFile they require its password, over TLS.
func Embed(cfg EmbedConfig) (*Embedded, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	e := &Embedded{peers: cfg.Peers}
	ports, err := cfg.ports()
	if err != nil {
		return nil, err
	}
	etcd, bus := discovery.EtcdConfig{Dir: cfg.Dir, Host: cfg.Listen, Port: ports[0], Sync: cfg.Dir != ""},
		natsbus.ServerConfig{Host: cfg.Listen, Port: ports[1], JetStream: cfg.JetStream}
	if cfg.PasswordFile != "" {
		if err := e.protect(&cfg, &etcd, &bus); err != nil {
			e.Close()
			return nil, err
		}
	}
	if len(cfg.Peers) > 0 {
		bus.Routes = &natsbus.Routes{Port: ports[2], Peers: cfg.Peers}
		if e.certs != nil {
			bus.Routes.TLS = e.trust.Trust.(itself).PeerConfig()
		}
	}
	var starting errgroup.Group
	starting.Go(func() (err error) {
		if cfg.OnlyNATS {
			return nil
		}
		e.etcd, err = discovery.StartEtcd(etcd)
		return named(err)
	})
	if cfg.Dir != "" {
		bus.Dir = filepath.Join(cfg.Dir, "nats")
	}
	nats, err := natsbus.StartServer(bus)
	e.nats = nats
	if err := errors.Join(named(err), starting.Wait()); err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

// named blames the setting for a port that is taken; a server may fail to start for other reasons.
func named(err error) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("embed-ports: %w", err)
	}
	return err
}

// protect makes both servers require the password, over TLS.
func (e *Embedded) protect(cfg *EmbedConfig, etcd *discovery.EtcdConfig, bus *natsbus.ServerConfig) error {
	log := cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	var err error
	if e.password, err = auth.ReadOne(cfg.PasswordFile); err != nil {
		return setting.Errorf("embed-password-file", "%w", err)
	}
	e.certs = certs.NewStore(0, log)
	files := cfg.TLS.Files("embed")
	source, err := e.certs.Open(files)
	if err != nil {
		return err
	}
	if !cfg.OnlyNATS { // etcd reads files at each handshake: it gets copies of the latest consistent pair
		if e.copied, err = guard.NewTempDir("certs"); err != nil {
			return err
		}
		etcd.CertFile = filepath.Join(e.copied.Path(), "tls.pem")
		if err := e.certs.Keep(source, etcd.CertFile); err != nil {
			return fmt.Errorf("a copy of the certificate: %w", err)
		}
		etcd.KeyFile, etcd.User, etcd.Password = etcd.CertFile, embedUser, e.password
	}
	bus.TLS, bus.User, bus.Password = source.Server(nil), embedUser, e.password
	e.trust = discovery.Access{User: embedUser, Password: e.password, Trust: itself{source, source.ServerConfig()}, Log: log}
	return nil
}

// itself is an [http1.Trust] for servers in this process.
type itself struct {
	*certs.Source
	config *tls.Config
}

func (i itself) Client() *tls.Config { return i.config }

// Secured reports whether both require a password, over TLS.
func (e *Embedded) Secured() bool { return e != nil && e.certs != nil }

// Join points d to the embedded servers.
func (e *Embedded) Join(d *Discovery) {
	d.NATSURL, d.inside = e.NATSURL(), e
	if e.etcd != nil {
		d.EtcdEndpoints = []string{e.EtcdURL()}
	}
}

// EtcdURL returns the URL for etcd's clients.
func (e *Embedded) EtcdURL() string { return e.etcd.URL() }

// NATSURL returns the URL for NATS's clients.
func (e *Embedded) NATSURL() string { return e.nats.URL() }

// Close ends both. Close clients first.
func (e *Embedded) Close() {
	if e.etcd != nil {
		e.etcd.Close()
	}
	if e.nats != nil {
		e.nats.Close()
	}
	if e.copied != nil {
		e.copied.Remove()
	}
}
