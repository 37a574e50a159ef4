package edge

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/handoff"
)

// TestPipeliningClientsAreSeenToLeave: a client that sent more than the watcher
// takes in, and leaves before its answer, is noticed all the same.
func TestPipeliningClientsAreSeenToLeave(t *testing.T) {
	for name, leave := range map[string]func(*net.TCPConn){
		"close":      func(c *net.TCPConn) { c.Close() },
		"reset":      func(c *net.TCPConn) { c.SetLinger(0); c.Close() },
		"half close": func(c *net.TCPConn) { c.CloseWrite() },
	} {
		for _, size := range []int{stashBytes, stashBytes + 1, 20_000} {
			begun, ended := make(chan struct{}), make(chan error, 1)
			sv := serve(t, loopback(t), func(ctx context.Context, _ handoff.Call, _ handoff.Sink) error {
				close(begun)
				<-ctx.Done()
				ended <- context.Cause(ctx)
				return ctx.Err()
			})
			c := sv.dial()
			c.send(post(streamBody))
			<-begun
			c.send(strings.Repeat("x", size))
			conn := sv.main.conns.all()[0]
			leave(c.Conn.(*net.TCPConn))
			select {
			case cause := <-ended:
				if !errors.Is(cause, fault.ErrClientGone) {
					t.Errorf("%s after %d bytes: %v", name, size, cause)
				}
			case <-time.After(10 * time.Second):
				conn.cut()
				t.Fatalf("%s after %d bytes: not seen", name, size)
			}
		}
	}
}

// TestPipelinedBytesSurviveTheWatch: a client that stays gets an answer to each
// of many requests that it sent while the first ran.
func TestPipelinedBytesSurviveTheWatch(t *testing.T) {
	const requests = 50
	begun, release := make(chan struct{}, requests+1), make(chan struct{})
	sv := serve(t, loopback(t), func(ctx context.Context, c handoff.Call, out handoff.Sink) error {
		begun <- struct{}{}
		<-release
		return answerJSON(ctx, c, out)
	})
	c := sv.dial()
	c.send(post(goodBody))
	<-begun
	for range requests { // each wakes the watcher
		c.send(post(goodBody))
	}
	close(release)
	for range requests + 1 {
		resp := c.head()
		if body, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != 200 {
			t.Fatalf("status %d, %v: %s", resp.StatusCode, err, body)
		}
	}
}
