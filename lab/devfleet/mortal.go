package devfleet

import "net"

// mortalListener is a listener whose connections carry nothing more once dead is closed: handlers that end because a
// worker is cut must not answer in the time that its servers take to close.
type mortalListener struct {
	net.Listener
	dead <-chan struct{}
}

func (l mortalListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return mortalConn{c, l.dead}, nil
}

type mortalConn struct {
	net.Conn
	dead <-chan struct{}
}

func (c mortalConn) Write(p []byte) (int, error) {
	select {
	case <-c.dead:
		return 0, net.ErrClosed
	default:
		return c.Conn.Write(p)
	}
}

// CloseWrite lets net/http end a connection whose client may still send.
func (c mortalConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}
