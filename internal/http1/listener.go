package http1

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	"github.com/tandem-pd/tandem/internal/guard"
)

// Pause is why accepting had to wait.
type Pause string

const (
	// Bound: as many connections are open as may be, and none of them is idle.
	Bound Pause = "bound"
	// Shortage: the system refused another connection: no descriptors, no memory.
	Shortage Pause = "shortage"
)

// Config is how a [Listener] works.
type ListenConfig struct {
	// Max is how many connections may be open at once; 0 means [DefaultMax].
	Max int
	// Log gets at most a line a minute about connections that wait and one about those that are closed; nil for none.
	Log *slog.Logger
	// Paused is called when accepting has to wait.
	Paused func(Pause)
	// Evicted is called when an idle connection was closed to make room.
	Evicted func()
}

// retry spaces accepts that fail.
var retry = guard.Backoff{Min: 5 * time.Millisecond, Max: time.Second}

// evictions is how many idle connections one shortage closes: room for a client, and for the calls of others.
const evictions = 8

// Listener is a net.Listener whose Accept fails only when it is closed or broken for good. Its connections are
// *[Conn].
type Listener struct {
	net.Listener
	cfg   ListenConfig
	done  chan struct{} // closed by Close
	lines guard.LogLimiter

	mu     sync.Mutex
	room   sync.Cond // a connection ended or became idle, or the listener closed
	closed bool
	open   int
	idle   Conn // no connection: its newer is the one that has been idle longest, its older the latest
}

// New wraps ln. Accept is for one goroutine.
func NewListener(ln net.Listener, cfg ListenConfig) *Listener {
	if cfg.Max <= 0 {
		cfg.Max = DefaultMaxConns()
	}
	if cfg.Paused == nil {
		cfg.Paused = func(Pause) {}
	}
	if cfg.Evicted == nil {
		cfg.Evicted = func() {}
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	l := &Listener{Listener: ln, cfg: cfg, done: make(chan struct{}), lines: guard.LogLimiter{Burst: 1, Window: time.Minute}}
	l.room.L = &l.mu
	l.idle.older, l.idle.newer = &l.idle, &l.idle
	return l
}

// HTTP serves s on ln, through a [Listener] with the default bound, until s is closed.
func ListenHTTP(s *http.Server, ln net.Listener, log *slog.Logger) error {
	s.ConnState = ConnState
	return s.Serve(NewListener(ln, ListenConfig{Log: log}))
}

// Accept waits for the next connection, and for room for it.
func (l *Listener) Accept() (net.Conn, error) {
	nc, err := l.accept()
	if err != nil {
		return nil, err
	}
	c := &Conn{Conn: nc, l: l}
	if !l.enter(c) {
		_ = nc.Close()
		return nil, net.ErrClosed
	}
	return c, nil
}

// Close ends Accept, also one that waits for room. Connections stay open.
func (l *Listener) Close() error {
	l.mu.Lock()
	if !l.closed {
		l.closed = true
		close(l.done)
	}
	l.room.Broadcast()
	l.mu.Unlock()
	return l.Listener.Close()
}

// accept is the listener's own Accept, again after failures that pass.
func (l *Listener) accept() (net.Conn, error) {
	for failures := 0; ; failures++ {
		nc, err := l.Listener.Accept()
		switch {
		case err == nil:
			return nc, nil
		case isShortage(err):
			l.paused(Shortage, err)
			l.free()
		case !passes(err):
			return nil, err
		}
		select {
		case <-l.done:
			return nil, net.ErrClosed
		case <-time.After(retry.Delay(failures, nil)):
		}
	}
}

// enter counts c, once there is room. It reports false if the listener was closed before.
func (l *Listener) enter(c *Conn) bool {
	for paused := false; ; {
		l.mu.Lock()
		if l.closed {
			l.mu.Unlock()
			return false
		}
		if l.open < l.cfg.Max {
			l.open++
			l.rest(c)
			l.mu.Unlock()
			return true
		}
		evicted := l.evict()
		if !evicted && paused {
			l.room.Wait()
		}
		l.mu.Unlock()
		switch {
		case evicted:
			l.evicted()
		case !paused:
			paused = true
			l.paused(Bound, nil)
		}
	}
}

// free closes up to evictions idle connections.
func (l *Listener) free() {
	for range evictions {
		l.mu.Lock()
		evicted := l.evict()
		l.mu.Unlock()
		if !evicted {
			return
		}
		l.evicted()
	}
}

func (l *Listener) paused(p Pause, err error) {
	l.cfg.Paused(p)
	if p == Bound {
		l.warn("connection limit reached and no connection is idle; new connections wait")
	} else {
		l.warn("out of descriptors or memory; new connections wait", slog.Any("error", err))
	}
}

func (l *Listener) evicted() {
	l.cfg.Evicted()
	l.warn("closing idle connections to make room for new ones")
}

func (l *Listener) warn(event string, attrs ...slog.Attr) {
	if suppressed, ok := l.lines.Allow(event, time.Now()); ok {
		l.cfg.Log.LogAttrs(context.Background(), slog.LevelWarn, event, append(attrs,
			slog.String("listener", l.Addr().String()), slog.Int("max_connections", l.cfg.Max), slog.Int("suppressed", suppressed))...)
	}
}

// rest puts c, which is busy, at the end of the list of the idle. The caller holds mu.
func (l *Listener) rest(c *Conn) {
	c.older, c.newer = l.idle.older, &l.idle
	c.older.newer, l.idle.older = c, c
}

// evict closes the connection that has been idle longest and reports whether there was one. The caller holds mu.
func (l *Listener) evict() bool {
	c := l.idle.newer
	if c == &l.idle {
		return false
	}
	c.busy()
	c.left = true
	l.open--
	_ = c.Conn.Close() // its server finds out by reading
	return true
}

// isShortage reports whether the system lacks what a connection needs.
func isShortage(err error) bool {
	for _, errno := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// passes reports whether err is one connection's misfortune, as accept(2) lists them, and no fault of the listener.
func passes(err error) bool {
	for _, errno := range []syscall.Errno{
		syscall.ECONNABORTED, syscall.ECONNRESET, syscall.EPROTO, syscall.EPERM, syscall.EINTR, syscall.EAGAIN, syscall.ETIMEDOUT,
		syscall.ENETDOWN, syscall.ENETUNREACH, syscall.EHOSTDOWN, syscall.EHOSTUNREACH, syscall.ENOPROTOOPT, syscall.EOPNOTSUPP,
	} {
		if errors.Is(err, errno) {
			return true
		}
	}
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}
