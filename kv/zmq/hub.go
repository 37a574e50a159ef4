package zmq

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tandem-pd/tandem/internal/guard"
)

// errNewer ends a subscription's turn with a publisher.
var errNewer = errors.New("zmtp: a newer connection publishes the topic")

// Hub accepts publishers at one address and separates them by topic: a message belongs to the subscription with the
// longest matching topic. Of several publishers of one topic the last connected counts, and the others again when it
// ends. The first message shows a connection's topic, unless there is a single subscription.
type Hub struct {
	opts    Options
	address string
	failed  func(error)

	mu    sync.Mutex // guards all below; it is not held while anything is called
	subs  []*hubSub
	conns []*hubConn // the latest last
	count uint64
}

// hubConn is a publisher's connection; a higher number came later.
type hubConn struct{ number uint64 }

type hubSub struct {
	cfg SubConfig

	mu   sync.Mutex // guards from, and is held while cfg's funcs are called
	from *hubConn   // nil for none
}

// reconnect is how long a Hub waits to listen again.
var reconnect = guard.Backoff{Min: 100 * time.Millisecond, Max: 5 * time.Second}

// NewHub returns a Hub at an endpoint that binds, with no subscriptions. failed is called for what goes wrong with listening
// and with connections before their topic is known, maybe concurrently.
func NewHub(at Endpoint, opts Options, failed func(error)) *Hub {
	return &Hub{opts: opts.withDefaults(), address: at.Address(), failed: failed}
}

// Run listens until ctx ends. It may be called once.
func (h *Hub) Run(ctx context.Context) {
	for failures := 0; ctx.Err() == nil; failures++ {
		ln, err := h.opts.Listen(ctx, "tcp", h.address)
		if err == nil {
			Serve(ctx, ln, SUB, h.opts, h.follow, h.failed)
			failures = 0
		} else if ctx.Err() == nil {
			h.failed(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(reconnect.Delay(failures, nil)):
		}
	}
}

// Add begins a subscription, until leave is called. Of cfg its Topic and funcs count; see [SubConfig]. One of them may still
// be at work when leave returns.
func (h *Hub) Add(cfg SubConfig) (leave func()) {
	s := &hubSub{cfg: cfg}
	h.mu.Lock()
	h.subs = append(h.subs, s)
	h.mu.Unlock()
	return func() {
		h.mu.Lock()
		h.subs = slices.DeleteFunc(h.subs, func(o *hubSub) bool { return o == s })
		h.mu.Unlock()
	}
}

// follow receives from one publisher.
func (h *Hub) follow(_ context.Context, c *Conn) {
	if err := c.Subscribe(""); err != nil { // which topics count is looked up here, for they come and go
		h.failed(err)
		return
	}
	h.mu.Lock()
	h.count++
	from := &hubConn{h.count}
	h.conns = append(h.conns, from)
	h.mu.Unlock()
	h.adopt()
	for {
		m, err := c.Read()
		if err != nil {
			h.lose(from, err)
			return
		}
		if m.Command != "" || len(m.Frames) == 0 {
			continue // the topic of a message that was too big is unknown; its number will be missing
		}
		if s := h.subscription(m.Frames[0]); s != nil {
			s.take(from, &m)
		}
	}
}

// subscription returns the subscription that a topic belongs to; nil for none.
func (h *Hub) subscription(topic []byte) (found *hubSub) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.subs {
		if strings.HasPrefix(string(topic), s.cfg.Topic) && (found == nil || len(s.cfg.Topic) > len(found.cfg.Topic)) {
			found = s
		}
	}
	return found
}

// adopt lets a single subscription follow the last publisher, though it sent nothing yet.
func (h *Hub) adopt() {
	h.mu.Lock()
	var s *hubSub
	var from *hubConn
	if len(h.subs) == 1 && len(h.conns) > 0 {
		s, from = h.subs[0], h.conns[len(h.conns)-1]
	}
	h.mu.Unlock()
	if s != nil {
		s.take(from, nil)
	}
}

// lose ends the turns of a publisher that is gone.
func (h *Hub) lose(from *hubConn, err error) {
	h.mu.Lock()
	h.conns = slices.DeleteFunc(h.conns, func(c *hubConn) bool { return c == from })
	subs := slices.Clone(h.subs)
	h.mu.Unlock()
	for _, s := range subs {
		s.lose(from, err)
	}
	h.adopt()
}

// take passes on a publisher's message, nil for its mere presence, unless a newer one publishes the same.
func (s *hubSub) take(from *hubConn, m *Frames) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.from != from {
		if s.from != nil {
			if s.from.number > from.number {
				return
			}
			s.cfg.Lost(errNewer)
		}
		s.from = from
		s.cfg.Connected()
	}
	if m != nil {
		s.cfg.Message(*m)
	}
}

func (s *hubSub) lose(from *hubConn, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.from == from {
		s.from = nil
		s.cfg.Lost(err)
	}
}
