package view

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tandem-pd/tandem/kv/wire"
)

// PublisherConfig is how a [Publisher] works. The zero value of each field but Source means its default.
type PublisherConfig struct {
	Source wire.Source
	Epoch  uint64 // of this process, above 0; drawn at random by default
	// MaxBytes is the most that one message carries, 4 KiB to 1 MiB, which NATS refuses; by default 512 KiB.
	MaxBytes  int
	Heartbeat time.Duration // between two announcements of the last number, which show that it was lost; 1 s
	// KeepPages is how long the pages of a snapshot are kept after the last request for one, by default 10 s, and
	// KeptPagesBytes bounds all of them, by default 64 MiB. The oldest snapshot goes first; the newest stays.
	KeepPages      time.Duration
	KeptPagesBytes int
	// RingMessages and RingBytes bound the last messages that are kept as they were sent, by default 1,024 and 16 MiB. The
	// newest stays. A gap that the ring does not cover takes a snapshot.
	RingMessages, RingBytes int
	Partial                 bool // what SetPartial sets, at the beginning
}

// validate names the first field that is out of range.
func (c *PublisherConfig) validate() error {
	switch {
	case c.Source.Pool == "" || c.Source.Worker == "" || c.Source.Rank < 0:
		return fmt.Errorf("source %q: pool and worker must have a name, and the rank not be negative", c.Source)
	case c.MaxBytes != 0 && (c.MaxBytes < 4<<10 || c.MaxBytes > 1<<20):
		return fmt.Errorf("max bytes %d: must be 4 KiB to 1 MiB", c.MaxBytes)
	case c.Heartbeat < 0 || c.KeepPages < 0 || c.KeptPagesBytes < 0:
		return errors.New("heartbeat, keep pages and kept pages' bytes must not be negative")
	case c.RingMessages < 0 || c.RingBytes < 0:
		return errors.New("ring messages and ring bytes must not be negative")
	}
	return nil
}

// PublisherStats counts what a Publisher did.
type PublisherStats struct {
	Messages  uint64 // handed to the bus
	Bytes     uint64 // of them
	Failed    uint64 // of them, those that the bus did not take: gaps to the subscribers
	Snapshots uint64 // begun
	Rings     uint64 // requests that were answered out of the ring, page by page
	Blocks    int    // held by the engine now, with those removed that others follow on
	Seq       uint64 // of the last message

	RingMessages, RingBytes int // kept now
}

// Publisher publishes what one engine rank holds: it numbers and sends the engine's events, and keeps a mirror to
// answer subscribers that missed some.
type Publisher struct {
	cfg PublisherConfig
	bus wire.Bus
	log *slog.Logger

	partial                                   atomic.Bool   // see HeaderPartial
	sent                                      atomic.Uint64 // the last number that was handed to the bus
	messages, bytes, failed, snapshots, rings atomic.Uint64

	mu   sync.Mutex // guards held, seq and ring, which change together
	held *Record
	seq  uint64
	ring ring

	pagesMu sync.Mutex // guards pages, oldest first
	pages   []*pages
	made    uint64
}

// NewPublisher returns a Publisher of an engine that holds nothing. Its error is the config's.
func NewPublisher(cfg PublisherConfig, bus wire.Bus, log *slog.Logger) (*Publisher, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("KV events publisher: %w", err)
	}
	for cfg.Epoch == 0 {
		var b [8]byte
		_, _ = rand.Read(b[:]) // never fails
		cfg.Epoch = binary.LittleEndian.Uint64(b[:])
	}
	cfg.MaxBytes = cmp.Or(cfg.MaxBytes, 512<<10)
	cfg.Heartbeat = cmp.Or(cfg.Heartbeat, time.Second)
	cfg.KeepPages = cmp.Or(cfg.KeepPages, 10*time.Second)
	cfg.KeptPagesBytes = cmp.Or(cfg.KeptPagesBytes, 64<<20)
	cfg.RingMessages = cmp.Or(cfg.RingMessages, 1024)
	cfg.RingBytes = cmp.Or(cfg.RingBytes, 16<<20)
	p := &Publisher{
		cfg: cfg, bus: bus, log: log, held: NewRecord(), ring: ring{maxMessages: cfg.RingMessages, maxBytes: cfg.RingBytes},
	}
	p.partial.Store(cfg.Partial)
	return p, nil
}

// Run answers requests for messages and snapshots and sends heartbeats until ctx ends, then returns nil. It fails if
// the bus cannot be subscribed to. While NATS is disconnected only messages are lost, which shows by their numbers.
func (p *Publisher) Run(ctx context.Context) error {
	stop, err := p.bus.Subscribe(p.cfg.Source.SnapshotSubject(), p.answer, func(dropped int) {
		p.log.Warn("too many requests for KV snapshots; some were dropped", "source", p.cfg.Source, "dropped", dropped)
	})
	if err != nil {
		return fmt.Errorf("subscribe to snapshot requests: %w", err)
	}
	defer stop()
	beat := time.NewTicker(p.cfg.Heartbeat)
	defer beat.Stop()
	for {
		p.beacon()
		select {
		case <-ctx.Done():
			return nil
		case now := <-beat.C:
			p.forget(now)
		}
	}
}

// Publish publishes events in order and does not retain them. It does not wait for NATS. Call it from one goroutine:
// messages of concurrent calls may overtake each other, which subscribers see as a short gap. On a bus error the mirror
// has the events nevertheless.
func (p *Publisher) Publish(events []wire.Event) error {
	pack := wire.NewPacker(p.cfg.MaxBytes, time.Now(), p.cfg.Source.Rank)
	for i := range events {
		pack.Add(events[i])
	}
	payloads := pack.Batches()

	p.mu.Lock()
	p.held.Apply(events)
	if p.partial.Load() {
		p.held.Uncount()
	}
	first := p.seq + 1
	p.seq += uint64(len(payloads))
	for i, payload := range payloads {
		p.ring.push(first+uint64(i), payload)
	}
	p.mu.Unlock()

	subject := p.cfg.Source.EventsSubject()
	var failed error
	for i, payload := range payloads {
		seq := first + uint64(i)
		if err := p.send(subject, seq, payload, nil); err != nil {
			failed = err
			p.failed.Add(1)
		}
		p.sent.Store(max(seq, p.sent.Load()))
	}
	return failed
}

// SetPartial sets whether events were lost before they reached this Publisher, so that its mirror is not what the engine
// holds: every message has that, and one is sent now, in case none follows. Call it from where Publish is called.
func (p *Publisher) SetPartial(on bool) {
	if p.partial.Swap(on) != on {
		p.beacon()
	}
}

// Epoch is what the messages of this Publisher carry as their epoch.
func (p *Publisher) Epoch() uint64 { return p.cfg.Epoch }

// Blocks is how many blocks the engine holds now, with those removed that others follow on.
func (p *Publisher) Blocks() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held.Blocks()
}

// Stats returns the counts so far.
func (p *Publisher) Stats() PublisherStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return PublisherStats{
		Messages: p.messages.Load(), Bytes: p.bytes.Load(), Failed: p.failed.Load(), Snapshots: p.snapshots.Load(),
		Rings: p.rings.Load(), Blocks: p.held.Blocks(), Seq: p.seq,
		RingMessages: len(p.ring.messages), RingBytes: p.ring.bytes,
	}
}

// send hands one numbered message to the bus.
func (p *Publisher) send(subject string, seq uint64, payload []byte, extra map[string]string) error {
	m := nats.NewMsg(subject)
	wire.Stamp(m, p.cfg.Epoch, seq)
	p.mark(m)
	for k, v := range extra {
		m.Header.Set(k, v)
	}
	m.Data = payload
	p.messages.Add(1)
	p.bytes.Add(uint64(len(payload)))
	return p.bus.Publish(m)
}

// beacon sends the last number again, without events.
func (p *Publisher) beacon() {
	if err := p.send(p.cfg.Source.EventsSubject(), p.sent.Load(), nil, nil); err != nil {
		p.log.Debug("KV events heartbeat not sent", "source", p.cfg.Source, "error", err)
	}
}

// mark writes [wire.HeaderPartial] where it is so.
func (p *Publisher) mark(m *nats.Msg) {
	if p.partial.Load() {
		m.Header.Set(wire.HeaderPartial, "1")
	}
}
