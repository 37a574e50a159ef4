package upstream

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

var quietLog = log.New(io.Discard, "", 0)

// finish reads an answer to its end and closes it.
func finish(t *testing.T, s Stream, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(s); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// await waits for a condition that another goroutine, or the kernel, brings about.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); {
		if time.Now().After(end) {
			t.Fatalf("%s: never", what)
		}
		select {
		case <-t.Context().Done():
		case <-time.After(time.Millisecond):
		}
	}
}

// The connection used last is used first; no more are kept than is allowed.
func TestPoolIsLastInFirstOut(t *testing.T) {
	base := canned(t, prefillAnswer)
	h := newHTTP(Config{IdlePerWorker: 2})
	defer h.CloseIdle()
	var open []*stream
	for range 4 {
		s, err := h.Call(t.Context(), leg(base))
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, s.(*stream))
	}
	if st := h.Stats()[0]; st != (Stats{Base: base, Open: 4, Dialed: 4}) {
		t.Errorf("%+v", st)
	}
	for _, s := range open {
		finish(t, s, nil)
	}
	if st := h.Stats()[0]; st != (Stats{Base: base, Open: 2, Idle: 2, Dialed: 4}) {
		t.Errorf("%+v", st)
	}
	for range 3 {
		s, err := h.Call(t.Context(), leg(base))
		if err == nil && s.(*stream).conn != open[1].conn {
			t.Error("not the connection used last")
		}
		finish(t, s, err)
	}
	if st := h.Stats()[0]; st != (Stats{Base: base, Open: 2, Idle: 2, Dialed: 4, Reused: 3}) {
		t.Errorf("%+v", st)
	}
	h.CloseIdle()
	if got := h.Stats(); len(got) != 0 || h.timer != nil {
		t.Errorf("after CloseIdle: %+v, timer %v", got, h.timer)
	}
}

// An answer that cannot be followed by another ends its connection.
func TestWhatIsNotKept(t *testing.T) {
	for name, raw := range map[string]string{
		"says close":      "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: x, Close\r\n\r\na",
		"HTTP/1.0":        "HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\na",
		"speaks unasked":  "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nabc",
		"a body with 304": "HTTP/1.1 304 Not Modified\r\nContent-Length: 1\r\n\r\na",
	} {
		t.Run(name, func(t *testing.T) {
			base := canned(t, raw)
			h := newHTTP(Config{})
			defer h.CloseIdle()
			s, err := h.Call(t.Context(), leg(base))
			finish(t, s, err)
			if st := h.Stats()[0]; st.Open != 0 || st.Idle != 0 {
				t.Errorf("%+v", st)
			}
		})
	}
	base := canned(t, "HTTP/1.0 200 OK\r\nContent-Length: 1\r\nConnection: keep-alive\r\n\r\na")
	h := newHTTP(Config{})
	defer h.CloseIdle()
	s, err := h.Call(t.Context(), leg(base))
	finish(t, s, err)
	if st := h.Stats()[0]; st.Idle != 1 {
		t.Errorf("HTTP/1.0 with keep-alive: %+v", st)
	}
}

// Connections that the worker closed while they were idle carry no call.
func TestDeadIdleConnections(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer srv.Close()
	h := newHTTP(Config{})
	defer h.CloseIdle()
	var open []Stream
	for range 3 {
		s, err := h.Call(t.Context(), leg(srv.URL))
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, s)
	}
	for _, s := range open {
		finish(t, s, nil)
	}
	p := (*h.pools.Load())[srv.URL]
	idle := append([]*conn(nil), p.idle...)
	srv.CloseClientConnections()
	await(t, "the connections' end", func() bool {
		for _, c := range idle {
			if c.sound() {
				return false
			}
		}
		return true
	})
	s, err := h.Call(t.Context(), leg(srv.URL))
	finish(t, s, err)
	if st := h.Stats()[0]; st.Dialed != 4 || st.Reused != 0 || st.Open != 1 {
		t.Errorf("%+v", st)
	}
	srv.CloseClientConnections()
	await(t, "a sweep that finds the dead", func() bool {
		p.sweep(time.Now(), time.Time{})
		return h.Stats()[0].Open == 0
	})
	srv.Close()
	_, err = h.Call(t.Context(), leg(srv.URL))
	if e, ok := err.(*Error); !ok || e.Op != OpDial || !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a worker that stopped: %v", err)
	}
}

// flaky is an in-memory network whose connections can be told to fail.
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

// answerEach answers every request with an empty 200 until the other side leaves.
func answerEach(_ int, c net.Conn) {
	defer c.Close()
	buf := make([]byte, 4<<10)
	for {
		if _, err := c.Read(buf); err != nil {
			return
		}
		if _, err := io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"); err != nil {
			return
		}
	}
}

// A connection that took no byte of a call is replaced by a new one, once.
func TestRepeatsWhatCannotHaveBeenSeen(t *testing.T) {
	f := &flaky{serve: answerEach}
	h := newHTTP(Config{Dial: f.dial})
	defer h.CloseIdle()
	s, err := h.Call(t.Context(), leg("http://w"))
	finish(t, s, err)
	f.conns[0].broken.Store(true)
	s, err = h.Call(t.Context(), leg("http://w"))
	finish(t, s, err)
	if len(f.conns) != 2 || h.Stats()[0].Open != 1 {
		t.Errorf("%d connections, %+v", len(f.conns), h.Stats())
	}

	long := leg("http://w") // written beside the reading
	long.Body = Body{make([]byte, LeavesWhole+1)}
	f.conns[1].broken.Store(true)
	_, err = h.Call(t.Context(), long)
	if e, ok := err.(*Error); ok { // the new pipe takes it in small reads; what matters is that it was dialed
		t.Errorf("a long request: %v", e)
	}
	if len(f.conns) != 3 {
		t.Errorf("%d connections, want a third", len(f.conns))
	}
}

// keepAliveRace is a worker that answers a connection's first request and ends
// with the second, as one whose keep-alive time is just over; what it says then is
// after.
func keepAliveRace(after string) func(n int, c net.Conn) {
	return func(_ int, c net.Conn) {
		defer c.Close()
		request := make([]byte, 4<<10)
		_, _ = c.Read(request)
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		_, _ = c.Read(request) // the connection is taken for another call meanwhile
		_, _ = io.WriteString(c, after)
	}
}

// A connection that had carried a call and ends before any byte of an answer came is
// replaced by a new one, once: the worker closed it as the request was on its way.
// A 408 on it is the same, said in words.
func TestKeepAliveRace(t *testing.T) {
	for _, c := range []struct {
		name, after string
		repeated    bool
	}{
		{"ends", "", true},
		{"ends with a 408", "HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", true},
		{"ends within an answer", "HTTP/1.1 200 O", false},
		{"ends after having said go on", "HTTP/1.1 100 Continue\r\n\r\n", false},
		{"answers nonsense", "hello\r\n\r\n", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := &flaky{serve: keepAliveRace(c.after)}
			h := newHTTP(Config{Dial: f.dial})
			defer h.CloseIdle()
			s, err := h.Call(t.Context(), leg("http://w"))
			finish(t, s, err)
			s, err = h.Call(t.Context(), leg("http://w"))
			if !c.repeated {
				if e, ok := err.(*Error); !ok || e.Op != OpHead || len(f.conns) != 1 {
					t.Errorf("%v over %d connections", err, len(f.conns))
				}
				return
			}
			finish(t, s, err)
			if len(f.conns) != 2 || s != nil && s.Status() != 200 {
				t.Errorf("%d connections, status %d", len(f.conns), s.Status())
			}
		})
	}
}

// Once is all: where the new connection ends as well, it is the call's failure. So it
// is where the worker does not take one any more: it may have died of the request.
func TestKeepAliveRaceIsLostOnce(t *testing.T) {
	t.Run("the new connection ends too", func(t *testing.T) {
		f := &flaky{serve: func(n int, c net.Conn) {
			if n == 1 {
				keepAliveRace("")(n, c)
				return
			}
			_, _ = c.Read(make([]byte, 4<<10))
			c.Close()
		}}
		h := newHTTP(Config{Dial: f.dial})
		defer h.CloseIdle()
		s, err := h.Call(t.Context(), leg("http://w"))
		finish(t, s, err)
		_, err = h.Call(t.Context(), leg("http://w"))
		if e, ok := err.(*Error); !ok || e.Op != OpHead || len(f.conns) != 2 {
			t.Errorf("%v over %d connections", err, len(f.conns))
		}
	})
	t.Run("no new connection", func(t *testing.T) {
		f := &flaky{serve: keepAliveRace("")}
		h := newHTTP(Config{Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			if len(f.conns) > 0 {
				return nil, syscall.ECONNREFUSED
			}
			return f.dial(ctx, network, address)
		}})
		defer h.CloseIdle()
		s, err := h.Call(t.Context(), leg("http://w"))
		finish(t, s, err)
		_, err = h.Call(t.Context(), leg("http://w"))
		if e, ok := err.(*Error); !ok || e.Op != OpHead {
			t.Errorf("%v: a call that was sent is not one that no connection came about for", err)
		}
	})
	t.Run("long after", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := &flaky{serve: func(_ int, c net.Conn) {
				defer c.Close()
				request := make([]byte, 4<<10)
				_, _ = c.Read(request)
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
				_, _ = c.Read(request)
				time.Sleep(raceFor + 1) // it works on the request, and dies of it
			}}
			h := newHTTP(Config{Dial: f.dial})
			defer h.CloseIdle()
			s, err := h.Call(t.Context(), leg("http://w"))
			finish(t, s, err)
			_, err = h.Call(t.Context(), leg("http://w"))
			if e, ok := err.(*Error); !ok || e.Op != OpHead || len(f.conns) != 1 {
				t.Errorf("%v over %d connections", err, len(f.conns))
			}
		})
	})
}

// Idle connections end at their time, and a worker that is gone is forgotten.
func TestSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &flaky{serve: answerEach}
		h := newHTTP(Config{Dial: f.dial, IdleTimeout: time.Minute})
		s, err := h.Call(t.Context(), leg("http://w"))
		finish(t, s, err)
		time.Sleep(59 * time.Second)
		synctest.Wait()
		if st := h.Stats()[0]; st.Idle != 1 || st.Open != 1 {
			t.Errorf("before its time: %+v", st)
		}
		time.Sleep(2*sweepEvery + time.Second)
		synctest.Wait()
		if st := h.Stats()[0]; st.Idle != 0 || st.Open != 0 {
			t.Errorf("after its time: %+v", st)
		}
		time.Sleep(forgetAfter)
		synctest.Wait()
		if got := h.Stats(); len(got) != 0 || h.timer != nil {
			t.Errorf("not forgotten: %+v", got)
		}
		s, err = h.Call(t.Context(), leg("http://w"))
		finish(t, s, err)
		h.CloseIdle()
	})
}

// A silent address is given up in time, with TLS too.
func TestDialTimeout(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() // accepts nothing: the handshake is never answered
	h := newHTTP(Config{DialTimeout: 20 * time.Millisecond})
	defer h.CloseIdle()
	_, err = h.Call(t.Context(), leg("https://"+l.Addr().String()))
	if e, ok := err.(*Error); !ok || e.Op != OpDial || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}
