package http1

import (
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// pipe returns both ends of a connection in memory, the near one wrapped.
func pipe(t *testing.T, stall time.Duration) (*ServerConn, net.Conn) {
	near, far := net.Pipe()
	t.Cleanup(func() { far.Close(); near.Close() })
	return &ServerConn{Conn: near, stall: stall, forget: func() {}}, far
}

// TestWatchOutlivesAnOldReadDeadline: fasthttp leaves one behind, and it does not end the watch.
func TestWatchOutlivesAnOldReadDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, far := pipe(t, time.Minute)
		c.SetReadDeadline(time.Now().Add(time.Second))
		gone := make(chan struct{})
		c.OnLeave(func() { close(gone) })
		time.Sleep(time.Hour)
		far.Close()
		<-gone
		c.Unwatch()
		for _, write := range []func([]byte) (int, error){c.Write, c.trySend} {
			_, err := write([]byte("x"))
			assert.ErrorIs(t, err, errClientLeft, "writing to a client that left")
		}
	})
}

// TestWatchKeepsPipelinedBytes lets a second request come while the first is
// watched, whole or in part, and reads it afterwards.
func TestWatchKeepsPipelinedBytes(t *testing.T) {
	for _, sent := range []string{"G", "GET / HTTP/1.1\r\n", strings.Repeat("x", stashBytes), strings.Repeat("y", 3*stashBytes)} {
		synctest.Test(t, func(t *testing.T) {
			c, far := pipe(t, time.Minute)
			c.OnLeave(func() { t.Error("taken for a client that left") })
			go io.WriteString(far, sent)
			synctest.Wait()
			c.Unwatch()
			c.Unwatch() // does nothing
			got := make([]byte, len(sent))
			_, err := io.ReadFull(c, got)
			assert.NoError(t, err)
			assert.Equal(t, sent, string(got))
			assert.False(t, c.Arrival().IsZero(), "the arrival")
			assert.True(t, c.Arrival().IsZero(), "it is noted once")
		})
	}
}

// TestCloseDrainsWithinBounds: a client that keeps sending is read up to the
// limit, one that sends nothing is waited for LingerTime.
func TestCloseDrainsWithinBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, far := pipe(t, time.Minute)
		c.LingerFor(100 << 10)
		taken := make(chan int, 1)
		go func() {
			n, _ := far.Write(make([]byte, 1<<20))
			taken <- n
		}()
		begin := time.Now()
		c.Close()
		n := <-taken
		assert.True(t, n >= 100<<10 && n <= 200<<10, "drained %d bytes", n)
		assert.Zero(t, time.Since(begin))
	})
	synctest.Test(t, func(t *testing.T) {
		c, _ := pipe(t, time.Minute)
		c.LingerFor(1)
		begin := time.Now()
		c.Close()
		assert.Equal(t, LingerTime, time.Since(begin))
	})
}
