package edge

import (
	"net"
	"time"

	"github.com/tandem-pd/tandem/internal/listen"
)

// maxAdminConns bounds the connections of the address that administration has for itself.
const maxAdminConns = 64

// listener wraps each connection that a frontend accepts in a conn and knows those that are open.
type listener struct {
	*listen.Listener
	frontend *frontend
	stall    time.Duration
	open     *set[*conn]
}

// bounded has ln go on through shortages and bounds its connections.
func (f *frontend) bounded(ln net.Listener) *listen.Listener {
	limit := f.s.cfg.MaxConnections
	if limit == 0 {
		limit = listen.DefaultMax()
	}
	if !f.serves {
		limit = min(limit, maxAdminConns)
	}
	return listen.New(ln, listen.Config{
		Max: limit, Log: f.s.log,
		Paused:  func(p listen.Pause) { f.s.metrics.pauses.WithLabelValues(string(p)).Inc() },
		Evicted: f.s.metrics.evicted.Inc,
	})
}

// Accept waits for the next client. An event must not wait for the acknowledgement of the one before it, so Nagle's
// algorithm is off; Go's default is the same, but a stream that starts 40 ms late is too dear to leave to a default.
func (l *listener) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	slot := accepted.(*listen.Conn)
	if tcp, ok := slot.Conn.(*net.TCPConn); ok {
		// An error means that the client has gone already: reading shows it.
		_ = tcp.SetNoDelay(true)
		setUserTimeout(tcp, l.stall)
	}
	c := &conn{Conn: slot.Conn, slot: slot, frontend: l.frontend, stall: l.stall}
	c.forget = func(c *conn) {
		l.open.remove(c)
		_ = slot.Close() // c is closed: this makes room for another
	}
	l.open.add(c)
	return c, nil
}
