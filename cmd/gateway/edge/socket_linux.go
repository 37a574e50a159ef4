package edge

import (
	"errors"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// awaitHangup waits until the client closes its side, whole or half, or the connection breaks, and leaves unread what
// the client sent. It returns nil then, os.ErrDeadlineExceeded at the read deadline, and errors.ErrUnsupported where
// the connection is no socket. A client that has filled the kernel's buffers is not seen to close: its end waits
// behind its bytes.
func awaitHangup(c net.Conn) error {
	socket, ok := c.(syscall.Conn)
	if !ok {
		return errors.ErrUnsupported
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	// The runtime wakes a reader at each arrival, that of the end included.
	return raw.Read(func(fd uintptr) bool {
		p := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(p[:], 0)
		return err == nil && n > 0
	})
}

// setUserTimeout makes the kernel give a connection up when what was sent on it stays unacknowledged for d: a peer
// that vanished is then noticed at the next keep-alive probe or write instead of after some fifteen minutes of
// retransmission.
func setUserTimeout(c *net.TCPConn, d time.Duration) {
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	// Best effort: without it the peer is noticed later.
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
	})
}
