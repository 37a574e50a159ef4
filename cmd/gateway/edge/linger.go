package edge

import (
	"net"
	"time"

	"github.com/tandem-pd/tandem/internal/http1"
)

// lingerTime bounds how long a connection closed by the server is drained, so that a client that is still sending can
// read the answer.
const lingerTime = 5 * time.Second

// lingerFor makes Close drain up to n bytes within lingerTime: closing a socket with unread bytes resets the
// connection, and the client may lose the answer.
func (c *conn) lingerFor(n int64) { c.drain.Store(n) }

// linger closes the sending side and reads up to n bytes.
func (c *conn) linger(n int64) {
	if c.Conn.SetReadDeadline(time.Now().Add(lingerTime)) == nil {
		drain(c.Conn, n)
	}
}

// drainBytes is the size of one read that drains.
const drainBytes = 32 << 10

// drain closes the sending side and reads up to n bytes.
func drain(nc net.Conn, n int64) {
	if h, ok := nc.(interface{ CloseWrite() error }); ok && h.CloseWrite() != nil {
		return
	}
	b := http1.Take(drainBytes)
	defer b.Release()
	for n > 0 {
		m, err := nc.Read(b.B[:drainBytes])
		if err != nil {
			return
		}
		n -= int64(m)
	}
}
