package upstream

import (
	"context"
	"net"
	"net/http/httptrace"
	"sync"
	"time"
)

// parting ends a call in two steps: it closes the connection's sending side, so
// that the engine sees its client gone and stops, and cuts the connection only
// after a while, so that an answer already sent can still be read.
type parting struct {
	limit  time.Duration
	cancel context.CancelFunc

	mu    sync.Mutex
	conn  net.Conn // nil while there is none
	timer *time.Timer
}

// part returns a context for the call itself, which outlives the end of outer
// by limit at the most, and the func that ends it.
func part(outer context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	inner, cancel := context.WithCancel(context.WithoutCancel(outer))
	p := &parting{limit: limit, cancel: cancel}
	stop := context.AfterFunc(outer, p.leave)
	end := func() {
		stop()
		cancel()
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.timer != nil {
			p.timer.Stop()
		}
	}
	return httptrace.WithClientTrace(inner, &httptrace.ClientTrace{GotConn: p.got}), end
}

// got notes the connection that the request is about to be written to.
func (p *parting) got(info httptrace.GotConnInfo) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conn = info.Conn
}

// leave is called when the caller's context has ended.
func (p *parting) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	half, ok := p.conn.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		p.cancel()
		return
	}
	p.timer = time.AfterFunc(p.limit, p.cancel)
}
