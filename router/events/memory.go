package events

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
)

// ErrBusClosed is what a closed [MemoryBus] answers.
var ErrBusClosed = errors.New("bus is closed")

// MemoryBus is a [Bus] within the process, without sockets or timers, so that it works in a testing/synctest bubble.
// Messages reach each subscription in the order they were published, and are never dropped.
type MemoryBus struct {
	mu     sync.Mutex // guards all below
	subs   map[*memorySub]struct{}
	inbox  int
	closed bool
	done   sync.WaitGroup
}

type memorySub struct {
	subject []string
	handle  func(*nats.Msg)

	mu      sync.Mutex // guards all below
	pending []*nats.Msg
	ended   bool
	more    chan struct{} // holds at most one: pending or ended changed
}

// NewMemoryBus returns an empty bus. It is to be closed.
func NewMemoryBus() *MemoryBus { return &MemoryBus{subs: map[*memorySub]struct{}{}} }

// Close ends all subscriptions, drops what they had not handled yet, and waits for handlers to return.
func (b *MemoryBus) Close() {
	b.mu.Lock()
	b.closed = true
	for s := range b.subs {
		s.end()
	}
	clear(b.subs)
	b.mu.Unlock()
	b.done.Wait()
}

// Publish implements [Bus].
func (b *MemoryBus) Publish(m *nats.Msg) error {
	_, err := b.send(m)
	return err
}

// Subscribe implements [Bus].
func (b *MemoryBus) Subscribe(subject string, handle func(*nats.Msg), _ func(int)) (func(), error) {
	s := &memorySub{subject: strings.Split(subject, "."), handle: handle, more: make(chan struct{}, 1)}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, ErrBusClosed
	}
	b.subs[s] = struct{}{}
	b.done.Go(s.run)
	return func() {
		b.mu.Lock()
		delete(b.subs, s)
		b.mu.Unlock()
		s.end()
	}, nil
}

// Request implements [Bus].
func (b *MemoryBus) Request(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
	b.mu.Lock()
	b.inbox++
	reply := fmt.Sprintf("_INBOX.%d", b.inbox)
	b.mu.Unlock()
	answers := make(chan *nats.Msg, 1)
	stop, err := b.Subscribe(reply, func(m *nats.Msg) {
		select {
		case answers <- m:
		default: // only the first counts
		}
	}, nil)
	if err != nil {
		return nil, err
	}
	defer stop()
	asked, err := b.send(&nats.Msg{Subject: m.Subject, Reply: reply, Header: m.Header, Data: m.Data})
	if err != nil {
		return nil, err
	}
	if asked == 0 {
		return nil, nats.ErrNoResponders
	}
	select {
	case answer := <-answers:
		return answer, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// send queues a copy of m for every subscription it matches, and says how many those are.
func (b *MemoryBus) send(m *nats.Msg) (int, error) {
	subject := strings.Split(m.Subject, ".")
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return 0, ErrBusClosed
	}
	n := 0
	for s := range b.subs {
		if matches(s.subject, subject) {
			header := nats.Header{}
			for k, v := range m.Header {
				header[k] = append([]string(nil), v...)
			}
			s.push(&nats.Msg{Subject: m.Subject, Reply: m.Reply, Header: header, Data: append([]byte(nil), m.Data...)})
			n++
		}
	}
	return n, nil
}

func matches(pattern, subject []string) bool {
	for i, token := range pattern {
		switch {
		case i >= len(subject):
			return false
		case token == ">":
			return true
		case token != "*" && token != subject[i]:
			return false
		}
	}
	return len(pattern) == len(subject)
}

func (s *memorySub) push(m *nats.Msg) {
	s.mu.Lock()
	s.pending = append(s.pending, m)
	s.mu.Unlock()
	s.wake()
}

func (s *memorySub) end() {
	s.mu.Lock()
	s.ended = true
	s.pending = nil
	s.mu.Unlock()
	s.wake()
}

func (s *memorySub) wake() {
	select {
	case s.more <- struct{}{}:
	default:
	}
}

func (s *memorySub) run() {
	for range s.more {
		for {
			s.mu.Lock()
			if s.ended {
				s.mu.Unlock()
				return
			}
			if len(s.pending) == 0 {
				s.pending = nil
				s.mu.Unlock()
				break
			}
			m := s.pending[0]
			s.pending = s.pending[1:]
			s.mu.Unlock()
			s.handle(m)
		}
	}
}
