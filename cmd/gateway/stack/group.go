package stack

import (
	"cmp"
	"errors"
	"log/slog"
	"net"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tandem-pd/tandem/internal/certs"
	"github.com/tandem-pd/tandem/internal/natsbus"
	"github.com/tandem-pd/tandem/router/replica"
)

// Group is the connection for what gateways share. It is separate from KV events, whose bursts would delay bookings,
// and does not receive its own messages.
type Group struct {
	replica.Link
	conn  *nats.Conn
	peers []string // HOST:PORT of known gateways
}

// JoinGroup connects to NATS, which may be down. It logs at most once a minute that NATS refuses a subject.
func JoinGroup(d *Discovery, store *certs.Store, log *slog.Logger) (*Group, error) {
	var refused time.Time
	conn, err := d.dialNATS(store, log, nats.Name("tandem gateway, its group"), nats.NoEcho(), nats.ReconnectBufSize(-1),
		nats.DisconnectErrHandler(func(*nats.Conn, error) {}), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			if errors.Is(err, nats.ErrPermissionViolation) && time.Since(refused) >= time.Minute {
				refused = time.Now()
				log.Error("NATS refuses a subject of the gateway's group; its permissions must name this gateway (docs/security.md)",
					"error", err)
			}
		}))
	if err != nil {
		return nil, err
	}
	g := &Group{Link: natsbus.OverNATS(conn, natsbus.PendingLimits{}, log), conn: conn}
	if d.inside != nil {
		g.peers = d.inside.peers
	}
	return g, nil
}

// Close flushes and ends the connection.
func (g *Group) Close() {
	if g != nil {
		g.conn.Close()
	}
}

// IP returns this machine's address as seen by NATS, empty while unknown. If NATS sees the loopback, it is the
// address by which this machine reaches the others.
func (g *Group) IP() string {
	ip, err := g.conn.GetClientIP()
	if err != nil {
		return ""
	}
	if ip.IsLoopback() {
		return cmp.Or(outward(g.peers), ip.String())
	}
	return ip.String()
}

// outward returns this machine's address on the route to the first of peers with a non-loopback address, or on the
// default route; empty without one. It sends nothing and resolves no names.
func outward(peers []string) string {
	var to []string
	for _, peer := range peers {
		host, _, err := net.SplitHostPort(peer)
		if ip := net.ParseIP(host); err == nil && ip != nil && !ip.IsLoopback() {
			to = append(to, peer)
		}
	}
	for _, addr := range append(to, "192.0.2.1:9", "[2001:db8::1]:9") { // reserved for documentation
		conn, err := net.Dial("udp", addr)
		if err != nil {
			continue
		}
		own, ok := conn.LocalAddr().(*net.UDPAddr)
		_ = conn.Close()
		if ok && !own.IP.IsLoopback() {
			return own.IP.String()
		}
	}
	return ""
}
