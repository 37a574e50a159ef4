package testkit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/tandem-pd/tandem/kv/wire"
)

var errClosed = errors.New("bus is closed")

// Bus is a [wire.Bus] within the process, without sockets or timers, so that it works in a testing/synctest bubble.
// Messages reach each subscription in the order they were published, and are never dropped.
type Bus struct {
	mu     sync.Mutex // guards all below, subscriptions included
	more   *sync.Cond // a subscription has messages, or has ended
	subs   map[*memorySub]struct{}
	inbox  int
	closed bool
	done   sync.WaitGroup
}

type memorySub struct {
	subject []string
	handle  func(*nats.Msg)
	pending []*nats.Msg
	ended   bool
}

// NewBus returns an empty bus. It is to be closed.
func NewBus() *Bus {
	b := &Bus{subs: map[*memorySub]struct{}{}}
	b.more = sync.NewCond(&b.mu)
	return b
}

// Close ends all subscriptions, drops what they had not handled yet, and waits for handlers to return.
func (b *Bus) Close() {
	b.mu.Lock()
	b.closed = true
	for s := range b.subs {
		b.end(s)
	}
	b.mu.Unlock()
	b.done.Wait()
}

// Publish implements [wire.Bus].
func (b *Bus) Publish(m *nats.Msg) error {
	_, err := b.send(m)
	return err
}

// Subscribe implements [wire.Bus].
func (b *Bus) Subscribe(subject string, handle func(*nats.Msg), _ func(int)) (func(), error) {
	s := &memorySub{subject: strings.Split(subject, "."), handle: handle}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, errClosed
	}
	b.subs[s] = struct{}{}
	b.done.Go(func() { b.run(s) })
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.end(s)
	}, nil
}

// Request implements [wire.Bus].
func (b *Bus) Request(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
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

// send queues a copy of m for every subscription it matches, and returns how many those are.
func (b *Bus) send(m *nats.Msg) (n int, err error) {
	subject := strings.Split(m.Subject, ".")
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return 0, errClosed
	}
	for s := range b.subs {
		if wire.SubjectMatches(s.subject, subject) {
			header := nats.Header{}
			for k, v := range m.Header {
				header[k] = append([]string(nil), v...)
			}
			s.pending = append(s.pending, &nats.Msg{Subject: m.Subject, Reply: m.Reply, Header: header, Data: append([]byte(nil), m.Data...)})
			n++
		}
	}
	b.more.Broadcast()
	return n, nil
}

// end ends a subscription. The caller holds b.mu.
func (b *Bus) end(s *memorySub) {
	s.ended = true
	delete(b.subs, s)
	b.more.Broadcast()
}

// run hands a subscription's messages on until it ends.
func (b *Bus) run(s *memorySub) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for {
		for len(s.pending) == 0 && !s.ended {
			b.more.Wait()
		}
		if s.ended {
			return
		}
		m := s.pending[0]
		s.pending = s.pending[1:]
		b.mu.Unlock()
		s.handle(m)
		b.mu.Lock()
	}
}
