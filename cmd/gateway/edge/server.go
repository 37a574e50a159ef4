package edge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"

	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/auth"
	"github.com/tandem-pd/tandem/internal/guard"
	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/router/replica"
)

// cutGrace bounds how long a shutdown waits to send errors on the streams it cuts.
const cutGrace = time.Second

// Flow serves calls. Before it calls Start it may fail with an error that is or wraps an *openai.Error, which becomes
// the answer. After Start an error only ends the body: the flow has reported it in the stream. ctx ends when the
// client leaves, with cause fault.ErrClientGone, and when a shutdown runs out of time, with fault.ErrShutdown.
type Flow interface {
	Serve(ctx context.Context, c *handoff.Call, out handoff.Sink) error
}

// Catalog is the gateway's state as the edge serves it. It is safe for concurrent use.
type Catalog interface {
	// Models lists the served models.
	Models() []openai.Model
	// OneSystem reports whether a model's chat template takes system messages at the beginning only.
	OneSystem(model string) bool
	// Workers is marshalled into the answer of GET /workers.
	Workers() any
	// Problems is marshalled into the answer of GET /problems.
	Problems() any
	// Plan is marshalled into the answer of GET /plan.
	Plan() any
	// Cordon takes a worker out of the choice (on), or back in, and returns its state; with move its streams resume on
	// other workers where possible. Its errors are pools.ErrUnknownWorker and pools.ErrTooManyCordons.
	Cordon(id string, on, move bool) (Standing, error)
	// Forget removes a lost worker from the list.
	Forget(id string) error
	// Thresholds returns the busy thresholds of each served model. SetThreshold changes one model's and returns
	// whether it was persisted, or the error to answer.
	Thresholds() []BusyThreshold
	SetThreshold(t BusyThreshold) (replica.Storage, *openai.Error)
	// Past is marshalled into the answer of GET /events or /requests, or returns the error to answer.
	Past(path string, q url.Values) (any, *openai.Error)
	// Ready reports whether each required pool has a worker; detail is marshalled into the answer of GET /health.
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
	hints   Hints    // allowed to clients
	id      string   // of this process; see headerGateway
	hops    []http1.Field
	main    *frontend
	admin   *frontend             // nil if main has its routes
	live    *guard.Set[*exchange] // running flows
	bodies  budget                // memory of request bodies

	refusals guard.LogLimiter // of their log lines, by kind

	beating  atomic.Bool // a check of silent streams is due
	leaving  atomic.Bool // Leave was called: /health returns 503
	draining atomic.Bool // a shutdown has begun
	cutting  atomic.Bool // its time is up
}

// New returns a server; metrics serves GET /metrics. It fails on an invalid Config, on a key file (*auth.FileError),
// and if reg refuses the edge's metrics.
func New(cfg Config, flow Flow, cat Catalog, metrics http.Handler, log *slog.Logger, reg prometheus.Registerer) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, flow: flow, cat: cat, log: log, live: guard.NewSet[*exchange](),
		refusals: guard.LogLimiter{Burst: 10, Window: 10 * time.Second},
		forward:  forwarded(cfg.ForwardHeaders), id: newGatewayID()}
	s.hops = []http1.Field{{Name: headerGateway, Value: s.id}}
	s.bodies.limit = max(cmp.Or(cfg.BodyBudgetBytes, bodyBudget()),
		int64(http1.BufSize(cfg.MaxBodyBytes+1))) // one more byte shows that a body is too large
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

// warn logs what is open to other machines.
func (s *Server) warn() {
	if s.cfg.APIKeyFile == "" && s.cfg.TLS.ClientCA == "" && !auth.Loopback(s.cfg.Host) {
		s.log.Warn("no api-key-file: every client that reaches the address is served", "http_host", s.cfg.Host)
	}
	if host, _, err := net.SplitHostPort(s.cfg.AdminAddress); err == nil && s.cfg.AdminKeyFile == "" && s.cfg.TLS.ClientCA == "" &&
		!auth.Loopback(host) {
		s.log.Warn("no admin-key-file: every client that reaches the address may cordon workers", "admin_address", s.cfg.AdminAddress)
	}
}

// Listen opens the configured address, for Serve. The listener's Addr has the chosen port if the configured one is 0.
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

// Serve serves the clients of ln until Shutdown, which makes it return nil, or until accepting fails. It closes ln.
func (s *Server) Serve(ln net.Listener) error { return s.main.server.Serve(ln) }

// ListenAdmin opens the admin address, for ServeAdmin; nil without an error if there is none.
func (s *Server) ListenAdmin() (net.Listener, error) {
	if s.admin == nil {
		return nil, nil
	}
	return open("admin-address", s.cfg.AdminAddress)
}

// ServeAdmin is Serve for ListenAdmin's listener.
func (s *Server) ServeAdmin(ln net.Listener) error { return s.admin.server.Serve(ln) }

// Leave turns /health to 503 only, so that a load balancer can remove the gateway before Shutdown stops accepting.
func (s *Server) Leave() { s.leaving.Store(true) }

// Shutdown stops accepting, turns /health to 503 and waits for requests in flight. When ctx ends first, their
// contexts end with fault.ErrShutdown, event streams get an error event, connections are closed, and ctx's error is
// returned. It does not wait for a flow that ignores its context.
func (s *Server) Shutdown(ctx context.Context) error {
	s.draining.Store(true)
	err := s.main.shutdown(ctx)
	if s.admin != nil { // last, so that an operator can watch the others end
		err = errors.Join(err, s.admin.shutdown(ctx))
	}
	if ctx.Err() == nil && await(ctx, s.live.Empty()) {
		return err
	}
	s.cutting.Store(true)
	for _, x := range s.live.All() {
		go x.cut() // it may wait for its client, until that is cut off below
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), cutGrace)
	defer cancel()
	for _, f := range s.frontends() {
		f.server.Cut(grace)
	}
	await(grace, s.live.Empty())
	return context.Cause(ctx)
}

func (s *Server) frontends() []*frontend {
	if s.admin == nil {
		return []*frontend{s.main}
	}
	return []*frontend{s.main, s.admin}
}

// InFlight returns the number of running requests.
func (s *Server) InFlight() int { return s.live.Len() }

// handle answers a parsed request.
func (f *frontend) handle(ctx *fasthttp.RequestCtx) {
	s, c := f.s, ctx.Conn().(*conn)
	c.BeginServe()
	c.request.begin(ctx, c)
	c.request.unread = left(&ctx.Request.Header)
	s.dispatch(ctx, c, f.routed)
	ctx.Request.ResetBody() // its rest must not be read as a body
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
	switch {
	case e == nil && c.request.preflight:
		c.request.endpoint = "preflight"
		ctx.SetStatusCode(http.StatusNoContent)
		return
	case e == nil:
		routed(ctx)
		return
	}
	s.refuse(ctx, &c.request, e)
	s.hangUp(ctx, c) // the body's end is unknown, and what follows may not be HTTP/1.1, as after HTTP/2's PRI
}

// unroutable refuses requests that Fiber must not see.
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
