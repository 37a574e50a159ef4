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
	"github.com/tandem-pd/tandem/router/replica/member"
)

// Group is a connection for what gateways share. It is apart from that of the KV events, behind whose bursts bookings would
// wait, and hears none of its own words.
type Group struct {
	member.Link
	conn  *nats.Conn
	peers []string // HOST:PORT of other gateways, where they are known
}

// JoinGroup connects to NATS, which need not be there yet. That NATS refuses a subject is logged at most once a minute.
func JoinGroup(d *Discovery, store *certs.Store, log *slog.Logger) (*Group, error) {
	var refused time.Time
	conn, err := d.dialNATS(store, log, nats.Name("tandem gateway, its group"), nats.NoEcho(), nats.ReconnectBufSize(-1),
		nats.DisconnectErrHandler(func(*nats.Conn, error) {}), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			if errors.Is(err, nats.ErrPermissionViolation) && time.Since(refused) >= time.Minute {
				refused = time.Now()
				log.Error("NATS refuses a subject of the gateway's group; its permissions must name this gateway (docs/security.md)", "error", err)
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

// Close ends the connection, once what was sent is on its way.
func (g *Group) Close() {
	if g != nil {
		g.conn.Close()
	}
}

// IP is this machine's address as NATS sees it, empty while that is not known. A NATS on this machine, such as the one inside, sees the
// loopback: then it is the address from which this machine reaches the others.
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

// outward is the address of this machine on its way to others: to the first of peers that is an address and not the loopback, or, of
// names, on the default route. It asks the system for the route, sends nothing, and looks no name up. Empty: there is no way.
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
