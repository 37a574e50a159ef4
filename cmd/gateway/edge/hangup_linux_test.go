package edge

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/handoff"
)

// TestPipeliningClientsAreSeenToLeave: a client that leaves before its answer is noticed in every way that there is, also one
// that sent a stray line end, or more than the watcher reads; and nothing more is written to it.
func TestPipeliningClientsAreSeenToLeave(t *testing.T) {
	for name, leave := range map[string]func(*net.TCPConn){
		"close":      func(c *net.TCPConn) { c.Close() },
		"reset":      func(c *net.TCPConn) { c.SetLinger(0); c.Close() },
		"half close": func(c *net.TCPConn) { c.CloseWrite() },
	} {
		const stash = 64 // of http1's watcher
		for _, early := range []string{"", "\r\n", strings.Repeat("x", stash), strings.Repeat("x", stash+1),
			strings.Repeat("x", 20_000)} {
			begun, ended := make(chan struct{}), make(chan error, 2)
			sv := serve(t, loopback(t), func(ctx context.Context, _ *handoff.Call, out handoff.Sink) error {
				close(begun)
				<-ctx.Done()
				ended <- context.Cause(ctx)
				out.Start("application/json")
				ended <- out.Write(make([]byte, 1<<20))
				return ctx.Err()
			})
			c := sv.dial()
			c.send(post(streamBody))
			<-begun
			c.send(early)
			conn := sv.main.server.Conns.All()[0]
			leave(c.Conn.(*net.TCPConn))
			select {
			case cause := <-ended:
				assert.ErrorIs(t, cause, fault.ErrClientGone, "%s after %d bytes", name, len(early))
				assert.ErrorIs(t, <-ended, fault.ErrClientGone, "writing after a %s", name)
			case <-time.After(10 * time.Second):
				conn.Cut()
				t.Fatalf("%s after %d bytes: not seen", name, len(early))
			}
		}
	}
}

// TestSocketOptions reads back what an accepted socket was set to.
func TestSocketOptions(t *testing.T) {
	sv := serve(t, loopback(t), answerJSON, func(c *Config) { c.Loops = nil })
	c := sv.dial()
	c.send("GET /live HTTP/1.1\r\nHost: t\r\n\r\n")
	c.receive()
	raw, err := sv.main.server.Conns.All()[0].Conn.(*net.TCPConn).SyscallConn()
	require.NoError(t, err)
	for option, want := range map[int]int{unix.TCP_NODELAY: 1, unix.TCP_USER_TIMEOUT: int(sv.cfg.WriteStall.Milliseconds())} {
		assert.NoError(t, raw.Control(func(fd uintptr) {
			got, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, option)
			assert.NoError(t, err)
			assert.Equal(t, want, got, "option %d", option)
		}))
	}
}
