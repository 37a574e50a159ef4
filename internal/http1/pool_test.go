package http1

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var quietLog = log.New(io.Discard, "", 0)

// await waits for a condition that another goroutine, or the kernel, brings about.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); {
		require.False(t, time.Now().After(end), "%s: never", what)
		select {
		case <-t.Context().Done():
		case <-time.After(time.Millisecond):
		}
	}
}

// The connection used last is used first; no more are kept than is allowed.
func TestPoolIsLastInFirstOut(t *testing.T) {
	base := canned(t, emptyAnswer)
	h := client(t, ClientConfig{IdlePerWorker: 2})
	var open []*stream
	for range 4 {
		open = append(open, called(t, h, leg(base)).(*stream))
	}
	assert.Equal(t, Stats{Base: base, Open: 4, Dialed: 4}, h.Stats()[0])
	for _, s := range open {
		finish(t, s)
	}
	assert.Equal(t, Stats{Base: base, Open: 2, Idle: 2, Dialed: 4}, h.Stats()[0])
	for range 3 {
		s := called(t, h, leg(base))
		assert.Same(t, open[1].conn, s.(*stream).conn, "the connection used last")
		finish(t, s)
	}
	assert.Equal(t, Stats{Base: base, Open: 2, Idle: 2, Dialed: 4, Reused: 3}, h.Stats()[0])
	h.CloseIdle()
	assert.Empty(t, h.Stats())
	assert.Nil(t, h.timer)
}

// An answer that cannot be followed by another ends its connection.
func TestWhatIsNotKept(t *testing.T) {
	for raw, kept := range map[string]int{
		"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: x, Close\r\n\r\na":   0,
		"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\na":                           0,
		"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nabc":                         0, // it speaks unasked
		"HTTP/1.1 304 Not Modified\r\nContent-Length: 1\r\n\r\na":                 0,
		"HTTP/1.0 200 OK\r\nContent-Length: 1\r\nConnection: keep-alive\r\n\r\na": 1,
	} {
		h := client(t, ClientConfig{})
		finish(t, called(t, h, leg(canned(t, raw))))
		assert.Equal(t, [2]int{kept, kept}, [2]int{h.Stats()[0].Open, h.Stats()[0].Idle}, raw)
	}
}

// Connections that the worker closed while they were idle carry no call.
func TestDeadIdleConnections(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer srv.Close()
	h := client(t, ClientConfig{})
	var open []Stream
	for range 3 {
		open = append(open, called(t, h, leg(srv.URL)))
	}
	for _, s := range open {
		finish(t, s)
	}
	p := (*h.pools.Load())[srv.URL]
	idle := append([]*conn(nil), p.idle...)
	srv.CloseClientConnections()
	await(t, "the connections' end", func() bool { return !slices.ContainsFunc(idle, (*conn).sound) })
	finish(t, called(t, h, leg(srv.URL)))
	assert.Equal(t, Stats{Base: srv.URL, Open: 1, Idle: 1, Dialed: 4}, h.Stats()[0])
	srv.CloseClientConnections()
	await(t, "a sweep that finds the dead", func() bool {
		p.sweep(time.Now(), time.Time{})
		return h.Stats()[0].Open == 0
	})
	srv.Close()
	_, err := h.Call(t.Context(), leg(srv.URL))
	assertFailed(t, err, OpDial)
	assert.ErrorIs(t, err, syscall.ECONNREFUSED, "a worker that stopped")
}

// flaky is an in-memory network whose connections can be set to fail.
type flaky struct {
	mu    sync.Mutex
	conns []*flakyConn
	serve func(n int, c net.Conn)
}

type flakyConn struct {
	net.Conn
	broken atomic.Bool // takes no byte
}

func (f *flakyConn) Write(p []byte) (int, error) {
	if f.broken.Load() {
		return 0, syscall.EPIPE
	}
	return f.Conn.Write(p)
}

func (f *flaky) dial(context.Context, string, string) (net.Conn, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	ours, theirs := net.Pipe()
	c := &flakyConn{Conn: ours}
	f.conns = append(f.conns, c)
	go f.serve(len(f.conns), theirs)
	return c, nil
}

// canned is a worker that answers every request on a connection with the same bytes, written in one piece.
func canned(t *testing.T, answer string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go answerEach(c, answer)
		}
	}()
	return "http://" + l.Addr().String()
}

// answerEach answers every request, which comes in one piece, until the other side leaves.
func answerEach(c net.Conn, answer string) {
	defer c.Close()
	for request := make([]byte, 4<<10); ; {
		if _, err := c.Read(request); err != nil {
			return
		}
		if _, err := io.WriteString(c, answer); err != nil {
			return
		}
	}
}

// emptyAnswer is a worker's shortest answer.
const emptyAnswer = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"

// empty answers every request with an empty 200.
func empty(_ int, c net.Conn) { answerEach(c, emptyAnswer) }

// A connection that took no byte of a call is replaced by a new one, once.
func TestRepeatsWhatCannotHaveBeenSeen(t *testing.T) {
	f, h := network(t, empty)
	finish(t, called(t, h, leg("http://w")))
	long := leg("http://w") // written beside the reading
	long.Body = Body{make([]byte, LeavesWhole+1)}
	for i, l := range []Leg{leg("http://w"), long} {
		f.conns[i].broken.Store(true)
		s := called(t, h, l)
		assert.Len(t, f.conns, i+2)
		assert.Equal(t, 1, h.Stats()[0].Open)
		s.Close()
	}
}

// keepAliveRace is a worker that answers a connection's first request and ends with the second, as one whose keep-alive
// time is just over; its answer then is late.
func keepAliveRace(after string) func(n int, c net.Conn) {
	return func(_ int, c net.Conn) {
		defer c.Close()
		request := make([]byte, 4<<10)
		_, _ = c.Read(request)
		_, _ = io.WriteString(c, emptyAnswer)
		_, _ = c.Read(request) // the connection is taken for another call meanwhile
		_, _ = io.WriteString(c, after)
	}
}

// A connection that had carried a call and ends before any byte of an answer came is replaced by a new one, once: the
// worker closed it as the request was on its way. A 408 on it is the same.
func TestKeepAliveRace(t *testing.T) {
	for after, repeated := range map[string]bool{
		"": true,
		"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n": true,
		"HTTP/1.1 200 O":                false,
		"HTTP/1.1 100 Continue\r\n\r\n": false,
		"hello\r\n\r\n":                 false,
	} {
		t.Run(after, func(t *testing.T) {
			f, h := network(t, keepAliveRace(after))
			finish(t, called(t, h, leg("http://w")))
			s, err := h.Call(t.Context(), leg("http://w"))
			if !repeated {
				assertFailed(t, err, OpHead)
				assert.Len(t, f.conns, 1)
				return
			}
			require.NoError(t, err)
			finish(t, s)
			assert.Equal(t, 200, s.Status())
			assert.Len(t, f.conns, 2)
		})
	}
}

// Once is all: where the new connection ends as well, it is the call's failure. So it
// is where the worker does not take one any more: it may have died of the request.
func TestKeepAliveRaceIsLostOnce(t *testing.T) {
	lost := func(t *testing.T, conns int, f *flaky, h *Client) {
		finish(t, called(t, h, leg("http://w")))
		_, err := h.Call(t.Context(), leg("http://w"))
		assertFailed(t, err, OpHead) // a call that was sent is not one that no connection came about for
		assert.Len(t, f.conns, conns)
	}
	t.Run("the new connection ends too", func(t *testing.T) {
		f, h := network(t, func(n int, c net.Conn) {
			if n == 1 {
				keepAliveRace("")(n, c)
				return
			}
			_, _ = c.Read(make([]byte, 4<<10))
			c.Close()
		})
		lost(t, 2, f, h)
	})
	t.Run("no new connection", func(t *testing.T) {
		f := &flaky{serve: keepAliveRace("")}
		h := client(t, ClientConfig{Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			if len(f.conns) > 0 {
				return nil, syscall.ECONNREFUSED
			}
			return f.dial(ctx, network, address)
		}})
		lost(t, 1, f, h)
	})
	t.Run("long after", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f, h := network(t, func(_ int, c net.Conn) {
				defer c.Close()
				request := make([]byte, 4<<10)
				_, _ = c.Read(request)
				_, _ = io.WriteString(c, emptyAnswer)
				_, _ = c.Read(request)
				time.Sleep(raceFor + 1) // it works on the request, and dies of it
			})
			lost(t, 1, f, h)
		})
	})
}

// Idle connections end at their time, and a worker that is gone is forgotten.
func TestSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &flaky{serve: empty}
		h := client(t, ClientConfig{Dial: f.dial, IdleTimeout: time.Minute})
		finish(t, called(t, h, leg("http://w")))
		for _, c := range []struct {
			after time.Duration
			conns int
		}{{59 * time.Second, 1}, {2*sweepEvery + time.Second, 0}} {
			time.Sleep(c.after)
			synctest.Wait()
			assert.Equal(t, [2]int{c.conns, c.conns}, [2]int{h.Stats()[0].Open, h.Stats()[0].Idle})
		}
		time.Sleep(forgetAfter)
		synctest.Wait()
		assert.Empty(t, h.Stats(), "not forgotten")
		assert.Nil(t, h.timer)
		finish(t, called(t, h, leg("http://w")))
	})
}

// A silent address is given up in time, with TLS too.
func TestDialTimeout(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close() // accepts nothing: the handshake is never answered
	_, err = client(t, ClientConfig{DialTimeout: 20 * time.Millisecond}).Call(t.Context(), leg("https://"+l.Addr().String()))
	assertFailed(t, err, OpDial)
	assert.ErrorIs(t, err, context.DeadlineExceeded)
}

// network is a transport over an in-memory network whose workers serve each connection so.
func network(t *testing.T, serve func(n int, c net.Conn)) (*flaky, *Client) {
	t.Helper()
	f := &flaky{serve: serve}
	return f, client(t, ClientConfig{Dial: f.dial})
}

// Idle connections are kept for less than engines keep them, uvicorn's 5 s, to the moment and not to the next sweep.
func TestIdleConnectionsAgeBeforeEngines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, h := network(t, empty)
		for _, c := range []struct {
			after time.Duration
			conns int
		}{{0, 1}, {3900 * time.Millisecond, 1}, {3900 * time.Millisecond, 1}, {4001 * time.Millisecond, 2}, {time.Minute, 3}} {
			time.Sleep(c.after)
			finish(t, called(t, h, leg("http://w")))
			assert.Len(t, f.conns, c.conns, "after %v idle", c.after)
		}
	})
}

// A connection that is never idle for long is replaced all the same: the worker's name may have moved.
func TestBusyConnectionsAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, h := network(t, empty)
		for range 150 {
			finish(t, called(t, h, leg("http://w")))
			time.Sleep(time.Second)
		}
		assert.Len(t, f.conns, 3, "connections in 150 s")
	})
}
