package loop

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// pair gives both ends of a connection, the first one in a loop.
func pair(t testing.TB, l *Loops) (Socket, *net.TCPConn) {
	t.Helper()
	near, far := ends(t, l)
	s, ok := near.(Socket)
	if !ok {
		t.Fatalf("%T is no socket of a loop", near)
	}
	return s, far
}

// ends gives both ends of a connection, the first one in a loop unless l is nil.
func ends(t testing.TB, l *Loops) (net.Conn, *net.TCPConn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	far, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	near := l.Take(accepted)
	t.Cleanup(func() { near.Close(); far.Close() })
	return near, far.(*net.TCPConn)
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
	s, far := pair(t, New())
	if _, err := s.TryRead(make([]byte, 8)); err != ErrWouldBlock {
		t.Fatalf("nothing has come: %v", err)
	}
	go far.Write([]byte("hello"))
	b := make([]byte, 8)
	if n, err := s.Read(b); string(b[:n]) != "hello" || err != nil {
		t.Fatalf("%q, %v", b[:n], err)
	}
	if !s.Quiet() {
		t.Error("all has been read")
	}
	if _, err := s.TryWritev([][]byte{[]byte("one "), nil, []byte("two")}); err != nil {
		t.Fatal(err)
	}
	s.CloseWrite()
	if got, err := io.ReadAll(far); string(got) != "one two" || err != nil {
		t.Fatalf("%q, %v", got, err)
	}
	far.Close()
	if n, err := s.Read(b); n != 0 || err != io.EOF {
		t.Fatalf("%d, %v", n, err)
	}
	if s.Quiet() {
		t.Error("the peer has closed its side")
	}
}

// TestBothWaysWhole sends much both ways through small buffers, with reads and writes that wait.
func TestBothWaysWhole(t *testing.T) {
	l := New()
	var all sync.WaitGroup
	for seed := range uint64(4) {
		s, far := pair(t, l)
		data := make([]byte, 2<<20)
		rand.NewChaCha8([32]byte{byte(seed)}).Read(data)
		all.Go(func() { s.Write(data); s.CloseWrite() })
		all.Go(func() { io.Copy(far, bytes.NewReader(data)); far.CloseWrite() })
		for name, r := range map[string]io.Reader{"near": s, "far": far} {
			all.Go(func() {
				if got, err := io.ReadAll(r); !bytes.Equal(got, data) || err != nil {
					t.Errorf("%s, seed %d: %d bytes, %v", name, seed, len(got), err)
				}
			})
		}
	}
	all.Wait()
}

func TestDeadlines(t *testing.T) {
	s, _ := pair(t, New())
	s.SetReadDeadline(time.Now().Add(-time.Second))
	if _, err := s.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("it had passed: %v", err)
	}
	s.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	began := time.Now()
	if _, err := s.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) < 15*time.Millisecond {
		t.Fatalf("%v after %v", err, time.Since(began))
	}
	s.SetReadDeadline(time.Time{})
	go func() { awaitReader(s); s.SetReadDeadline(time.Unix(1, 0)) }()
	if _, err := s.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("it was set while the read waited: %v", err)
	}
	s.SetWriteDeadline(time.Now().Add(20 * time.Millisecond))
	var err error
	for p := make([]byte, 1<<20); err == nil; _, err = s.Write(p) {
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("a peer that reads nothing: %v", err)
	}
}

func TestCloseEndsWaits(t *testing.T) {
	s, _ := pair(t, New())
	over := make(chan error)
	go func() { _, err := s.Read(make([]byte, 1)); over <- err }()
	awaitReader(s)
	hung := make(chan struct{})
	s.OnHangup(func() { close(hung) })
	s.Close()
	<-hung
	if err := <-over; !errors.Is(err, net.ErrClosed) {
		t.Fatal(err)
	}
}

func TestHangupIsSeenBehindUnreadBytes(t *testing.T) {
	for name, leave := range map[string]func(*net.TCPConn){
		"close": func(c *net.TCPConn) { c.Close() },
		"reset": func(c *net.TCPConn) { c.SetLinger(0); c.Close() },
		"half":  func(c *net.TCPConn) { c.CloseWrite() },
	} {
		t.Run(name, func(t *testing.T) {
			s, far := pair(t, New())
			hung := make(chan struct{})
			s.OnHangup(func() { close(hung) })
			far.Write([]byte("unread"))
			leave(far)
			select {
			case <-hung:
			case <-time.After(10 * time.Second):
				t.Fatal("not seen")
			}
			if s.OnHangup(func() {}) {
				t.Error("it has happened already")
			}
		})
	}
}

// TestLoopEndsWithItsLastSocket and begins again with the next one.
func TestLoopEndsWithItsLastSocket(t *testing.T) {
	defer goleak.VerifyNone(t)
	l := New()
	for range 3 {
		s, far := pair(t, l)
		go far.Write([]byte("x"))
		if _, err := s.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		s.Close()
	}
}

// A client that comes and a dial have the loop sleep in Go's poller, which watches them.
func TestLoopExpectsConnectionsOutside(t *testing.T) {
	l := New()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	for _, running := range []bool{false, true} { // the loop, when the listener is given to it
		if running {
			pair(t, l)
		}
		l.Watch(ln)
		if !running {
			pair(t, l)
		}
		l.outside.until.Store(0)
		far, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		for l.outside.until.Load() == 0 {
			runtime.Gosched()
		}
		accepted, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		accepted.Close()
		far.Close()
	}
	ln.Close()
	again := New()
	again.Watch(ln)
	pair(t, again)
	if n := len(again.outside.listeners); n > 0 {
		t.Errorf("it watches %d listeners, of which none is open", n)
	}
	l.Expect()
	if until := l.outside.until.Load(); until <= now() {
		t.Errorf("it expects nothing after %d", until)
	}
	(*Loops)(nil).Expect()
	(*Loops)(nil).Watch(ln)
}

// A connection outside is counted where Go has one thread, until it is gone.
func TestLoopCountsConnectionsOutside(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	l := New()
	first, second := l.Outside(), l.Outside()
	first()
	first()
	if every := l.outside.every(); every != outsideEvery {
		t.Errorf("with one connection outside: %v, want %v", every, outsideEvery)
	}
	second()
	if every := l.outside.every(); every != sleepEvery {
		t.Errorf("with none: %v, want %v", every, sleepEvery)
	}
	runtime.GOMAXPROCS(2)
	l = New()
	l.Outside()
	if every := l.outside.every(); every != sleepEvery {
		t.Errorf("with two threads: %v, want %v", every, sleepEvery)
	}
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

// BenchmarkNewConnection is a dial and its acceptance while a loop is busy with other connections and Go has one thread.
func BenchmarkNewConnection(b *testing.B) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	l := New()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer ln.Close()
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
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // a part of a benchmark begins with what -cpu says
			l := New()
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			defer ln.Close()
			c, err := net.Dial("tcp", ln.Addr().String())
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			echo, err := ln.Accept()
			if err != nil {
				b.Fatal(err)
			}
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
