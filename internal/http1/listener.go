package http1

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/tandem-pd/tandem/internal/guard"
)

// Pause is why Accept waits.
type Pause string

const (
	// Bound: the connection limit is reached, and no connection is idle.
	Bound Pause = "bound"
	// Shortage: the system has no descriptors or memory for another connection.
	Shortage Pause = "shortage"
)

// ListenConfig configures a [Listener].
type ListenConfig struct {
	// Max is the most open connections; 0 means [DefaultMaxConns].
	Max int
	// Log gets at most one line a minute about waiting connections, and one about evicted ones; it may be nil.
	Log *slog.Logger
	// Paused is called when Accept has to wait.
	Paused func(Pause)
	// Evicted is called when an idle connection was closed to make room.
	Evicted func()
}

// retry is the backoff of failed accepts.
var retry = guard.Backoff{Min: 5 * time.Millisecond, Max: time.Second}

// evictions is how many idle connections one shortage closes: room for the client and for other calls.
const evictions = 8

// Listener is a net.Listener whose Accept fails only if it is closed or permanently broken. Its connections are *[Conn].
type Listener struct {
	net.Listener
	cfg   ListenConfig
	done  chan struct{} // closed by Close
	lines guard.LogLimiter

	mu     sync.Mutex
	room   sync.Cond // a connection ended or became idle, or the listener closed
	closed bool
	open   int
	idle   Conn // head of the ring of idle connections: newer is the longest idle one, older the latest
}

// NewListener wraps ln. Accept is for one goroutine.
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

// ListenHTTP serves s on ln, through a [Listener] with the default bound, until s is closed.
func ListenHTTP(s *http.Server, ln net.Listener, log *slog.Logger) error {
	s.ConnState = ConnState
	return s.Serve(NewListener(ln, ListenConfig{Log: log}))
}

// Accept waits for the next connection and for room for it.
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

// Close ends Accept, even while it waits for room. Connections stay open.
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

// accept accepts a connection, and retries after temporary failures.
func (l *Listener) accept() (net.Conn, error) {
	for failures := 0; ; failures++ {
		nc, err := l.Listener.Accept()
		switch {
		case err == nil:
			return nc, nil
		case isAny(err, shortages):
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

// enter counts c once there is room. It reports false if the listener was closed.
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

// shortages are the errors of a machine that lacks what a connection needs.
var shortages = []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM}

// mishaps are one connection's, as accept(2) lists them, and no fault of the listener.
var mishaps = []error{
	syscall.ECONNABORTED, syscall.ECONNRESET, syscall.EPROTO, syscall.EPERM, syscall.EINTR, syscall.EAGAIN, syscall.ETIMEDOUT,
	syscall.ENETDOWN, syscall.ENETUNREACH, syscall.EHOSTDOWN, syscall.EHOSTUNREACH, syscall.ENOPROTOOPT, syscall.EOPNOTSUPP,
}

func isAny(err error, errs []error) bool {
	return slices.ContainsFunc(errs, func(e error) bool { return errors.Is(err, e) })
}

// passes reports whether the next accept may succeed.
func passes(err error) bool {
	if isAny(err, mishaps) {
		return true
	}
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// Conn is a connection that its listener counts until it is closed. A new one is idle until its server calls Busy.
// Its methods may be called concurrently.
type Conn struct {
	net.Conn
	l *Listener

	// Guarded by l.mu.
	left         bool  // no longer counted
	older, newer *Conn // its neighbours among the idle, or the list's ends; nil while it is busy
}

// Busy marks the connection as having a request: it is not closed to make room.
func (c *Conn) Busy() {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	c.busy()
}

// Idle marks the connection as having no request, as of now.
func (c *Conn) Idle() {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	if c.left {
		return
	}
	c.busy()
	c.l.rest(c)
	c.l.room.Signal()
}

// Close closes the connection and makes room for another.
func (c *Conn) Close() error {
	err := c.Conn.Close()
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	c.busy()
	if !c.left {
		c.left = true
		c.l.open--
		c.l.room.Signal()
	}
	return err
}

// ConnState is an http.Server's ConnState for a server on a [Listener].
func ConnState(nc net.Conn, state http.ConnState) {
	c, ok := nc.(*Conn)
	if !ok {
		return
	}
	switch state {
	case http.StateActive, http.StateHijacked:
		c.Busy()
	case http.StateIdle:
		c.Idle()
	}
}

// busy takes c off the list of the idle. The caller holds l.mu.
func (c *Conn) busy() {
	if c.older != nil {
		c.older.newer, c.newer.older = c.newer, c.older
		c.older, c.newer = nil, nil
	}
}

const (
	// shareOfDescriptors is one connection's part of the process's descriptors: a request may need one for its
	// client, one for its prefill worker and one for its decode worker.
	shareOfDescriptors = 3

	// leastMax and mostMax bound [DefaultMaxConns]; mostMax is also its value on a system without a limit.
	leastMax = 8
	mostMax  = 1 << 18
)

// DefaultMaxConns is the default limit of a listener's open connections: a third of the process's descriptors, between 8 and
// 262144. Go raises the soft limit of descriptors to the hard one at start.
func DefaultMaxConns() int {
	n, ok := Descriptors()
	if !ok || n/shareOfDescriptors > mostMax {
		return mostMax
	}
	return max(leastMax, int(n/shareOfDescriptors))
}

// LocalFailure reports whether a connection failed because of this machine or its resolver, which proves nothing about
// the worker.
func LocalFailure(err error) bool {
	var resolver *net.DNSError
	return errors.As(err, &resolver) || errors.Is(err, syscall.EADDRNOTAVAIL) || isAny(err, shortages)
}
