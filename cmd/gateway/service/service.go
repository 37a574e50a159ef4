// Package service is the router for other programs: the HTTP servers of `gateway index` and `gateway select`. The one
// is an index of KV blocks for several routers; the other chooses and books workers for any frontend.
// docs/services.md shows every endpoint.
//
// [Server] is what both share: token, limits, errors, metrics, readiness, and a graceful stop. [Client] is the gateway's
// client of an index: it looks up what workers hold of a prompt, and registers its roster's workers. A lookup is bounded
// in time and number and never retried; if it fails, the router uses its own index. Only hashes of the prompt's blocks
// leave the process.
package service

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/internal/auth"
	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/metrics"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/setting"
)

// Config is the settings of both services.
type Config struct {
	// Tokens are the accepted bearer tokens; /ready and /live need none.
	Tokens auth.Keys
	// MaxBodyBytes bounds a request's body; 0 means 16 MiB.
	MaxBodyBytes int64 `default:"16MiB" unit:"bytes" range:"1KiB..1GiB"`
	// IndexMaxBlocks bounds each index, as in [index.Config]; 0 means 2^26. A model has one index of followed and one
	// of posted events.
	IndexMaxBlocks int
	// Drain is how long running requests may take when the service stops; 0 means 10 s.
	Drain time.Duration `default:"10s" range:"0s.."`
}

// backend is the service behind a [Server].
type backend interface {
	// routes adds the service's endpoints.
	routes(s *Server)
	// run does background work until ctx ends.
	run(ctx context.Context) error
}

// Server serves one of the services.
type Server struct {
	cfg     Config
	backend backend
	log     *slog.Logger
	mux     *http.ServeMux
	tokens  atomic.Pointer[auth.Keys] // replaced, never changed
	leaving atomic.Bool

	loopback atomic.Bool // the listener is reachable from this machine only
	patterns []string    // of the endpoints

	requests *prometheus.CounterVec   // by endpoint and status
	seconds  *prometheus.HistogramVec // by endpoint
}

func newServer(cfg Config, b backend, scrape http.Handler, log *slog.Logger, reg prometheus.Registerer) *Server {
	setting.Fill(&cfg)
	set := metrics.In(reg)
	s := &Server{
		cfg: cfg, backend: b, log: log, mux: http.NewServeMux(),
		requests: set.Counter("service_requests_total",
			"Requests to the standalone service, by endpoint and HTTP status.", "endpoint", "status"),
		seconds: set.Histogram("service_request_seconds", "Time from a request's head to the end of its answer, by endpoint.",
			[]float64{.0001, .00025, .0005, .001, .0025, .005, .01, .05, .25, 1, 5}, "endpoint"),
	}
	s.SetTokens(cfg.Tokens)
	s.mux.HandleFunc("GET /live", func(w http.ResponseWriter, _ *http.Request) { write(w, http.StatusOK, status{"live", ""}) })
	s.mux.HandleFunc("GET /ready", s.answerReady)
	s.mux.Handle("GET /metrics", s.guarded(scrape))
	b.routes(s)
	s.mux.Handle("/", s.guarded(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		refuse(w, s.unknown(r))
	})))
	return s
}

// status is the answer of /live and /ready.
type status struct {
	Status string `json:"status"`
	Awaits string `json:"awaits,omitempty"` // what a sidecar lacks
}

// SetTokens replaces the accepted tokens. Admitted requests are not checked again.
func (s *Server) SetTokens(tokens auth.Keys) { s.tokens.Store(&tokens) }

// Handler returns the whole service.
func (s *Server) Handler() http.Handler { return s.mux }

// Ready reports whether the service is not stopping.
func (s *Server) Ready() bool { return !s.leaving.Load() }

// Run serves on ln until ctx ends, then lets running requests finish.
func (s *Server) Run(ctx context.Context, ln net.Listener) error {
	inner, stop := context.WithCancel(ctx)
	defer stop()
	host, _, err := net.SplitHostPort(ln.Addr().String())
	s.loopback.Store(err == nil && auth.Loopback(host))
	server := httpServer(s.mux, s.log)
	ended := make(chan error, 2)
	go func() { ended <- http1.ListenHTTP(server, ln, s.log) }()
	go func() { ended <- s.backend.run(inner) }()
	var failed error
	left := 2
	for ctx.Err() == nil && failed == nil {
		select {
		case <-ctx.Done():
		case failed = <-ended:
			left--
		}
	}
	s.leaving.Store(true)
	s.log.Info("stopping", "drain", s.cfg.Drain)
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.Drain)
	defer cancel()
	if err := server.Shutdown(drain); err != nil {
		s.log.Warn("drain time over; unfinished requests are cut off", "error", err)
		_ = server.Close()
	}
	stop()
	for ; left > 0; left-- {
		if err := <-ended; failed == nil && err != nil && !errors.Is(err, http.ErrServerClosed) {
			failed = err
		}
	}
	return failed
}

// httpServer returns a server that bounds how long a client may take to send.
func httpServer(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: 64 << 10, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

func (s *Server) answerReady(w http.ResponseWriter, _ *http.Request) {
	if s.Ready() {
		write(w, http.StatusOK, status{"ready", ""})
		return
	}
	write(w, http.StatusServiceUnavailable, status{"stopping", ""})
}

// The largest bodies by endpoint, within Config.MaxBodyBytes: for a worker or a reservation, and for prompts.
const (
	small = 64 << 10
	large = math.MaxInt64
)

// handle adds an endpoint that answers with f's result as JSON.
func (s *Server) handle(pattern string, bytes int64, f func(r *http.Request) (code int, answer any, err error)) {
	s.endpoint(pattern, bytes, func(w http.ResponseWriter, r *http.Request) int {
		code, answer, err := f(r)
		if err != nil {
			return refuse(w, err)
		}
		return write(w, code, answer)
	})
}

// endpoint adds an endpoint that answers by itself and returns its status. r.Body is bounded and not compressed.
func (s *Server) endpoint(pattern string, bytes int64, f func(w http.ResponseWriter, r *http.Request) int) {
	limit := min(s.cfg.MaxBodyBytes, bytes)
	s.patterns = append(s.patterns, pattern)
	s.mux.Handle(pattern, s.guarded(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		r.Body = http.MaxBytesReader(w, r.Body, limit)
		var code int
		switch {
		case compressed(r):
			code = refuse(w, &openai.Error{Status: http.StatusUnsupportedMediaType, Code: "unsupported_media_type",
				Message: "the body must come without Content-Encoding"})
		case r.ContentLength > limit:
			code = refuse(w, tooLarge(limit))
		default:
			code = f(w, r)
		}
		s.requests.WithLabelValues(pattern, strconv.Itoa(code)).Inc()
		s.seconds.WithLabelValues(pattern).Observe(time.Since(began).Seconds())
	})))
}

// guarded requires a token, if there are any.
func (s *Server) guarded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tokens := *s.tokens.Load()
		if len(tokens) == 0 {
			if s.fromPage(r) {
				refuse(w, &openai.Error{Status: http.StatusForbidden, Code: "forbidden",
					Message: "without --token-file, requests of web pages are not taken: they have an Origin, or a Host that is not this machine's"})
				return
			}
			next.ServeHTTP(w, r)
			return
		}
		if !tokens.Hold(auth.Bearer(r.Header.Values("Authorization")...)) {
			w.Header().Set("WWW-Authenticate", "Bearer")
			refuse(w, &openai.Error{Status: http.StatusUnauthorized, Code: "unauthorized",
				Message: "send Authorization: Bearer TOKEN with a token of --token-file"})
			return
		}
		next.ServeHTTP(w, r)
	})
}

// fromPage reports whether a web page may have caused a request, through its reader's browser.
func (s *Server) fromPage(r *http.Request) bool {
	return r.Header.Get("Origin") != "" || s.loopback.Load() && !auth.OwnHost(r.Host, nil)
}

// compressed reports whether a body has a content coding.
func compressed(r *http.Request) bool {
	for _, encoding := range r.Header.Values("Content-Encoding") {
		if encoding != "" && !strings.EqualFold(encoding, "identity") {
			return true
		}
	}
	return false
}

// unknown returns the error for a request without an endpoint.
func (s *Server) unknown(r *http.Request) error {
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodDelete} {
		other := r.Clone(r.Context())
		other.Method = method
		if _, pattern := s.mux.Handler(other); pattern != "/" && method != r.Method {
			return &openai.Error{Status: http.StatusMethodNotAllowed, Code: "method_not_allowed", Message: "this path takes " + method}
		}
	}
	return &openai.Error{Status: http.StatusNotFound, Code: "not_found", Message: "there is no such path"}
}

func write(w http.ResponseWriter, code int, answer any) int {
	if answer == nil {
		w.WriteHeader(code)
		return code
	}
	body, err := json.Marshal(answer)
	if err != nil { // our own answer cannot be encoded
		return refuse(w, fmt.Errorf("answer: %w", err))
	}
	return send(w, code, body)
}

// send answers with a JSON body.
func send(w http.ResponseWriter, code int, body []byte) int {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(append(body, '\n')) // fails only when the client has left
	return code
}
