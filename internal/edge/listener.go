package edge

import (
	"net"
	"time"
)

// listener wraps each connection that a face accepts in a conn and knows those
// that are open.
type listener struct {
	net.Listener
	face  *face
	stall time.Duration
	open  *set[*conn]
}

// Accept waits for the next client. An event must not wait for the
// acknowledgement of the one before it, so Nagle's algorithm is off; Go's
// default is the same, but a stream that starts 40 ms late is too dear to
// leave to a default.
func (l *listener) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if tcp, ok := nc.(*net.TCPConn); ok {
		// An error means that the client has gone already: reading shows it.
		_ = tcp.SetNoDelay(true)
		setUserTimeout(tcp, l.stall)
	}
	c := &conn{Conn: nc, face: l.face, stall: l.stall, forget: l.open.Remove}
	l.open.Add(c)
	return c, nil
}
