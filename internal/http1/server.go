package http1

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-pd/tandem/internal/guard"
)

// Handler reads and answers requests, on their connections' goroutines.
type Handler interface {
	// Accepted is called first, and may set the connection's User.
	Accepted(c *ServerConn)
	// HandshakeFailed is called before a connection without TLS, or with the wrong one, is closed.
	HandshakeFailed(c *ServerConn, err error)
	// Serve serves one request after another. It returns [ErrWouldBlock] to wait for the next one; after any other
	// error, or nil, none follows.
	Serve(c *ServerConn) error
}

// ServerConfig is how a [Server] treats its connections.
type ServerConfig struct {
	ListenConfig
	Handler     Handler
	Loops       *Loops        // poll connections without TLS; nil uses Go's poller
	ReadTimeout time.Duration // of a request, and of the first one's beginning
	IdleTimeout time.Duration // between requests
	WriteStall  time.Duration // longest time without progress of a write
}

// Server has the connections of one listener served by its handler.
type Server struct {
	ServerConfig
	TLS   *tls.Config // nil serves without; set before Serve
	Conns *guard.Set[*ServerConn]

	pool    servePool
	closing atomic.Bool

	mu sync.Mutex
	ln net.Listener // being served; nil before
}

// NewServer returns a server of cfg.
func NewServer(cfg ServerConfig) *Server {
	s := &Server{ServerConfig: cfg, Conns: guard.NewSet[*ServerConn]()}
	s.pool.serveConn = s.serveConn
	return s
}

// Serve serves the clients of ln until Shutdown, or until accepting fails. It closes ln.
func (s *Server) Serve(ln net.Listener) error {
	s.Loops.Watch(ln)
	bounded := NewListener(ln, s.ListenConfig)
	defer bounded.Close() // for other exits; closing twice is harmless
	s.mu.Lock()
	if s.closing.Load() {
		s.mu.Unlock()
		return nil
	}
	s.ln = bounded
	s.mu.Unlock()
	defer s.pool.close()
	for {
		accepted, err := bounded.Accept()
		switch {
		case err != nil && s.closing.Load():
			return nil
		case err != nil:
			return err
		}
		s.accepted(accepted.(*Conn))
	}
}

// accepted sets up a new connection and serves it. It turns Nagle's algorithm off explicitly: an event must not wait for
// the acknowledgement of the one before it.
func (s *Server) accepted(slot *Conn) {
	if tcp, ok := slot.Conn.(*net.TCPConn); ok {
		// On an error the client is gone, which reading shows.
		_ = tcp.SetNoDelay(true)
		setUserTimeout(tcp, s.WriteStall)
	}
	c := &ServerConn{slot: slot, server: s, stall: s.WriteStall}
	gone := func() {}
	if s.TLS == nil {
		slot.Conn = s.Loops.Take(slot.Conn) // the listener's goroutine is this one
		c.Conn = slot.Conn
		c.socket, _ = slot.Conn.(Socket)
	} else { // loops use the raw socket, TLS needs a goroutine
		c.secure = tls.Server(slot.Conn, s.TLS)
		c.Conn = c.secure
		gone = s.Loops.Outside()
	}
	c.forget = func() {
		gone()
		s.Conns.Remove(c)
		_ = slot.Close() // makes room for another
	}
	s.Handler.Accepted(c)
	s.Conns.Add(c)
	if s.closing.Load() {
		_ = c.Close() // accepted while the listener closed
		return
	}
	if c.socket == nil || !c.park() {
		s.pool.take(c)
	}
}

// Closing reports whether a shutdown has begun: no other request follows.
func (s *Server) Closing() bool { return s.closing.Load() }

// Shutdown stops accepting and waits for requests in flight until ctx ends. Its error is that of closing the listener.
func (s *Server) Shutdown(ctx context.Context) error {
	s.closing.Store(true)
	s.mu.Lock()
	ln := s.ln
	s.mu.Unlock()
	if ln == nil {
		return nil
	}
	err := ln.Close()
	for _, c := range s.Conns.All() { // without a request yet
		if !c.Busy() {
			c.Cut()
		}
	}
	select {
	case <-s.Conns.Empty():
	case <-ctx.Done():
	}
	return err
}

// Cut closes the connections that are open when ctx ends.
func (s *Server) Cut(ctx context.Context) {
	select {
	case <-s.Conns.Empty():
	case <-ctx.Done():
		for _, c := range s.Conns.All() {
			c.Cut()
		}
	}
}

const handshakeTime = 10 * time.Second

// serveConn serves requests on c until c closes or, in a loop, has no request now: the loop then resumes c.
func (s *Server) serveConn(c *ServerConn) {
	if err := c.handshake(min(handshakeTime, s.ReadTimeout)); err != nil {
		s.Handler.HandshakeFailed(c, err)
		c.Leave()
		_ = c.Close()
		return
	}
	for {
		if err := s.Handler.Serve(c); !errors.Is(err, ErrWouldBlock) {
			_ = c.Close()
			return
		}
		if c.park() {
			return // c may be served elsewhere already
		}
	}
}
