package edge

import (
	"net"
	"time"

	"github.com/tandem-pd/tandem/internal/listen"
	"github.com/tandem-pd/tandem/internal/loop"
)

// maxAdminConns bounds the connections of the address that administration has for itself.
const maxAdminConns = 64

// prepared sets the options of each connection that is accepted, and leaves it to a loop, where there are any.
type prepared struct {
	net.Listener
	loops *loop.Loops
	stall time.Duration
}

// Accept waits for the next client. An event must not wait for the acknowledgement of the one before it, so Nagle's
// algorithm is off; Go's default is the same, but a stream that starts 40 ms late is too dear to leave to a default.
func (l prepared) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if tcp, ok := c.(*net.TCPConn); ok {
		// An error means that the client has gone already: reading shows it.
		_ = tcp.SetNoDelay(true)
		setUserTimeout(tcp, l.stall)
	}
	return l.loops.Take(c), nil
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
	loops := f.s.cfg.Loops
	loops.Watch(ln)
	if f.tls != nil {
		loops = nil // a loop reads and writes the socket, TLS goes through a goroutine
	}
	return listen.New(prepared{ln, loops, f.s.cfg.WriteStall}, listen.Config{
		Max: limit, Log: f.s.log,
		Paused:  func(p listen.Pause) { f.s.metrics.pauses.WithLabelValues(string(p)).Inc() },
		Evicted: f.s.metrics.evicted.Inc,
	})
}
