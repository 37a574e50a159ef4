package http1

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// pair gives both ends of a connection, the first one in a loop.
func pair(t testing.TB, l *Loops) (Socket, *net.TCPConn) {
	t.Helper()
	near, far := ends(t, l)
	require.Implements(t, (*Socket)(nil), near)
	return near.(Socket), far
}

// ends gives both ends of a connection, the first one in a loop unless l is nil.
func ends(t testing.TB, l *Loops) (net.Conn, *net.TCPConn) {
	t.Helper()
	ln := listening(t)
	defer ln.Close()
	accepted, far := dialed(t, ln, func() {})
	near := l.Take(accepted)
	t.Cleanup(func() { near.Close() })
	return near, far
}

// awaitReader returns when a Read waits.
func awaitReader(s Socket) {
	inner := s.(*socket)
	for waits := false; !waits; runtime.Gosched() {
		inner.mu.Lock()
		waits = inner.onReadable != nil
		inner.mu.Unlock()
	}
}

func TestReadWaitsAndWriteArrives(t *testing.T) {
	s, far := pair(t, NewLoops())
	b := make([]byte, 8)
	_, err := s.TryRead(b)
	require.Equal(t, ErrWouldBlock, err, "nothing has come")
	go far.Write([]byte("hello"))
	n, err := s.Read(b)
	require.NoError(t, err)
	assert.Equal(t, "hello", string(b[:n]))
	assert.True(t, s.Quiet(), "all has been read")
	_, err = s.TryWritev([][]byte{[]byte("one "), nil, []byte("two")})
	require.NoError(t, err)
	s.CloseWrite()
	got, err := io.ReadAll(far)
	require.NoError(t, err)
	assert.Equal(t, "one two", string(got))
	far.Close()
	n, err = s.Read(b)
	assert.Zero(t, n)
	assert.Equal(t, io.EOF, err)
	assert.False(t, s.Quiet(), "the peer has closed its side")
}

// TestBothWaysWhole sends much both ways through small buffers, with reads and writes that wait.
func TestBothWaysWhole(t *testing.T) {
	l := NewLoops()
	var all sync.WaitGroup
	for seed := range uint64(4) {
		s, far := pair(t, l)
		data := make([]byte, 2<<20)
		rand.NewChaCha8([32]byte{byte(seed)}).Read(data)
		all.Go(func() { s.Write(data); s.CloseWrite() })
		all.Go(func() { io.Copy(far, bytes.NewReader(data)); far.CloseWrite() })
		for name, r := range map[string]io.Reader{"near": s, "far": far} {
			all.Go(func() {
				got, err := io.ReadAll(r)
				assert.True(t, bytes.Equal(got, data) && err == nil, "%s, seed %d: %d bytes, %v", name, seed, len(got), err)
			})
		}
	}
	all.Wait()
}

func TestDeadlines(t *testing.T) {
	s, _ := pair(t, NewLoops())
	exceeded := func(what string) {
		_, err := s.Read(make([]byte, 1))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded, what)
	}
	s.SetReadDeadline(time.Now().Add(-time.Second))
	exceeded("it had passed")
	s.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	began := time.Now()
	exceeded("it passes")
	assert.GreaterOrEqual(t, time.Since(began), 15*time.Millisecond)
	s.SetReadDeadline(time.Time{})
	go func() { awaitReader(s); s.SetReadDeadline(time.Unix(1, 0)) }()
	exceeded("it was set while the read waited")
	s.SetWriteDeadline(time.Now().Add(20 * time.Millisecond))
	var err error
	for p := make([]byte, 1<<20); err == nil; _, err = s.Write(p) {
	}
	assert.ErrorIs(t, err, os.ErrDeadlineExceeded, "a peer that reads nothing")
}

func TestCloseEndsWaits(t *testing.T) {
	s, _ := pair(t, NewLoops())
	over := make(chan error)
	go func() { _, err := s.Read(make([]byte, 1)); over <- err }()
	awaitReader(s)
	hung := make(chan struct{})
	s.OnHangup(func() { close(hung) })
	s.Close()
	<-hung
	assert.ErrorIs(t, <-over, net.ErrClosed)
}

func TestHangupIsSeenBehindUnreadBytes(t *testing.T) {
	for name, leave := range map[string]func(*net.TCPConn){
		"close": func(c *net.TCPConn) { c.Close() },
		"reset": func(c *net.TCPConn) { c.SetLinger(0); c.Close() },
		"half":  func(c *net.TCPConn) { c.CloseWrite() },
	} {
		t.Run(name, func(t *testing.T) {
			s, far := pair(t, NewLoops())
			hung := make(chan struct{})
			s.OnHangup(func() { close(hung) })
			far.Write([]byte("unread"))
			leave(far)
			select {
			case <-hung:
			case <-time.After(10 * time.Second):
				t.Fatal("not seen")
			}
			assert.False(t, s.OnHangup(func() {}), "it has happened already")
		})
	}
}

// TestLoopEndsWithItsLastSocket and begins again with the next one.
func TestLoopEndsWithItsLastSocket(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	l := NewLoops()
	for range 3 {
		s, far := pair(t, l)
		go far.Write([]byte("x"))
		_, err := s.Read(make([]byte, 1))
		require.NoError(t, err)
		s.Close()
	}
}

// A client that comes and a dial have the loop sleep in Go's poller, which watches them.
func TestLoopExpectsConnectionsOutside(t *testing.T) {
	l, ln := NewLoops(), listening(t)
	for _, running := range []bool{false, true} { // the loop, when the listener is given to it
		if running {
			pair(t, l)
		}
		l.Watch(ln)
		if !running {
			pair(t, l)
		}
		l.outside.until.Store(0)
		dialed(t, ln, func() {
			for l.outside.until.Load() == 0 {
				runtime.Gosched()
			}
		})
	}
	ln.Close()
	again := NewLoops()
	again.Watch(ln)
	pair(t, again)
	assert.Empty(t, again.outside.listeners, "of which none is open")
	l.Expect()
	assert.Greater(t, l.outside.until.Load(), now())
	(*Loops)(nil).Expect()
	(*Loops)(nil).Watch(ln)
}

// A connection outside is counted where Go has one thread, until it is gone.
func TestLoopCountsConnectionsOutside(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	l := NewLoops()
	first, second := l.Outside(), l.Outside()
	first()
	first()
	assert.Equal(t, outsideEvery, l.outside.every(), "with one connection outside")
	second()
	assert.Equal(t, sleepEvery, l.outside.every(), "with none")
	runtime.GOMAXPROCS(2)
	l = NewLoops()
	l.Outside()
	assert.Equal(t, sleepEvery, l.outside.every(), "with two threads")
	(*Loops)(nil).Outside()()
}

// busy has Go's one thread and a loop on it pass bytes to and fro, until it is called.
func busy(b *testing.B, l *Loops) (stop func()) {
	near, far := pair(b, l)
	other := l.Take(far)
	var both sync.WaitGroup
	both.Go(func() { _, _ = io.Copy(near, near) })
	both.Go(func() {
		_, _ = other.Write([]byte{1})
		_, _ = io.Copy(other, other)
	})
	return func() {
		near.Close()
		other.Close()
		both.Wait()
	}
}

// BenchmarkNewConnection is a dial and its acceptance while a loop is busy with other connections and Go has one
// thread.
func BenchmarkNewConnection(b *testing.B) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	l, ln := NewLoops(), listening(b)
	l.Watch(ln)
	defer busy(b, l)()
	for b.Loop() {
		l.Expect()
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			b.Fatal(err)
		}
		accepted, err := ln.Accept()
		if err != nil {
			b.Fatal(err)
		}
		c.Close()
		accepted.Close()
	}
}

// BenchmarkOutside is a byte to and fro on a connection of Go's poller, as those with TLS are, while a loop is busy.
func BenchmarkOutside(b *testing.B) {
	for _, counted := range []bool{true, false} {
		b.Run(fmt.Sprintf("counted=%t", counted), func(b *testing.B) {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // a part of a benchmark begins with -cpu's value
			l := NewLoops()
			echo, c := ends(b, nil)
			go func() { _, _ = io.Copy(echo, echo) }()
			if counted {
				defer l.Outside()()
			}
			defer busy(b, l)()
			one := []byte{1}
			for b.Loop() {
				if _, err := c.Write(one); err != nil {
					b.Fatal(err)
				}
				if _, err := io.ReadFull(c, one); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// listening is a listener for the time of the test.
func listening(t testing.TB) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { ln.Close() })
	return ln
}

// dialed gives both ends of a connection to a listener, which it accepts once the loop is ready.
func dialed(t testing.TB, ln net.Listener, ready func()) (near net.Conn, far *net.TCPConn) {
	t.Helper()
	c, err := net.Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	ready()
	near, err = ln.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { near.Close(); c.Close() })
	return near, c.(*net.TCPConn)
}
