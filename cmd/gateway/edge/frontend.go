package edge

import (
	"context"
	"net"
	"sync"
	"sync/atomic"

	"github.com/gofiber/fiber/v2"
	"github.com/valyala/fasthttp"

	"github.com/tandem-pd/tandem/internal/browser"
)

// frontend is one address of the server: its routes, and fasthttp's server for the connections that came there.
type frontend struct {
	s        *Server
	serves   bool            // clients
	operates bool            // administration
	loopback bool            // only this machine reaches it
	areas    map[string]area // by a path's first segment
	app      *fiber.App
	routed   fasthttp.RequestHandler
	closing  atomic.Bool

	mu sync.Mutex
	ln net.Listener // being served; nil before
}

// newFrontend makes a frontend without routes.
func newFrontend(s *Server, serves, operates bool) *frontend {
	f := &frontend{s: s, serves: serves, operates: operates, loopback: browser.Loopback(s.cfg.Host)}
	if !serves {
		host, _, err := net.SplitHostPort(s.cfg.AdminAddress)
		f.loopback = err == nil && browser.Loopback(host)
	}
	f.app = fiber.New(fiber.Config{
		DisableStartupMessage:        true,
		DisablePreParseMultipartForm: true,
		CaseSensitive:                true,
		StreamRequestBody:            true, // readBody reads it, as far as it is wanted
		BodyLimit:                    s.cfg.MaxBodyBytes,
		ReadTimeout:                  s.cfg.ReadTimeout,
		IdleTimeout:                  s.cfg.IdleTimeout,
		ReadBufferSize:               headBytes,
		WriteBufferSize:              writeBytes,
		ErrorHandler:                 s.routeError,
		// No WriteTimeout: it is set once before an answer and cuts streams.
	})
	return f
}

// ready takes the routes as they are.
func (f *frontend) ready() {
	f.routed = f.app.Handler()
	fast := f.app.Server()
	fast.Handler = f.handle
	fast.ErrorHandler = f.s.broken
	fast.ExpectHandler = f.s.expect
	fast.ConnState = f.connState
	fast.CloseOnShutdown = true
	fast.HeaderReceived = f.headRead
}

// serve serves the clients that ln accepts until shutdown, or until accepting fails. It closes ln.
func (f *frontend) serve(ln net.Listener) error {
	bounded := f.bounded(ln)
	defer bounded.Close() // for the ways out that do not; twice is harmless
	f.mu.Lock()
	if f.closing.Load() {
		f.mu.Unlock()
		return nil
	}
	f.ln = bounded
	f.mu.Unlock()
	return f.app.Server().Serve(&listener{Listener: bounded, frontend: f, stall: f.s.cfg.WriteStall, open: f.s.conns})
}

// shutdown stops accepting and waits for the requests in flight here until ctx ends. Its error is that of closing the
// listener.
func (f *frontend) shutdown(ctx context.Context) error {
	f.closing.Store(true)
	f.mu.Lock()
	ln := f.ln
	f.mu.Unlock()
	if ln == nil {
		return nil
	}
	err := ln.Close()
	// fasthttp waits for connections that have not sent anything yet.
	for _, c := range f.s.conns.all() {
		if c.frontend == f && !c.busy.Load() {
			c.cut()
		}
	}
	// Its error is ctx's, or that of closing ln once more.
	_ = f.app.Server().ShutdownWithContext(ctx)
	return err
}

// connState is fasthttp's report on a connection, from its own goroutine.
func (f *frontend) connState(nc net.Conn, state fasthttp.ConnState) {
	switch c := nc.(*conn); {
	case state == fasthttp.StateNew && f.closing.Load():
		c.cut() // accepted while the listener closed
	case state == fasthttp.StateIdle:
		c.rest()
		if f.s.cutting.Load() {
			c.cut()
		}
	}
}
