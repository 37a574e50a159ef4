package upstream

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Config bounds the connections to workers. The zero value of a field takes
// its default.
type Config struct {
	// DialTimeout is how long a connection may take to come about, TLS
	// included. Default 3 s, as Dynamo's request plane has it: a worker on the
	// same network answers in a millisecond, a dead host never.
	DialTimeout time.Duration

	// IdlePerWorker is how many idle connections are kept to each worker.
	// Default 512; what a burst leaves over is closed by IdleTimeout.
	IdlePerWorker int

	// IdleTimeout is how long an idle connection is kept. Default 90 s.
	IdleTimeout time.Duration

	// BearerToken is sent to every worker as Authorization: Bearer where not
	// empty. It appears in no error.
	BearerToken string

	// TLS is what https workers are met with. Nil takes the system's roots and
	// sends the host's name as SNI. It is copied; ALPN is always http/1.1.
	TLS *tls.Config

	// Dial replaces the network, for tests in memory.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Validate names the field that is wrong.
func (c Config) Validate() error {
	switch {
	case c.DialTimeout < 0:
		return fmt.Errorf("DialTimeout: %v is negative", c.DialTimeout)
	case c.IdlePerWorker < 0:
		return fmt.Errorf("IdlePerWorker: %d is negative", c.IdlePerWorker)
	case c.IdleTimeout < 0:
		return fmt.Errorf("IdleTimeout: %v is negative", c.IdleTimeout)
	case strings.ContainsFunc(c.BearerToken, func(r rune) bool { return r <= ' ' || r >= 0x7f }):
		return errors.New("BearerToken: it holds a blank, a control character or one outside ASCII")
	}
	return nil
}

// HTTP is the Transport over HTTP/1.1, by a client of our own: one call is one
// write, one answer one goroutine's reads, the caller's. It is safe for
// concurrent use.
//
// A call takes the connection to its worker that was used last, if the kernel
// says that the worker has neither closed it nor sent anything, or dials. A
// call is repeated only where no byte of it can have been seen: on a
// connection that had carried a call before and took nothing of this one, once
// and on a new one. Once a byte was written, a connection that breaks is an
// error, as net/http has it for a POST: an engine may have begun. Whether to
// try again is for whoever knows what the call was for.
type HTTP struct {
	cfg   Config
	pools atomic.Pointer[map[string]*pool] // by base URL; replaced, never changed

	mu    sync.Mutex  // of every change of pools
	timer *time.Timer // of the sweep, while there are pools
}

var _ Transport = (*HTTP)(nil)

// NewHTTP makes a transport. Compression is never asked for: an SSE stream
// must not be buffered by a decoder, and loopback bytes are cheap. cfg must be
// valid.
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
	if cfg.TLS == nil {
		cfg.TLS = &tls.Config{MinVersion: tls.VersionTLS12, ClientSessionCache: tls.NewLRUClientSessionCache(256)}
	}
	h := &HTTP{cfg: cfg}
	h.pools.Store(&map[string]*pool{})
	return h
}

// Call posts leg.Body to the worker and returns when the answer's head came.
func (h *HTTP) Call(ctx context.Context, leg Leg) (Stream, error) {
	p, err := h.pool(leg.Base)
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, &Error{Worker: leg.Worker, Op: OpDial, Err: err}
	}
	for fresh := false; ; fresh = true {
		s, again, err := h.try(ctx, &leg, p, fresh)
		if err == nil {
			return s, nil
		}
		if !again || ctx.Err() != nil {
			err.Err = cause(ctx, err.Err)
			return nil, err
		}
	}
}

// try makes the call, on a new connection if fresh. again says that the worker
// can have seen nothing of it, and that a new connection may take it.
func (h *HTTP) try(ctx context.Context, leg *Leg, p *pool, fresh bool) (s *stream, again bool, failed *Error) {
	r, err := newRequest(p.target, leg, h.cfg.BearerToken)
	if err != nil {
		return nil, false, &Error{Worker: leg.Worker, Op: OpHead, Err: err}
	}
	var c *conn
	if !fresh {
		c = p.take()
	}
	if c == nil {
		if c, err = p.dial(ctx); err != nil {
			r.release()
			return nil, false, &Error{Worker: leg.Worker, Op: OpDial, Err: err}
		}
	}
	s = newStream(ctx, leg, c)
	untouched, err := s.send(r)
	if err != nil {
		_ = s.Close() // which cuts the connection
		return nil, untouched && c.carried, &Error{Worker: leg.Worker, Op: OpHead, Err: err}
	}
	return s, false, nil
}

// CloseIdle closes the connections that carry no call and forgets the workers
// that have no other.
func (h *HTTP) CloseIdle() {
	for _, p := range *h.pools.Load() {
		p.drop()
	}
	now := time.Now()
	h.sweep(now, now)
}

// Stats is one worker's connections. The counts begin again at 0 when a worker
// comes back that was without a connection for ten minutes.
type Stats struct {
	// Base is the worker's base URL.
	Base string
	// Open is how many connections there are, Idle how many of them carry no
	// call.
	Open, Idle int
	// Dialed is how many connections were made, Reused how many calls were
	// made on one that was there.
	Dialed, Reused uint64
}

// Stats gives every worker's connections, ordered by base URL.
func (h *HTTP) Stats() []Stats {
	pools := *h.pools.Load()
	out := make([]Stats, 0, len(pools))
	for _, base := range slices.Sorted(maps.Keys(pools)) {
		out = append(out, pools[base].stats())
	}
	return out
}

// How often idle connections are looked after, and when a worker without any
// connection is forgotten.
const (
	sweepEvery  = 5 * time.Second
	sweepPause  = 100 * time.Millisecond // at the least, however short the idle timeout
	forgetAfter = 10 * time.Minute
)

func (h *HTTP) period() time.Duration { return max(sweepPause, min(sweepEvery, h.cfg.IdleTimeout)) }

// pool gives the connections to the worker at base.
func (h *HTTP) pool(base string) (*pool, error) {
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
	pools[base] = newPool(t, &h.cfg, time.Now())
	h.pools.Store(&pools)
	if h.timer == nil {
		h.timer = time.AfterFunc(h.period(), h.tick)
	}
	return pools[base], nil
}

// tick is the timer's.
func (h *HTTP) tick() {
	now := time.Now()
	h.sweep(now, now.Add(-forgetAfter))
}

// sweep looks after every pool, drops those unused since forget, and sees to
// it that the next sweep comes while there are pools.
func (h *HTTP) sweep(now, forget time.Time) {
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
