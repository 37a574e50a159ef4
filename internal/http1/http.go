package http1

import (
	"context"
	"crypto/tls"
	"errors"
	"maps"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-pd/tandem/internal/setting"
)

// ClientConfig bounds the connections to workers. The zero value of a field takes its default.
type ClientConfig struct {
	// DialTimeout bounds the dial, TLS included, as in Dynamo's request plane.
	DialTimeout time.Duration `default:"3s" range:"0s.."`
	// IdlePerWorker is how many idle connections are kept to each worker.
	IdlePerWorker int `default:"512" range:"0.."`
	// IdleTimeout is how long an idle connection is kept: less than uvicorn's 5 s (vLLM, SGLang, TensorRT-LLM), since
	// the side that closes first knows that no request is on its way.
	IdleTimeout time.Duration `default:"4s" range:"0s.."`
	BearerToken string        // sent to every worker as Authorization: Bearer, if not empty. It appears in no error.
	// Trust provides the certificates for https workers. Nil uses the system's authorities and no client certificate.
	Trust Trust
	// Loops poll the connections without TLS; nil leaves them to Go's poller.
	Loops *Loops
	// Dial replaces the network, for tests in memory.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Trust verifies https workers and holds the client certificate. It is safe for concurrent use.
type Trust interface {
	// Client returns the current configuration, which is immutable: a change returns a new pointer. Callers copy it, set SNI to
	// the host's name and ALPN to http/1.1.
	Client() *tls.Config
	// Explain adds advice for the operator to a TLS error.
	Explain(err error) error
}

// system trusts the machine's own authorities.
type system struct{ config *tls.Config }

func (s system) Client() *tls.Config   { return s.config }
func (system) Explain(err error) error { return err }

// Validate returns every field that is wrong.
func (c ClientConfig) Validate() error {
	err := setting.Check(&c)
	if strings.ContainsFunc(c.BearerToken, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		err = errors.Join(err, errors.New("BearerToken: it holds a blank, a control character or one outside ASCII"))
	}
	return err
}

// Client is a Transport over HTTP/1.1: a call is one write, and the caller's goroutine reads the answer. It is safe for
// concurrent use.
//
// A call reuses the last used connection to its worker, unless the worker has closed it or sent anything; else it dials.
// A worker may close a connection while a request is in flight. So a call on a reused connection is repeated once, on a new
// one, if nothing was sent. The same holds if the connection ended within raceFor without an answer's first byte. Any
// other broken connection is an error, since the engine may have started: the caller decides whether to retry.
type Client struct {
	cfg   ClientConfig
	pools atomic.Pointer[map[string]*pool] // by base URL; replaced, never changed

	mu    sync.Mutex  // guards changes of pools
	timer *time.Timer // of the sweep, while there are pools
}

var _ Transport = (*Client)(nil)

// NewClient returns a client. It requests no compression: a decoder would buffer an SSE stream. cfg must be valid.
func NewClient(cfg ClientConfig) *Client {
	setting.Fill(&cfg)
	if cfg.Dial == nil {
		cfg.Dial = (&net.Dialer{Timeout: cfg.DialTimeout, KeepAlive: 15 * time.Second}).DialContext
	}
	if cfg.Trust == nil {
		cfg.Trust = system{&tls.Config{MinVersion: tls.VersionTLS12, ClientSessionCache: tls.NewLRUClientSessionCache(256)}}
	}
	h := &Client{cfg: cfg}
	h.pools.Store(&map[string]*pool{})
	return h
}

// Call posts leg.Body to the worker and returns after the response header.
func (h *Client) Call(ctx context.Context, leg Leg) (Stream, error) {
	p, err := h.pool(leg.Base)
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, &Error{Worker: leg.Worker, Op: OpDial, Err: err}
	}
	s, again, failed := h.try(ctx, &leg, p, false)
	if again != never && ctx.Err() == nil {
		before := failed
		s, _, failed = h.try(ctx, &leg, p, true)
		if again == raced && failed != nil && failed.Op == OpDial {
			failed = before // the worker got the request and accepts no other: it may have died of it
		}
	}
	if failed != nil {
		failed.Err = h.cfg.Trust.Explain(cause(ctx, failed.Err)) // a worker may refuse a certificate after the handshake
		return nil, failed
	}
	return s, nil
}

// repeat reports whether a failed call is repeated.
type repeat uint8

const (
	never  repeat = iota
	unseen        // nothing was sent
	raced         // the connection ended before the first byte of an answer
)

// raceFor is how soon after a request the end of its connection counts as a race with an idle time-out: many times a
// round trip.
const raceFor = time.Second

// errIdled reports a 408 on an idle connection: the worker stopped waiting for a request, and this one was too late.
var errIdled = errors.New("worker closed an idle connection with a 408")

// try makes the call, on a new connection if fresh. again reports whether to repeat it on a new one.
func (h *Client) try(ctx context.Context, leg *Leg, p *pool, fresh bool) (s *stream, again repeat, failed *Error) {
	r, err := newRequest(p.target, leg, h.cfg.BearerToken)
	if err != nil {
		return nil, never, &Error{Worker: leg.Worker, Op: OpHead, Err: err}
	}
	began := time.Now()
	var c *conn
	if !fresh {
		c = p.take(began)
	}
	if c == nil {
		if c, err = p.dial(ctx); err != nil {
			r.Release()
			return nil, never, &Error{Worker: leg.Worker, Op: OpDial, Err: err}
		}
	}
	s = newStream(ctx, leg, c)
	untouched, err := s.send(r)
	if err == nil && c.carried && s.head.status == 408 {
		err, s.body.came, s.head.keep = errIdled, false, false
	}
	if err == nil {
		return s, never, nil
	}
	switch {
	case !c.carried:
	case untouched:
		again = unseen
	case !s.body.came && time.Since(began) < raceFor:
		again = raced
	}
	End(s) // which cuts the connection
	return nil, again, &Error{Worker: leg.Worker, Op: OpHead, Err: err}
}

// CloseIdle closes idle connections and drops workers without others.
func (h *Client) CloseIdle() {
	for _, p := range *h.pools.Load() {
		p.drop()
	}
	now := time.Now()
	h.sweep(now, now)
}

// How often idle connections are checked, and when a worker without any connection is dropped.
const (
	sweepEvery  = 5 * time.Second
	sweepPause  = 100 * time.Millisecond // at least, whatever the idle timeout
	forgetAfter = 10 * time.Minute
)

func (h *Client) period() time.Duration { return max(sweepPause, min(sweepEvery, h.cfg.IdleTimeout)) }

// pool returns the pool of the worker at base.
func (h *Client) pool(base string) (*pool, error) {
	if p := (*h.pools.Load())[base]; p != nil {
		return p, nil
	}
	t, err := newTarget(base)
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	pools := *h.pools.Load()
	if p := pools[base]; p != nil {
		return p, nil // another call was faster
	}
	pools = maps.Clone(pools)
	pools[base] = &pool{target: t, cfg: &h.cfg, used: time.Now()}
	h.pools.Store(&pools)
	if h.timer == nil {
		h.timer = time.AfterFunc(h.period(), func() { h.sweep(time.Now(), time.Now().Add(-forgetAfter)) })
	}
	return pools[base], nil
}

// sweep checks every pool, drops those unused since forget, and schedules the next sweep while there are pools.
func (h *Client) sweep(now, forget time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	pools := maps.Clone(*h.pools.Load())
	before := len(pools)
	maps.DeleteFunc(pools, func(_ string, p *pool) bool { return p.sweep(now, forget) })
	if len(pools) != before {
		h.pools.Store(&pools)
	}
	switch {
	case h.timer == nil:
	case len(pools) == 0:
		h.timer.Stop()
		h.timer = nil
	default:
		h.timer.Reset(h.period())
	}
}
