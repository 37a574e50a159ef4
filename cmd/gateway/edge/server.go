package edge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"

	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/browser"
	"github.com/tandem-pd/tandem/internal/listen"
	"github.com/tandem-pd/tandem/internal/loglimit"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/upstream"
	"github.com/tandem-pd/tandem/pools/kept"
)

const (
	// cutGrace is how long streams that a shutdown cuts may take to say so.
	cutGrace = time.Second
)

// Flow serves calls. Before it has called Start it may fail with an *openai.Error, or an error that wraps one, which
// becomes the answer. After Start any error just ends the body: the flow has reported it to the client in the stream.
// ctx ends when the client leaves, with fault.ErrClientGone as its cause, and when a shutdown runs out of time, with
// fault.ErrShutdown.
type Flow interface {
	Serve(ctx context.Context, c *handoff.Call, out handoff.Sink) error
}

// Catalog is what the edge shows of the gateway's state. All methods are called concurrently.
type Catalog interface {
	// Models lists the models that are served.
	Models() []openai.Model
	// Workers is marshalled as the answer of GET /workers.
	Workers() any
	// Cordon takes a worker out of the choice (on), or back in, and returns how it then stands; with move its streams
	// go on on other workers, those that can. Its errors are pools.ErrUnknownWorker and pools.ErrTooManyCordons.
	Cordon(id string, on, move bool) (Standing, error)
	// Forget takes a worker that had registered and is lost off the list.
	Forget(id string) error
	// Thresholds are the busy thresholds of each model that is served, and SetThreshold changes one model's and returns
	// whether that is kept; its error is what is answered.
	Thresholds() []BusyThreshold
	SetThreshold(t BusyThreshold) (kept.Answer, *openai.Error)
	// Ready reports whether each pool that is needed has a worker; detail is marshalled into the answer of GET
	// /health.
	Ready() (ok bool, detail any)
}

// Server is the gateway's HTTP server. Make it with New, serve one listener with Serve, end it with Shutdown.
type Server struct {
	cfg     Config
	flow    Flow
	cat     Catalog
	log     *slog.Logger
	metrics *counters
	keys    atomic.Pointer[keyring]
	forward []string // names of header fields, canonical
	hints   Hints    // of clients
	id      string   // of this process; see headerGateway
	hops    []upstream.Field
	main    *frontend
	admin   *frontend       // of its own address; nil when main has its routes
	live    *set[*exchange] // flows that run
	bodies  budget          // of request bodies

	refusals loglimit.Limiter // of the log's lines about them, by kind

	beating  atomic.Bool // a look at silent streams is due
	leaving  atomic.Bool // Leave was called: /health says so
	draining atomic.Bool // a shutdown has begun
	cutting  atomic.Bool // its time is up
}

// New makes a server; metrics answers GET /metrics. It fails on a Config that Validate refuses, on a file of keys
// (*auth.FileError), and when reg refuses the edge's metrics.
func New(cfg Config, flow Flow, cat Catalog, metrics http.Handler, log *slog.Logger, reg prometheus.Registerer) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, flow: flow, cat: cat, log: log, live: newSet[*exchange](),
		refusals: loglimit.Limiter{Burst: 10, Window: 10 * time.Second},
		forward:  forwarded(cfg.ForwardHeaders), id: newGatewayID()}
	s.hops = []upstream.Field{{Name: headerGateway, Value: s.id}}
	s.bodies.limit = max(cfg.BodyBudgetBytes, int64(cfg.MaxBodyBytes)+1) // one more byte shows that a body is too large
	s.metrics = newMetrics(reg, s)
	var err error
	if s.hints, err = cfg.hints(); err != nil {
		return nil, err
	}
	s.keys.Store(&keyring{})
	if err := s.ReloadKeys(); err != nil {
		return nil, err
	}
	s.warn()
	s.main = newFrontend(s, true, cfg.AdminAddress == "")
	s.main.register(s.main.table(metrics))
	s.main.ready()
	if cfg.AdminAddress != "" {
		s.admin = newFrontend(s, false, true)
		s.admin.register(s.admin.table(metrics))
		s.admin.ready()
	}
	if err := s.secure(); err != nil {
		return nil, err
	}
	return s, nil
}

// reservedDescriptors are those that workers' connections and files need in addition to clients', at the least.
const reservedDescriptors = 64

// warn logs what is open to other machines, and limits that cannot be kept.
func (s *Server) warn() {
	if n, ok := listen.Descriptors(); ok && s.cfg.MaxConnections > 0 && uint64(s.cfg.MaxConnections)+reservedDescriptors > n {
		s.log.Warn("max-connections leaves too few descriptors (ulimit -n) for connections to workers", "max_connections", s.cfg.MaxConnections, "descriptors", n)
	}
	if s.cfg.APIKeyFile == "" && s.cfg.TLS.ClientCA == "" && !browser.Loopback(s.cfg.Host) {
		s.log.Warn("no api-key-file: every client that reaches the address is served", "http_host", s.cfg.Host)
	}
	if host, _, err := net.SplitHostPort(s.cfg.AdminAddress); err == nil && s.cfg.AdminKeyFile == "" && s.cfg.TLS.ClientCA+s.cfg.TLS.AdminCA == "" && !browser.Loopback(host) {
		s.log.Warn("no admin-key-file: every client that reaches the address may cordon workers", "admin_address", s.cfg.AdminAddress)
	}
}

// Listen opens the configured address, for Serve. The listener's Addr has the port that was chosen where the
// configured one is 0.
func (s *Server) Listen() (net.Listener, error) { return open("http-host, http-port", s.cfg.addr()) }

func open(settings, addr string) (net.Listener, error) {
	ln, err := net.Listen("tcp", addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		_, port, _ := net.SplitHostPort(addr)
		return nil, fmt.Errorf("%s: %w: most likely by another gateway (`gateway dev` or `serve`); `ss -ltnp 'sport = :%s'` shows the process. "+
			"Stop it, or choose another port (0 picks a free one)", settings, err, port)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", settings, err)
	}
	return ln, nil
}

// Serve serves the clients that ln accepts until Shutdown, which makes it return nil, or until accepting fails. It
// closes ln.
func (s *Server) Serve(ln net.Listener) error { return s.main.serve(ln) }

// ListenAdmin opens the address for administration, for ServeAdmin; nil without an error when there is none of its
// own.
func (s *Server) ListenAdmin() (net.Listener, error) {
	if s.admin == nil {
		return nil, nil
	}
	return open("admin-address", s.cfg.AdminAddress)
}

// ServeAdmin is Serve for ListenAdmin's listener.
func (s *Server) ServeAdmin(ln net.Listener) error { return s.admin.serve(ln) }

// Leave turns /health to 503 and changes nothing else, so that a load balancer can look away before Shutdown stops
// accepting.
func (s *Server) Leave() { s.leaving.Store(true) }

// Shutdown stops accepting, turns /health to 503 and waits for the requests in flight. When ctx ends first, their
// contexts end with fault.ErrShutdown, event streams get an error event, connections are closed, and ctx's error is
// returned. A flow that ignores its context is left behind.
func (s *Server) Shutdown(ctx context.Context) error {
	s.draining.Store(true)
	err := s.main.shutdown(ctx)
	if s.admin != nil { // last, so that an operator can watch the others end
		err = errors.Join(err, s.admin.shutdown(ctx))
	}
	if ctx.Err() == nil && await(ctx, s.live.empty()) {
		return err
	}
	s.cutting.Store(true)
	for _, x := range s.live.all() {
		go x.cut() // which may wait for its client, until that is cut off below
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), cutGrace)
	defer cancel()
	for _, f := range s.frontends() {
		if !await(grace, f.conns.empty()) {
			for _, c := range f.conns.all() {
				c.cut()
			}
		}
	}
	await(grace, s.live.empty())
	return context.Cause(ctx)
}

// frontends are those that there are.
func (s *Server) frontends() []*frontend {
	if s.admin == nil {
		return []*frontend{s.main}
	}
	return []*frontend{s.main, s.admin}
}

// InFlight is how many requests run.
func (s *Server) InFlight() int { return s.live.len() }

// handle answers a request that could be read.
func (f *frontend) handle(ctx *fasthttp.RequestCtx) {
	s, c := f.s, ctx.Conn().(*conn)
	c.begin()
	c.request.begin(ctx, c)
	c.request.unread = left(&ctx.Request.Header)
	s.dispatch(ctx, c, f.routed)
	ctx.Request.ResetBody() // what is left of it must not be read as a body
	if c.request.unread {
		s.hangUp(ctx, c) // nor as the next request
	}
	if !c.request.streamed { // a stream is counted at its end
		s.metrics.count(c.request.endpoint, ctx.Response.StatusCode())
	}
}

func (s *Server) dispatch(ctx *fasthttp.RequestCtx, c *conn, routed fasthttp.RequestHandler) {
	defer s.rescue(ctx, c)
	e := unroutable(ctx)
	if e == nil {
		routed(ctx)
		return
	}
	s.refuse(ctx, &c.request, e)
	s.hangUp(ctx, c) // where the body ends is not known, and what follows may be no HTTP/1.1, as behind HTTP/2's PRI
}

// unroutable refuses what Fiber is not to see.
//
//go:noinline
func unroutable(ctx *fasthttp.RequestCtx) *openai.Error {
	if e := malformed(ctx.Request.Header.RawHeaders()); e != nil {
		return e
	}
	if slices.Contains(fiber.DefaultMethods, string(ctx.Method())) {
		return nil
	}
	return &openai.Error{Status: http.StatusNotImplemented, Type: "invalid_request_error", // Fiber would answer in plain text
		Code: "unknown_method", Message: "no such method is known here"}
}

// await waits for done and reports whether it came before ctx ended.
func await(ctx context.Context, done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	}
}
