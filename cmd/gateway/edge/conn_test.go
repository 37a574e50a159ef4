package edge

import (
	"context"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/tandem-pd/tandem/handoff"
)

// pipe returns both ends of a connection in memory, the near one wrapped.
func pipe(t *testing.T, stall time.Duration) (*conn, net.Conn) {
	near, far := net.Pipe()
	t.Cleanup(func() { far.Close(); near.Close() })
	return &conn{Conn: near, stall: stall, forget: func(*conn) {}}, far
}

// TestWatchOutlivesAnOldReadDeadline: fasthttp leaves one behind, and it does not end the watch.
func TestWatchOutlivesAnOldReadDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, far := pipe(t, time.Minute)
		c.SetReadDeadline(time.Now().Add(time.Second))
		gone := make(chan struct{})
		c.onLeave(func() { close(gone) })
		time.Sleep(time.Hour)
		far.Close()
		<-gone
		c.unwatch()
		for _, write := range []func([]byte) (int, error){c.Write, c.trySend} {
			_, err := write([]byte("x"))
			assert.ErrorIs(t, err, errGone, "writing to a client that left")
		}
	})
}

// TestWatchKeepsPipelinedBytes lets a second request come while the first is
// watched, whole or in part, and reads it afterwards.
func TestWatchKeepsPipelinedBytes(t *testing.T) {
	for _, sent := range []string{"G", "GET / HTTP/1.1\r\n", strings.Repeat("x", stashBytes), strings.Repeat("y", 3*stashBytes)} {
		synctest.Test(t, func(t *testing.T) {
			c, far := pipe(t, time.Minute)
			c.onLeave(func() { t.Error("taken for a client that left") })
			go io.WriteString(far, sent)
			synctest.Wait()
			c.unwatch()
			c.unwatch() // does nothing
			got := make([]byte, len(sent))
			_, err := io.ReadFull(c, got)
			assert.NoError(t, err)
			assert.Equal(t, sent, string(got))
			assert.False(t, c.arrival().IsZero(), "the arrival")
			assert.True(t, c.arrival().IsZero(), "it is noted once")
		})
	}
}

// TestCloseDrainsWithinBounds: a client that keeps sending is read up to the
// limit, one that sends nothing is waited for lingerTime.
func TestCloseDrainsWithinBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, far := pipe(t, time.Minute)
		c.lingerFor(100 << 10)
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
		c.lingerFor(1)
		begin := time.Now()
		c.Close()
		assert.Equal(t, lingerTime, time.Since(begin))
	})
}

// Clients that send half a head keep nobody else out: at the bound their
// connections give way like idle ones. A request whose head has come is kept.
func TestHalfHeadsGiveWay(t *testing.T) {
	running, end := make(chan struct{}), make(chan struct{})
	sv := serve(t, loopback(t), func(ctx context.Context, c *handoff.Call, out handoff.Sink) error {
		close(running)
		<-end
		return answerJSON(ctx, c, out)
	}, func(c *Config) { c.MaxConnections = 3 })
	body := `{"model":"tandem-sim","prompt":"` + strings.Repeat("x", 2*prefetchBytes) + `"}`
	long := sv.dial()
	long.send(post(body))
	<-running
	for range 2 {
		sv.dial().send("GET /live HTTP/1.1\r\nHost:")
	}
	eventually(t, "three connections with something of a request", func() bool {
		return len(slices.DeleteFunc(sv.main.conns.all(), func(c *conn) bool { return !c.busy.Load() })) == 3
	})
	for range 3 { // above the bound, each of them
		c := sv.dial()
		resp, _ := c.ask(get("GET /live"))
		assert.Equal(t, http.StatusOK, resp.StatusCode)
	}
	close(end)
	resp, text := long.receive()
	assert.Equal(t, http.StatusOK, resp.StatusCode, "the request in hand: %s", text)
}
