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

// pingEvery is the interval of NATS pings. Two unanswered pings end the connection, so that a server behind a dead
// link is detected before workers count as silent for too long.
const pingEvery = 5 * time.Second

// stuck bounds one write to NATS. Publishers wait for it, even the engine itself in its worker: a dead link with full
// buffers must not block them. It suffices for 32 KiB on a slow link.
const stuck = time.Second

// Connect returns the links that are configured, and a func that ends them. Servers may be down: the clients keep
// trying. KV events use stream if it is not nil. Its error is a *setting.Error for a wrong setting. The caller runs
// Links.Certs.Run to reload certificates.
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
		if !conn.IsConnected() { // the client logs later failures, but not the first
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

// dialNATS connects to NATS, with endless retries.
func (d *Discovery) dialNATS(store *certs.Store, log *slog.Logger, options ...nats.Option) (*nats.Conn, error) {
	access, err := d.natsOptions(store, log)
	if err != nil {
		return nil, err
	}
	options = append(append(access, options...), nats.MaxReconnects(-1), nats.RetryOnFailedConnect(true),
		nats.ReconnectWait(time.Second), nats.PingInterval(pingEvery), nats.MaxPingsOutstanding(2), nats.FlusherTimeout(stuck),
		nats.ReconnectOnFlusherError(), natsbus.DialInBackground())
	conn, err := nats.Connect(d.NATSURL, options...)
	if err != nil {
		return nil, fmt.Errorf("nats-url: %w", err)
	}
	return conn, nil
}

func (d *Discovery) natsOptions(store *certs.Store, log *slog.Logger) ([]nats.Option, error) {
	if d.inside == nil {
		return d.NATSAccess.options(d.NATSURL, store, log)
	}
	if !d.inside.Secured() {
		return nil, nil
	}
	return []nats.Option{nats.UserInfo(embedUser, d.inside.password), nats.Secure(d.inside.trust.Trust.Client())}, nil
}

func (d *Discovery) etcdAccess(store *certs.Store, log *slog.Logger) (discovery.Access, error) {
	if d.inside != nil && d.inside.etcd != nil {
		return d.inside.trust, nil
	}
	return d.EtcdAccess.access(d.EtcdEndpoints, &d.Identity, store, log)
}

// watched returns options that log disconnects, reconnects and errors of NATS, which the client would print to
// standard error. Addresses are redacted.
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

// withoutUsers returns addresses separated by commas, without user and password.
func withoutUsers(addresses string) string {
	list := strings.Split(addresses, ",")
	for i, a := range list {
		list[i] = strings.TrimSpace(a[strings.LastIndexByte(a, '@')+1:])
	}
	return strings.Join(list, ",")
}
