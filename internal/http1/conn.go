package http1

import (
	"crypto/tls"
	"net"
	"sync/atomic"
	"syscall"
	"time"
)

// conn is a connection to a worker. It carries one call at a time, or is idle in its pool.
type conn struct {
	net.Conn          // for reads and writes, over TLS if used
	under    net.Conn // the TCP connection; the same without TLS
	socket   Socket   // the same in a loop, else nil
	pool     *pool
	dialed   time.Time
	since    time.Time // of idleness
	carried  bool      // it has completed a call
	closed   atomic.Bool
	outside  func() // removes it from the loops' count; nil without TLS
}

func newConn(c net.Conn, p *pool) *conn {
	out := &conn{Conn: c, under: c, pool: p}
	if t, ok := c.(*tls.Conn); ok {
		out.under = t.NetConn()
	}
	out.socket, _ = c.(Socket)
	return out
}

// sound reports whether an idle connection can carry a call: the worker has neither closed it nor sent anything. It checks the
// loop or the kernel, without waiting; a connection that neither can check counts as sound.
func (c *conn) sound() bool {
	if c.socket != nil {
		return c.socket.Quiet()
	}
	under, ok := c.under.(syscall.Conn)
	if !ok {
		return true
	}
	raw, err := under.SyscallConn()
	alive := false
	return err == nil && raw.Read(func(fd uintptr) bool {
		alive = quiet(fd)
		return true
	}) == nil && alive
}

// halfClose closes the sending side. It may take as long as a write.
func (c *conn) halfClose() bool {
	half, ok := c.Conn.(interface{ CloseWrite() error })
	return ok && half.CloseWrite() == nil
}

// cut closes the connection at once, in both directions; on TLS without close_notify, which might block. It may be
// called more than once.
func (c *conn) cut() {
	if c.closed.CompareAndSwap(false, true) {
		c.pool.gone() // before a goroutine that the close wakes checks
		if c.outside != nil {
			c.outside()
		}
		_ = c.under.Close() // closed in any case
	}
}
