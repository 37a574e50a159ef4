package upstream

import (
	"crypto/tls"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/tandem-pd/tandem/internal/loop"
)

// conn is a connection to a worker. It carries one call at a time, or lies idle in its pool.
type conn struct {
	net.Conn             // what is written to and read from: TLS where there is TLS
	under    net.Conn    // what is closed; the same without TLS
	socket   loop.Socket // the same, where it is kept in a loop; nil otherwise
	pool     *pool
	dialed   time.Time
	since    time.Time // idle since
	carried  bool      // a whole call already
	closed   atomic.Bool
	outside  func() // the loops forget it; nil without TLS

	raw   syscall.RawConn // nil where the network has none
	look  func(fd uintptr) bool
	alive bool // what look saw
}

func newConn(c net.Conn, p *pool) *conn {
	out := &conn{Conn: c, under: c, pool: p}
	if t, ok := c.(*tls.Conn); ok {
		out.under = t.NetConn()
	}
	out.socket, _ = c.(loop.Socket)
	if s, ok := out.under.(syscall.Conn); ok {
		if raw, err := s.SyscallConn(); err == nil {
			out.raw, out.look = raw, func(fd uintptr) bool {
				out.alive = quiet(fd)
				return true
			}
		}
	}
	return out
}

// sound says whether an idle connection may carry a call: the worker has neither closed it nor sent anything. It asks
// the loop or the kernel, and does not wait. Where neither can be asked, it is believed to be sound.
func (c *conn) sound() bool {
	if c.socket != nil {
		return c.socket.Quiet()
	}
	if c.raw == nil {
		return true
	}
	c.alive = false
	return c.raw.Read(c.look) == nil && c.alive
}

// halfClose closes the sending side. It may take as long as a write.
func (c *conn) halfClose() bool {
	half, ok := c.Conn.(interface{ CloseWrite() error })
	return ok && half.CloseWrite() == nil
}

// cut closes the connection at once, in both directions; on TLS without a
// farewell, for which it might have to wait. It may be called more than once.
func (c *conn) cut() {
	if c.closed.CompareAndSwap(false, true) {
		c.pool.gone() // before anyone whom the end wakes up asks
		if c.outside != nil {
			c.outside()
		}
		_ = c.under.Close() // whatever it says, the connection is gone
	}
}
