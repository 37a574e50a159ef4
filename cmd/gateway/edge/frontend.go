package edge

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"sync/atomic"

	"github.com/gofiber/fiber/v2"
	"github.com/valyala/fasthttp"

	"github.com/tandem-pd/tandem/internal/auth"
	"github.com/tandem-pd/tandem/internal/http1"
)

// frontend is one address of the server: its routes and connections.
type frontend struct {
	s        *Server
	serves   bool            // clients' routes
	operates bool            // administration
	loopback bool            // reachable from this machine only
	areas    map[string]area // by a path's first segment
	paths    map[string]bool // of the routes
	app      *fiber.App
	routed   fasthttp.RequestHandler
	tls      *tls.Config // nil serves without
	conns    *set[*conn]
	pool     servePool
	host     atomic.Pointer[string] // the latest accepted Host header
	closing  atomic.Bool
	ending   context.Context // ends when a shutdown begins here, and with it the console's streams
	end      func()

	mu sync.Mutex
	ln net.Listener // being served; nil before
}

// newFrontend returns a frontend without routes.
func newFrontend(s *Server, serves, operates bool) *frontend {
	f := &frontend{s: s, serves: serves, operates: operates, loopback: auth.Loopback(s.cfg.Host), conns: newSet[*conn]()}
	f.pool.serveConn = f.serveConn
	f.ending, f.end = context.WithCancel(context.Background())
	if !serves {
		host, _, err := net.SplitHostPort(s.cfg.AdminAddress)
		f.loopback = err == nil && auth.Loopback(host)
	}
	f.app = fiber.New(fiber.Config{
		DisableStartupMessage:        true,
		DisablePreParseMultipartForm: true,
		CaseSensitive:                true,
		StreamRequestBody:            true, // readBody reads it with limits
		ErrorHandler:                 s.routeError,
	})
	return f
}

// ready freezes the routes.
func (f *frontend) ready() { f.routed = f.app.Handler() }

// serve serves the clients of ln until shutdown, or until accepting fails. It closes ln.
func (f *frontend) serve(ln net.Listener) error {
	bounded := f.bounded(ln)
	defer bounded.Close() // for other exits; closing twice is harmless
	f.mu.Lock()
	if f.closing.Load() {
		f.mu.Unlock()
		return nil
	}
	f.ln = bounded
	f.mu.Unlock()
	defer f.pool.close()
	for {
		accepted, err := bounded.Accept()
		switch {
		case err != nil && f.closing.Load():
			return nil
		case err != nil:
			return err
		}
		f.accepted(accepted.(*http1.Conn))
	}
}

// accepted sets up a new connection and serves it.
func (f *frontend) accepted(slot *http1.Conn) {
	c := &conn{Conn: slot.Conn, slot: slot, frontend: f, stall: f.s.cfg.WriteStall}
	c.socket, _ = slot.Conn.(http1.Socket)
	gone := func() {}
	if f.tls != nil {
		c.secure = tls.Server(slot.Conn, f.tls)
		c.Conn = c.secure
		gone = f.s.cfg.Loops.Outside()
	}
	c.forget = func(c *conn) {
		gone()
		f.conns.remove(c)
		_ = slot.Close() // makes room for another
	}
	f.conns.add(c)
	if f.closing.Load() {
		_ = c.Close() // accepted while the listener closed
		return
	}
	if c.socket == nil || !c.park() {
		f.pool.take(c)
	}
}

// shutdown stops accepting and waits for requests in flight until ctx ends. Its error is that of closing the
// listener.
func (f *frontend) shutdown(ctx context.Context) error {
	f.closing.Store(true)
	f.end()
	f.mu.Lock()
	ln := f.ln
	f.mu.Unlock()
	if ln == nil {
		return nil
	}
	err := ln.Close()
	for _, c := range f.conns.all() { // without a request yet
		if !c.busy.Load() {
			c.cut()
		}
	}
	await(ctx, f.conns.empty())
	return err
}
