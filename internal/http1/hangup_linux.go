package http1

import (
	"errors"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// awaitHangup waits until the client closes its side, whole or half, or the connection breaks, without reading. It
// returns nil then, os.ErrDeadlineExceeded at the read deadline, and errors.ErrUnsupported if c is not a socket. It
// cannot detect the close of a client that has filled the kernel's buffers.
func awaitHangup(c net.Conn) error {
	socket, ok := c.(syscall.Conn)
	if !ok {
		return errors.ErrUnsupported
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	// The runtime wakes a reader at each arrival, including the end.
	return raw.Read(func(fd uintptr) bool {
		p := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(p[:], 0)
		return err == nil && n > 0
	})
}

// setUserTimeout makes the kernel drop a connection with bytes unacknowledged for d: a vanished peer is then detected
// at the next keep-alive probe or write, not after fifteen minutes of retransmission.
func setUserTimeout(c *net.TCPConn, d time.Duration) {
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	// Best effort: otherwise the peer is detected later.
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
	})
}
