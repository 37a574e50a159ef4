package upstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"
)

// Config bounds the connections to workers. The zero value of a field takes
// its default.
type Config struct {
	// DialTimeout is how long a connection may take to come about. Default
	// 3 s, as Dynamo's request plane has it: a worker on the same network
	// answers in a millisecond, a dead host never.
	DialTimeout time.Duration

	// IdlePerWorker is how many idle connections are kept to each worker.
	// Default 512; net/http's own 2 would dial for nearly every request.
	IdlePerWorker int

	// IdleTimeout is how long an idle connection is kept. Default 90 s.
	IdleTimeout time.Duration

	// Dial replaces the network, for tests in memory.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// HTTP is the Transport over HTTP/1.1. It is safe for concurrent use.
type HTTP struct {
	transport *http.Transport
	bases     sync.Map // base URL -> *url.URL
}

var _ Transport = (*HTTP)(nil)

// NewHTTP makes a transport. Compression is never asked for: an SSE stream
// must not be buffered by a decoder, and loopback bytes are cheap.
func NewHTTP(cfg Config) *HTTP {
	if cfg.DialTimeout <= 0 {
		cfg.DialTimeout = 3 * time.Second
	}
	if cfg.IdlePerWorker <= 0 {
		cfg.IdlePerWorker = 512
	}
	if cfg.IdleTimeout <= 0 {
		cfg.IdleTimeout = 90 * time.Second
	}
	if cfg.Dial == nil {
		cfg.Dial = (&net.Dialer{Timeout: cfg.DialTimeout, KeepAlive: 15 * time.Second}).DialContext
	}
	return &HTTP{transport: &http.Transport{
		DialContext:         cfg.Dial,
		DisableCompression:  true,
		MaxIdleConnsPerHost: cfg.IdlePerWorker,
		IdleConnTimeout:     cfg.IdleTimeout,
		WriteBufferSize:     32 << 10,
		ReadBufferSize:      16 << 10,
	}}
}

// Call posts leg.Body to the worker and returns when the answer's head came.
func (h *HTTP) Call(ctx context.Context, leg Leg) (Stream, error) {
	base, err := h.base(leg.Base)
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, &Error{Worker: leg.Worker, Op: OpDial, Err: err}
	}
	target := *base
	target.Path = base.Path + leg.Path
	header := make(http.Header, 6)
	header["Content-Type"] = jsonType
	header["User-Agent"] = userAgent
	header["X-Request-Id"] = []string{leg.RequestID}
	if leg.Stream {
		header["Accept"] = eventType
	}
	if leg.Rank >= 0 {
		header["X-Data-Parallel-Rank"] = []string{strconv.Itoa(leg.Rank)}
	}
	if leg.TraceParent != "" {
		header["Traceparent"] = []string{leg.TraceParent}
	}
	outer := ctx
	ctx, cancel := context.WithCancel(ctx)
	if leg.Parting > 0 {
		cancel()
		ctx, cancel = part(outer, leg.Parting)
	}
	req := (&http.Request{
		Method:        http.MethodPost,
		URL:           &target,
		Host:          base.Host,
		Header:        header,
		Body:          io.NopCloser(bytes.NewReader(leg.Body)),
		GetBody:       func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(leg.Body)), nil },
		ContentLength: int64(len(leg.Body)),
		Proto:         "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}).WithContext(ctx)
	res, err := h.transport.RoundTrip(req)
	if err != nil {
		failed := &Error{Worker: leg.Worker, Op: opOf(err), Err: cause(outer, err)}
		cancel()
		return nil, failed
	}
	return &httpStream{worker: leg.Worker, res: res, ctx: outer, cancel: cancel}, nil
}

// CloseIdle closes the connections that carry no call.
func (h *HTTP) CloseIdle() { h.transport.CloseIdleConnections() }

// base parses a worker's base URL once.
func (h *HTTP) base(raw string) (*url.URL, error) {
	if u, ok := h.bases.Load(raw); ok {
		return u.(*url.URL), nil
	}
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return nil, fmt.Errorf("address %q is not an http URL", raw)
	}
	h.bases.Store(raw, u)
	return u, nil
}

// httpStream is an answer in progress.
type httpStream struct {
	worker string
	res    *http.Response
	ctx    context.Context // the caller's
	cancel context.CancelFunc
	ended  bool
}

func (s *httpStream) Status() int { return s.res.StatusCode }

func (s *httpStream) ContentType() string { return s.res.Header.Get("Content-Type") }

func (s *httpStream) Read(p []byte) (int, error) {
	n, err := s.res.Body.Read(p)
	if err == nil {
		return n, nil
	}
	if errors.Is(err, io.EOF) {
		s.ended = true
		return n, io.EOF
	}
	return n, &Error{Worker: s.worker, Op: OpBody, Err: cause(s.ctx, err)}
}

// Close cancels first when the body was not read to its end: closing the body
// alone would let net/http read on for a while to save the connection, and an
// engine would go on generating for nobody.
func (s *httpStream) Close() error {
	if !s.ended {
		s.cancel()
	}
	err := s.res.Body.Close()
	s.cancel()
	return err
}

// cause prefers the reason a context ended (who ended the call, and why) to
// the error that its end produced.
func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

var (
	jsonType  = []string{"application/json"}
	eventType = []string{"text/event-stream"}
	userAgent = []string{"tandem"}
)
