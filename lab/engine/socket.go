package engine

import (
	"bytes"
	"cmp"
	"context"
	"net"
	"sync"
	"time"

	"github.com/tandem-pd/tandem/internal/guard"
	"github.com/tandem-pd/tandem/kv/zmq"
)

// SocketConfig is how a [Socket] works. The zero value of each field means its default.
type SocketConfig struct {
	zmq.Options
	// HighWater is how many messages wait at most for one subscriber, by default 100,000, and HighWaterBytes how many
	// bytes, by default 64 MiB. What does not fit is dropped for that subscriber.
	HighWater      int
	HighWaterBytes int
}

// Socket is a PUB socket: it sends messages to the subscribers of their first frame.
type Socket struct {
	cfg SocketConfig

	mu    sync.Mutex // guards peers
	peers map[*zmqpubPeer]struct{}
}

// peer is one subscriber.
type zmqpubPeer struct {
	conn *zmq.Conn

	mu     sync.Mutex // guards all below
	topics map[string]int
	queue  [][][]byte
	bytes  int
	more   chan struct{} // holds at most one: the queue is not empty
}

// NewSocket returns a Socket without subscribers.
func NewSocket(cfg SocketConfig) *Socket {
	cfg.HighWater = cmp.Or(cfg.HighWater, 100_000)
	cfg.HighWaterBytes = cmp.Or(cfg.HighWaterBytes, 64<<20)
	return &Socket{cfg: cfg, peers: map[*zmqpubPeer]struct{}{}}
}

// Subscribers is how many peers have subscribed to anything.
func (p *Socket) Subscribers() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for q := range p.peers {
		q.mu.Lock()
		if len(q.topics) > 0 {
			n++
		}
		q.mu.Unlock()
	}
	return n
}

// Send queues a message for each subscriber of its first frame and does not wait. The frames must not be changed
// afterwards.
func (p *Socket) Send(frames ...[]byte) {
	size := 0
	for _, f := range frames {
		size += len(f)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for q := range p.peers {
		q.offer(frames, size, &p.cfg)
	}
}

// reconnect is how long a Socket waits to connect again.
var reconnect = guard.Backoff{Min: 100 * time.Millisecond, Max: 5 * time.Second}

// Serve has subscribers connect to ln, until ctx ends; it closes ln.
func (p *Socket) Serve(ctx context.Context, ln net.Listener) {
	zmq.Serve(ctx, ln, zmq.PUB, p.cfg.Options, p.talk, func(error) {})
}

// Connect sends to a subscriber that awaits publishers at address, connecting again until ctx ends.
func (p *Socket) Connect(ctx context.Context, address string) {
	for failures := 0; ctx.Err() == nil; failures++ {
		if c, err := zmq.Dial(ctx, address, zmq.PUB, p.cfg.Options); err == nil {
			stop := context.AfterFunc(ctx, func() { _ = c.Close() })
			p.talk(ctx, c)
			stop()
			_ = c.Close()
			failures = 0
		}
		select {
		case <-ctx.Done():
		case <-time.After(reconnect.Delay(failures, nil)):
		}
	}
}

// talk serves one subscriber until its connection ends.
func (p *Socket) talk(ctx context.Context, c *zmq.Conn) {
	q := &zmqpubPeer{conn: c, topics: map[string]int{}, more: make(chan struct{}, 1)}
	p.mu.Lock()
	p.peers[q] = struct{}{}
	p.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	var sending sync.WaitGroup
	sending.Go(func() { q.send(ctx) })
	q.listen()
	p.mu.Lock()
	delete(p.peers, q)
	p.mu.Unlock()
	cancel()
	_ = c.Close()
	sending.Wait()
}

// listen takes subscriptions in, in either form.
func (q *zmqpubPeer) listen() {
	for {
		m, err := q.conn.Read()
		switch {
		case err != nil:
			return
		case m.Command == "SUBSCRIBE":
			q.subscribe(string(m.Body), 1)
		case m.Command == "CANCEL":
			q.subscribe(string(m.Body), -1)
		case len(m.Frames) == 1 && len(m.Frames[0]) > 0 && m.Frames[0][0] <= 1:
			q.subscribe(string(m.Frames[0][1:]), 2*int(m.Frames[0][0])-1)
		}
	}
}

// maxTopics is how many subscriptions one peer may hold.
const maxTopics = 1024

func (q *zmqpubPeer) subscribe(topic string, by int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if n := q.topics[topic] + by; n > 0 && (len(q.topics) < maxTopics || n > 1) {
		q.topics[topic] = n
	} else if n <= 0 {
		delete(q.topics, topic)
	}
}

// offer queues a message if it is wanted and fits.
func (q *zmqpubPeer) offer(frames [][]byte, size int, cfg *SocketConfig) {
	q.mu.Lock()
	defer q.mu.Unlock()
	wanted := false
	for topic := range q.topics {
		wanted = wanted || bytes.HasPrefix(frames[0], []byte(topic))
	}
	if !wanted || len(q.queue) >= cfg.HighWater || len(q.queue) > 0 && q.bytes+size > cfg.HighWaterBytes {
		return
	}
	q.queue = append(q.queue, frames)
	q.bytes += size
	select {
	case q.more <- struct{}{}:
	default:
	}
}

// send writes queued messages until ctx ends or the peer does not accept them.
func (q *zmqpubPeer) send(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-q.more:
		}
		q.mu.Lock()
		batch := q.queue
		q.queue, q.bytes = nil, 0
		q.mu.Unlock()
		for _, frames := range batch {
			if q.conn.Write(frames...) != nil {
				_ = q.conn.Close() // listen ends, and with it the peer
				return
			}
		}
	}
}

// ServeRouter answers requests on ln until ctx ends, and closes ln. It calls answer for each message with the
// connection for the reply: one at a time for one peer, concurrently for several. An error closes that peer's
// connection.
func ServeRouter(ctx context.Context, ln net.Listener, opts zmq.Options, answer func(question [][]byte, to *zmq.Conn) error) {
	zmq.Serve(ctx, ln, zmq.ROUTER, opts, func(_ context.Context, c *zmq.Conn) {
		for {
			m, err := c.Read()
			if err != nil {
				return
			}
			if m.Command == "" && !m.TooBig && answer(m.Frames, c) != nil {
				return
			}
		}
	}, func(error) {})
}
