package edge

import (
	"net"
	"syscall"
	"time"
)

// tcpUserTimeout is Linux's TCP_USER_TIMEOUT (tcp(7)), which package syscall
// does not name.
const tcpUserTimeout = 18

// setUserTimeout makes the kernel give a connection up when what was sent on
// it stays unacknowledged for d: a peer that vanished without a word is then
// noticed at the next heartbeat instead of after some fifteen minutes of
// retransmission.
func setUserTimeout(c *net.TCPConn, d time.Duration) {
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	// Best effort: without it the peer is noticed later.
	_ = raw.Control(func(fd uintptr) {
		_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, int(d.Milliseconds()))
	})
}
