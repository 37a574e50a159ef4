package http1

import (
	"context"
	"crypto/tls"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// pool holds the connections to one worker. The last used one is reused first, so that surplus connections of a burst age and
// are closed.
type pool struct {
	target *target
	cfg    *ClientConfig
	tls    atomic.Pointer[secured] // nil before the first TLS connection
	reused atomic.Uint64

	mu     sync.Mutex
	idle   []*conn // the latest last
	open   int     // idle or not
	dialed uint64
	used   time.Time // of the last dial or return of a connection
	left   bool      // dropped: connections are not kept
}

// secured is a TLS configuration for one worker, derived from the common one.
type secured struct{ from, config *tls.Config }

// config returns the current TLS configuration.
func (p *pool) config() *tls.Config {
	from := p.cfg.Trust.Client()
	if made := p.tls.Load(); made != nil && made.from == from {
		return made.config
	}
	config := from.Clone()
	if config.ServerName == "" {
		config.ServerName = p.target.name // sent as SNI, unless it is an address
	}
	config.NextProtos = []string{"http/1.1"}
	p.tls.Store(&secured{from, config})
	return config
}

// take returns the last used idle connection, nil for none. It closes dead ones. If the last used one is too old, all are: the
// next sweep closes them.
func (p *pool) take(now time.Time) *conn {
	for {
		p.mu.Lock()
		last := len(p.idle) - 1
		if last < 0 || now.Sub(p.idle[last].since) > p.cfg.IdleTimeout {
			p.mu.Unlock()
			return nil
		}
		c := p.idle[last]
		p.idle[last] = nil
		p.idle = p.idle[:last]
		p.mu.Unlock()
		if c.sound() {
			p.reused.Add(1)
			return c
		}
		c.cut()
	}
}

// dial opens a connection, TLS included, within the dial timeout.
func (p *pool) dial(ctx context.Context) (*conn, error) {
	if p.target.secure {
		inner, cancel := context.WithTimeout(ctx, p.cfg.DialTimeout)
		defer cancel()
		ctx = inner
	}
	p.cfg.Loops.Expect()
	raw, err := p.cfg.Dial(ctx, "tcp", p.target.address)
	if err != nil {
		return nil, err
	}
	if p.target.secure {
		secure := tls.Client(raw, p.config())
		if err := secure.HandshakeContext(ctx); err != nil {
			_ = raw.Close()
			return nil, err
		}
		raw = secure
	} else {
		raw = p.cfg.Loops.Take(raw)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open++
	p.dialed++
	p.used = time.Now()
	c := newConn(raw, p)
	c.dialed = p.used
	if p.target.secure {
		c.outside = p.cfg.Loops.Outside()
	}
	return c, nil
}

// maxAge is how long a connection is kept after its dial. Under load it is never idle for long, and would stay on an address
// that the worker's name no longer has.
const maxAge = time.Minute

// give returns a connection whose call has ended cleanly.
func (p *pool) give(c *conn) {
	now := time.Now()
	c.since, c.carried = now, true
	p.mu.Lock()
	p.used = now
	keep := !p.left && now.Sub(c.dialed) < maxAge && len(p.idle) < p.cfg.IdlePerWorker
	if keep {
		p.idle = append(p.idle, c)
	}
	p.mu.Unlock()
	if !keep {
		c.cut()
	}
}

// gone counts a closed connection.
func (p *pool) gone() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open--
}

// soundAtOnce is how many of the oldest idle connections one sweep checks. It bounds the time under the lock to about 10 µs.
const soundAtOnce = 32

// sweep closes connections that were idle for too long, and dead ones among the oldest others. It reports whether to drop the
// pool, which has had no connection since forget.
func (p *pool) sweep(now, forget time.Time) bool {
	p.mu.Lock()
	old := now.Add(-p.cfg.IdleTimeout)
	n := 0
	for n < len(p.idle) && p.idle[n].since.Before(old) {
		n++
	}
	out := slices.Clone(p.idle[:n])
	rest := p.idle[:0]
	for i, c := range p.idle[n:] {
		if i < soundAtOnce && !c.sound() {
			out = append(out, c)
		} else {
			rest = append(rest, c)
		}
	}
	clear(p.idle[len(rest):])
	p.idle = rest
	p.left = p.open == 0 && p.used.Before(forget)
	left := p.left
	p.mu.Unlock()
	for _, c := range out {
		c.cut()
	}
	return left
}

// drop closes every idle connection.
func (p *pool) drop() {
	p.mu.Lock()
	out := p.idle
	p.idle = nil
	p.mu.Unlock()
	for _, c := range out {
		c.cut()
	}
}
