package edge

import (
	"net"
	"time"

	"github.com/tandem-pd/tandem/internal/http1"
)

// maxAdminConns bounds the connections of the admin address.
const maxAdminConns = 64

// prepared sets the options of accepted connections and hands them to a loop, if there are any.
type prepared struct {
	net.Listener
	loops *http1.Loops
	stall time.Duration
}

// Accept waits for the next client. It turns Nagle's algorithm off explicitly: an event must not wait for the
// acknowledgement of the one before it.
func (l prepared) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if tcp, ok := c.(*net.TCPConn); ok {
		// On an error the client is gone, which reading shows.
		_ = tcp.SetNoDelay(true)
		setUserTimeout(tcp, l.stall)
	}
	return l.loops.Take(c), nil
}

// bounded makes ln survive shortages and limits its connections.
func (f *frontend) bounded(ln net.Listener) *http1.Listener {
	limit := f.s.cfg.MaxConnections
	if limit == 0 {
		limit = http1.DefaultMaxConns()
	}
	if !f.serves {
		limit = min(limit, maxAdminConns)
	}
	loops := f.s.cfg.Loops
	loops.Watch(ln)
	if f.tls != nil {
		loops = nil // loops use the raw socket, TLS needs a goroutine
	}
	return http1.NewListener(prepared{ln, loops, f.s.cfg.WriteStall}, http1.ListenConfig{
		Max: limit, Log: f.s.log,
		Paused:  func(p http1.Pause) { f.s.metrics.connections.WithLabelValues(string(p)).Inc() },
		Evicted: f.s.metrics.connections.WithLabelValues(idleClosed).Inc,
	})
}
