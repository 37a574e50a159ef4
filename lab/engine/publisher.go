package engine

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/tandem-pd/tandem/kv/wire"
	"github.com/tandem-pd/tandem/kv/zmq"
)

// PublisherConfig is how a [Publisher] works. The zero value of each field but Endpoint means its default.
type PublisherConfig struct {
	// Endpoint is tcp://HOST:PORT of rank 0, bound or connected to as the dialect's engine does: see [Config.binds].
	Endpoint       string
	ReplayEndpoint string       // bound for replays of rank 0; empty for none
	Topic          string       // goes before each message
	Rank           int          // the data-parallel rank: it is in each batch, and added to both ports
	Dialect        wire.Dialect // the form of the batches, by default [wire.VLLM]
	BufferSteps    int          // batches kept for replays, by default 10,000
	HighWater      int          // messages that wait at most for one subscriber, by default 100,000
	Options        zmq.Options  // of the connections
}

// validate names the first field that is out of range.
func (c *PublisherConfig) validate() error {
	for _, e := range []struct{ field, endpoint string }{{"endpoint", c.Endpoint}, {"replay endpoint", c.ReplayEndpoint}} {
		if e.endpoint == "" && e.field != "endpoint" {
			continue
		}
		at, err := zmq.ParseEndpoint(e.endpoint)
		if err == nil && at.Offset(c.Rank).Port > math.MaxUint16 {
			err = fmt.Errorf("must have a port for rank %d, begins at %d", c.Rank, at.Port)
		}
		if err != nil {
			return fmt.Errorf("%s %w", e.field, err)
		}
	}
	if c.Rank < 0 || c.BufferSteps < 0 || c.HighWater < 0 || !c.Dialect.Valid() {
		return errors.New("rank, buffer steps, high water and dialect must be in range")
	}
	return nil
}

// binds reports whether the engine binds its endpoint: vLLM one with * or :: (ZmqEventPublisher._is_bind_endpoint in
// 0.32's distributed/kv_events.py), SGLang also one with 0.0.0.0 (0.5.23's srt/disaggregation/kv_events.py),
// TensorRT-LLM all.
func (c *PublisherConfig) binds() bool {
	switch d := c.Dialect; {
	case d == wire.TensorRT:
		return true
	case strings.HasPrefix(d.String(), "sglang") && strings.Contains(c.Endpoint, "0.0.0.0"):
		return true
	}
	return strings.Contains(c.Endpoint, "*") || strings.Contains(c.Endpoint, "::")
}

// Publisher publishes an engine's events as vLLM and SGLang do by themselves: a batch a message, numbered from 0, with
// a buffer of the last ones to ask for and nothing else.
type Publisher struct {
	cfg    PublisherConfig
	at     zmq.Endpoint
	pub    *Socket
	events net.Listener // nil where it connects
	replay net.Listener // nil without a replay endpoint

	mu   sync.Mutex // guards all below; messages are handed on under it, so that they keep their order
	next uint64
	ring []zmq.Message // the last BufferSteps, oldest at next modulo its length once it is full
}

// NewPublisher opens the sockets, so that their ports are known. Call Run or Close.
func NewPublisher(cfg PublisherConfig) (*Publisher, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("KV events over ZMQ: %w", err)
	}
	cfg.BufferSteps = cmp.Or(cfg.BufferSteps, 10_000)
	p := &Publisher{cfg: cfg, pub: NewSocket(SocketConfig{Options: cfg.Options, HighWater: cfg.HighWater})}
	base, _ := zmq.ParseEndpoint(cfg.Endpoint) // validate has seen that it can be read
	p.at = base.Offset(cfg.Rank)
	listen := cfg.Options.Listen
	if listen == nil {
		listen = new(net.ListenConfig).Listen
	}
	var err error
	if cfg.binds() {
		if p.events, err = listen(context.Background(), "tcp", p.at.Address()); err != nil {
			return nil, fmt.Errorf("KV events endpoint: %w", err)
		}
	}
	if cfg.ReplayEndpoint != "" {
		at, _ := zmq.ParseEndpoint(cfg.ReplayEndpoint)
		if p.replay, err = listen(context.Background(), "tcp", at.Offset(cfg.Rank).Address()); err != nil {
			return nil, errors.Join(fmt.Errorf("KV events replay endpoint: %w", err), p.Close())
		}
	}
	return p, nil
}

// Ports are those of this rank's sockets as they were opened, 0 for one that is not there.
func (p *Publisher) Ports() (events, replay int) { return openPort(p.events), openPort(p.replay) }

// Close closes the sockets of New if Run is not called.
func (p *Publisher) Close() error {
	var errs []error
	for _, ln := range []net.Listener{p.events, p.replay} {
		if ln != nil {
			errs = append(errs, ln.Close())
		}
	}
	return errors.Join(errs...)
}

// Run serves subscribers and replays until ctx ends, and gives the sockets back.
func (p *Publisher) Run(ctx context.Context) error {
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() {
		if p.events != nil {
			p.pub.Serve(ctx, p.events)
		} else {
			p.pub.Connect(ctx, p.at.Address())
		}
	})
	if p.replay != nil {
		all.Go(func() { ServeRouter(ctx, p.replay, p.cfg.Options, p.answer) })
	}
	<-ctx.Done()
	return nil
}

// Publish tells events in one batch and does not wait. Its error is always nil: a subscriber that cannot follow sees a
// gap in the numbers.
func (p *Publisher) Publish(events []wire.Event) error {
	b := wire.Batch{TS: float64(time.Now().UnixMicro()) / 1e6, Rank: p.cfg.Rank, Events: events}
	p.Send(p.cfg.Dialect.Append(nil, &b))
	return nil
}

// Send publishes a payload as it is, under the next number.
func (p *Publisher) Send(payload []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := zmq.Message{Seq: p.next, Payload: payload}
	if len(p.ring) < p.cfg.BufferSteps {
		p.ring = append(p.ring, m)
	} else {
		p.ring[p.next%uint64(len(p.ring))] = m
	}
	p.next++
	p.pub.Send([]byte(p.cfg.Topic), appendSeq(nil, m.Seq), payload)
}

// Next is the number that the next batch will have.
func (p *Publisher) Next() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.next
}

// Subscribers is how many subscribe now.
func (p *Publisher) Subscribers() int { return p.pub.Subscribers() }

// answer sends the kept messages from the requested number on. An invalid request gets no answer.
func (p *Publisher) answer(question [][]byte, to *zmq.Conn) error {
	if len(question) != 2 || len(question[0]) != 0 || len(question[1]) > 8 {
		return nil
	}
	var number [8]byte
	copy(number[8-len(question[1]):], question[1])
	for _, m := range p.since(binary.BigEndian.Uint64(number[:])) {
		if err := to.Write(p.framed([]byte(p.cfg.Topic), m.Seq, m.Payload)...); err != nil {
			return err
		}
	}
	return to.Write(p.framed(nil, endMarker, nil)...)
}

// endMarker is the number that ends a replay; no message carries it.
const endMarker = math.MaxUint64

// appendSeq is a message's number as publishers write it.
func appendSeq(dst []byte, seq uint64) []byte { return binary.BigEndian.AppendUint64(dst, seq) }

// framed is one message of a replay.
func (p *Publisher) framed(topic []byte, seq uint64, payload []byte) [][]byte {
	if !p.cfg.Dialect.TopicInReplays() {
		return [][]byte{nil, appendSeq(nil, seq), payload}
	}
	return [][]byte{nil, bytes.Clone(topic), appendSeq(nil, seq), payload}
}

// since returns the kept messages from a number on, in order.
func (p *Publisher) since(from uint64) []zmq.Message {
	p.mu.Lock()
	defer p.mu.Unlock()
	first := p.next - uint64(len(p.ring))
	var out []zmq.Message
	for seq := max(from, first); seq < p.next; seq++ {
		out = append(out, p.ring[seq%uint64(p.cfg.BufferSteps)])
	}
	return out
}

func openPort(ln net.Listener) int {
	if ln == nil {
		return 0
	}
	return ln.Addr().(*net.TCPAddr).Port
}
