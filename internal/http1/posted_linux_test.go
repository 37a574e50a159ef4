package http1

import (
	"io"
	"net"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestPostedCallsOutliveTheirConnections has many calls answered at one moment and, in the loop's same turn, as many
// made on the connections that they leave: those are posted, and the worker ends each connection in place of a second
// answer, before the request or with it. Every call is made again on a new connection.
func TestPostedCallsOutliveTheirConnections(t *testing.T) {
	for name, reads := range map[string]bool{"before the request": false, "with it": true} {
		t.Run(name, func(t *testing.T) {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
			const calls = 64
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			var served, together sync.WaitGroup
			together.Add(calls)
			worker := func(c *net.TCPConn, n int) {
				defer c.Close()
				request := make([]byte, 4<<10)
				if _, err := c.Read(request); err != nil {
					return
				}
				if n < calls {
					together.Done()
					together.Wait()
				}
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
				if n >= calls || reads {
					_, _ = c.Read(request)
				}
			}
			served.Go(func() {
				for n := 0; ; n++ {
					c, err := ln.Accept()
					if err != nil {
						return
					}
					served.Go(func() { worker(c.(*net.TCPConn), n) })
				}
			})
			h := NewClient(ClientConfig{Loops: NewLoops()})
			var callers sync.WaitGroup
			for range calls {
				callers.Go(func() {
					for range 2 {
						s, err := h.Call(t.Context(), leg("http://"+ln.Addr().String()))
						if !assert.NoError(t, err) {
							return
						}
						finish(t, s)
					}
				})
			}
			callers.Wait()
			h.CloseIdle()
			ln.Close()
			served.Wait()
		})
	}
}
