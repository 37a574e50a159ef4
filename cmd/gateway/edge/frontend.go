package edge

import (
	"cmp"
	"context"
	"net"
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
	document []byte          // OpenAPI's, of the routes
	app      *fiber.App
	routed   fasthttp.RequestHandler
	server   *http1.Server
	host     atomic.Pointer[string] // the latest accepted Host header
	ending   context.Context        // ends when a shutdown begins here, and with it the console's streams
	end      func()
}

// conn is a client's connection and its current request.
type conn struct {
	*http1.ServerConn
	frontend *frontend
	request  request
	state    *connState // while requests are served
}

// maxAdminConns bounds the connections of the admin address.
const maxAdminConns = 64

// newFrontend returns a frontend without routes.
func newFrontend(s *Server, serves, operates bool) *frontend {
	f := &frontend{s: s, serves: serves, operates: operates, loopback: auth.Loopback(s.cfg.Host)}
	limit := cmp.Or(s.cfg.MaxConnections, http1.DefaultMaxConns())
	if !serves {
		limit = min(limit, maxAdminConns)
	}
	f.server = http1.NewServer(http1.ServerConfig{
		ListenConfig: http1.ListenConfig{
			Max: limit, Log: s.log,
			Paused:  func(p http1.Pause) { s.metrics.connections.WithLabelValues(string(p)).Inc() },
			Evicted: s.metrics.connections.WithLabelValues(idleClosed).Inc,
		},
		Handler: f, Loops: s.cfg.Loops,
		ReadTimeout: s.cfg.ReadTimeout, IdleTimeout: s.cfg.IdleTimeout, WriteStall: s.cfg.WriteStall,
	})
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

// Accepted implements [http1.Handler].
func (f *frontend) Accepted(c *http1.ServerConn) { c.User = &conn{ServerConn: c, frontend: f} }

// shutdown stops accepting and waits for requests in flight until ctx ends. Its error is that of closing the
// listener.
func (f *frontend) shutdown(ctx context.Context) error {
	f.end()
	return f.server.Shutdown(ctx)
}
