package stack

import (
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tandem-pd/tandem/internal/certs"
	"github.com/tandem-pd/tandem/internal/natsbus"
	"github.com/tandem-pd/tandem/pools/discovery"
)

// pingEvery is how often NATS is asked whether it is there. Two questions without an answer end the connection, so
// that a server behind a dead link is known to be away before workers are taken for silent too long.
const pingEvery = 5 * time.Second

// stuck is how long one write to NATS may take. Whatever publishes waits for it, in an engine's worker the engine itself:
// a dead link whose buffers are full must not hold it up. Longer than a link that is only slow needs for 32 KiB.
const stuck = time.Second

// Connect makes the links that were named, and a func that ends them. Neither server need be there yet: both clients
// go on trying. KV events go through stream unless it is nil. Its error is a *setting.Error where a setting is wrong.
// The certificates of Links.Certs are read again by its Run, which is the caller's to call.
func Connect(d *Discovery, stream *natsbus.StreamConfig, log *slog.Logger, name nats.Option) (Links, func(), error) {
	links := Links{Certs: certs.NewStore(0, log)}
	if d.inside.Secured() {
		links.Certs = d.inside.certs
	}
	var conn *nats.Conn
	var kept *natsbus.Stream
	unlink := func() {
		if kept != nil {
			kept.Close()
		}
		if conn != nil {
			conn.Close()
		}
		if links.Etcd != nil {
			_ = links.Etcd.Close()
		}
	}
	var err error
	if d.NATSURL != "" {
		if conn, err = d.dialNATS(links.Certs, log, append(watched(log), name)...); err != nil {
			return links, unlink, err
		}
		if !conn.IsConnected() { // the client says so later on, but not of its first attempt
			log.Warn("NATS unreachable; retrying", "servers", withoutUsers(d.NATSURL))
		}
		links.Bus = natsbus.OverNATS(conn, natsbus.PendingLimits{}, log)
		if stream != nil {
			if kept, err = natsbus.OverStream(conn, *stream, natsbus.PendingLimits{}, log); err != nil {
				unlink()
				return Links{}, func() {}, err
			}
			links.Bus = kept
		}
	}
	if len(d.EtcdEndpoints) > 0 {
		access, err := d.etcdAccess(links.Certs, log)
		if err == nil {
			links.Etcd, err = discovery.Dial(d.EtcdEndpoints, access)
		}
		if err != nil {
			unlink()
			return Links{}, func() {}, err
		}
	}
	return links, unlink, nil
}

// dialNATS makes a connection that goes on trying.
func (d *Discovery) dialNATS(store *certs.Store, log *slog.Logger, options ...nats.Option) (*nats.Conn, error) {
	access, err := d.natsOptions(store, log)
	if err != nil {
		return nil, err
	}
	conn, err := nats.Connect(d.NATSURL, append(append(access, options...), nats.MaxReconnects(-1), nats.RetryOnFailedConnect(true), nats.ReconnectWait(time.Second),
		nats.PingInterval(pingEvery), nats.MaxPingsOutstanding(2), nats.FlusherTimeout(stuck), nats.ReconnectOnFlusherError(), natsbus.DialInBackground())...)
	if err != nil {
		return nil, fmt.Errorf("nats-url: %w", err)
	}
	return conn, nil
}

// natsOptions are those by which NATS is reached.
func (d *Discovery) natsOptions(store *certs.Store, log *slog.Logger) ([]nats.Option, error) {
	if d.inside == nil {
		return d.NATSAccess.options(d.NATSURL, store, log)
	}
	if !d.inside.Secured() {
		return nil, nil
	}
	return []nats.Option{nats.UserInfo(embedUser, d.inside.password), nats.Secure(d.inside.trust.Trust.Client())}, nil
}

// etcdAccess is how etcd is reached.
func (d *Discovery) etcdAccess(store *certs.Store, log *slog.Logger) (discovery.Access, error) {
	if d.inside != nil && d.inside.etcd != nil {
		return d.inside.trust, nil
	}
	return d.EtcdAccess.access(d.EtcdEndpoints, store, log)
}

// watched are the options that log when the connection to NATS breaks and returns, and its errors, which the client
// would otherwise print to standard error. Addresses are left out where they carry a password.
func watched(log *slog.Logger) []nats.Option {
	return []nats.Option{
		nats.ConnectHandler(func(c *nats.Conn) { log.Info("NATS connected", "url", c.ConnectedUrlRedacted()) }),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil { // nil: we closed it
				log.Warn("NATS disconnected; routing continues with the last known state", "error", err)
			}
		}),
		nats.ReconnectHandler(func(c *nats.Conn) { log.Info("NATS reconnected", "url", c.ConnectedUrlRedacted()) }),
		nats.ErrorHandler(func(_ *nats.Conn, s *nats.Subscription, err error) {
			subject := ""
			if s != nil {
				subject = s.Subject
			}
			log.Warn("NATS error", "subject", subject, "error", err)
		}),
	}
}

// withoutUsers is addresses separated by commas, without what stands before their @.
func withoutUsers(addresses string) string {
	list := strings.Split(addresses, ",")
	for i, a := range list {
		list[i] = strings.TrimSpace(a[strings.LastIndexByte(a, '@')+1:])
	}
	return strings.Join(list, ",")
}
