package edge

import (
	"net"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestSocketOptions reads back what an accepted socket was set to.
func TestSocketOptions(t *testing.T) {
	sv := serve(t, loopback(t), answerJSON, func(c *Config) { c.Loops = nil })
	c := sv.dial()
	c.send("GET /live HTTP/1.1\r\nHost: t\r\n\r\n")
	c.receive()
	raw, err := sv.main.conns.all()[0].Conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for _, opt := range []struct {
		name         string
		number, want int
	}{
		{"TCP_NODELAY", syscall.TCP_NODELAY, 1},
		{"TCP_USER_TIMEOUT", unix.TCP_USER_TIMEOUT, int(sv.cfg.WriteStall.Milliseconds())},
	} {
		var got int
		var optErr error
		if err := raw.Control(func(fd uintptr) {
			got, optErr = syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, opt.number)
		}); err != nil || optErr != nil {
			t.Fatal(err, optErr)
		}
		if got != opt.want {
			t.Errorf("%s is %d, want %d", opt.name, got, opt.want)
		}
	}
}
