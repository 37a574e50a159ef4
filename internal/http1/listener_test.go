package http1

import (
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// script is a listener in memory: each Accept gives the next dialled connection or error.
type script struct {
	next   chan any
	closed chan struct{}
	once   sync.Once
}

func newScript() *script { return &script{next: make(chan any, 16), closed: make(chan struct{})} }

func (s *script) Accept() (net.Conn, error) {
	select {
	case v := <-s.next:
		if err, ok := v.(error); ok {
			return nil, &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", err)}
		}
		return v.(net.Conn), nil
	case <-s.closed:
		return nil, net.ErrClosed
	}
}

func (s *script) Close() error   { s.once.Do(func() { close(s.closed) }); return nil }
func (s *script) Addr() net.Addr { return &net.TCPAddr{} }

// dial queues a connection and returns the client's end.
func (s *script) dial() net.Conn {
	ours, theirs := net.Pipe()
	s.next <- theirs
	return ours
}

// ended reports whether the other side has closed c.
func ended(c net.Conn) bool {
	done := make(chan struct{})
	go func() {
		if _, err := c.Read(make([]byte, 1)); errors.Is(err, io.EOF) {
			close(done)
		}
	}()
	synctest.Wait()
	select {
	case <-done:
		return true
	default:
		return false
	}
}

func TestAcceptOutlivesAShortage(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED} {
		synctest.Test(t, func(t *testing.T) {
			pauses, s := 0, newScript()
			l := NewListener(s, ListenConfig{Max: 4, Paused: func(Pause) { pauses++ }})
			defer l.Close()
			s.next <- errno
			s.next <- errno
			accept(t, s, l)
			assert.True(t, errno == syscall.ECONNABORTED || pauses == 2, "%v: %d pauses were reported, want 2", errno, pauses)
		})
	}
}

func TestAcceptEndsWhenTheListenerIsBroken(t *testing.T) {
	s := newScript()
	l := NewListener(s, ListenConfig{Max: 4})
	s.next <- syscall.EBADF
	_, err := l.Accept()
	assert.ErrorIs(t, err, syscall.EBADF)
	l.Close()
	_, err = l.Accept()
	assert.ErrorIs(t, err, net.ErrClosed)
}

// A shortage closes idle connections, so that the next accept has a descriptor, and never one with a request in hand.
func TestAShortageClosesIdleConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, evicted := newScript(), 0
		l := NewListener(s, ListenConfig{Max: 4, Evicted: func() { evicted++ }})
		defer l.Close()
		working, busy := accept(t, s, l)
		busy.Busy()
		waiting, _ := accept(t, s, l)
		s.next <- syscall.EMFILE
		accept(t, s, l)
		assert.True(t, evicted == 1 && ended(waiting) && !ended(working), "%d connections closed; want the idle one alone", evicted)
		busy.Close() // its client reads until then
	})
}

func TestTheBoundClosesTheLongestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, pauses := newScript(), atomic.Int64{}
		l := NewListener(s, ListenConfig{Max: 3, Paused: func(Pause) { pauses.Add(1) }})
		defer l.Close()
		accepted := make(chan *Conn, 8)
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					close(accepted)
					return
				}
				accepted <- c.(*Conn)
			}
		}()
		var clients []net.Conn
		var conns []*Conn
		dial := func() { clients = append(clients, s.dial()) }
		defer func() {
			for _, c := range clients {
				c.Close()
			}
		}()
		for range 3 {
			dial()
			conns = append(conns, <-accepted)
		}
		// The first one served a request a moment ago, so the second has been idle longest.
		ConnState(conns[0], http.StateActive)
		ConnState(conns[0], http.StateIdle)
		dial()
		conns = append(conns, <-accepted)
		assert.True(t, ended(clients[1]) && !ended(clients[0]) && !ended(clients[2]), "another than the longest idle connection was closed")
		// All are busy: the next one waits, until one of them is idle or ends.
		for _, i := range []int{0, 2, 3} {
			conns[i].Busy()
		}
		dial()
		synctest.Wait()
		require.True(t, len(accepted) == 0 && pauses.Load() == 1,
			"above the bound %d connections came, and %d pauses were reported", len(accepted), pauses.Load())
		conns[2].Idle()
		conns = append(conns, <-accepted)
		assert.True(t, ended(clients[2]), "the connection that became idle was not closed")
		conns[4].Busy()
		dial()
		synctest.Wait()
		conns[0].Close()
		conns[0].Close()
		conns = append(conns, <-accepted)
		assert.Equal(t, 3, l.open, "connections are counted, want 3")
		// What waits for room does not outlive the listener.
		conns[5].Busy()
		dial()
		synctest.Wait()
		l.Close()
		for range accepted {
			t.Error("a closed listener gave a connection")
		}
		for _, c := range conns {
			c.Close()
		}
		assert.True(t, l.open == 0 && l.idle.newer == &l.idle, "%d connections are counted after all have ended", l.open)
	})
}

func TestDefaultMax(t *testing.T) {
	n, ok := Descriptors()
	got := DefaultMaxConns()
	assert.True(t, got >= leastMax && got <= mostMax && (!ok || uint64(got) <= max(leastMax, n/shareOfDescriptors)),
		"%d connections with %d descriptors", got, n)
}

func TestARequestOfAConnectionAllocatesNothing(t *testing.T) {
	s := newScript()
	l := NewListener(s, ListenConfig{Max: 4})
	defer func() { _ = l.Close() }()
	_, served := accept(t, s, l)
	assert.Zero(t, testing.AllocsPerRun(100, func() { served.Busy(); served.Idle() }), "for a connection that serves a request and rests")
}

// accept takes the next connection of a script, with the client's end.
func accept(t *testing.T, s *script, l *Listener) (client net.Conn, c *Conn) {
	t.Helper()
	client = s.dial()
	nc, err := l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = client.Close(), nc.Close() })
	return client, nc.(*Conn)
}
