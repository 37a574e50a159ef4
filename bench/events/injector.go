package main

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tandem-pd/tandem/internal/kvevents/wire"
)

// chances are how often each thing goes wrong with a message, 0 to 1.
type chances struct {
	Drop, Double, Reorder, Delay float64
	// Straggler is how often a message of a process that has ended comes after the first ones of its successor, in addition to
	// its having come in time.
	Straggler float64
}

// injected counts the disturbances of one transport's messages.
type injected struct {
	dropped, doubled, reordered, delayed, stragglers atomic.Uint64
	requests                                         atomic.Uint64 // for snapshots, lost
	cuts, down, stalls                               atomic.Uint64 // of connections
}

// unreliable is the bus of one engine's publisher as bad networks and bad clients make it. What happens to a message
// follows from hash(seed, epoch, number), so that it happens again with the same seed.
type unreliable struct {
	wire.Bus
	seed   uint64
	window int           // by how many messages of the engine one may be overtaken
	wait   time.Duration // how late a delayed one comes
	count  *injected
	on     *atomic.Bool // off: everything passes

	mu    sync.Mutex // guards all below
	odds  chances
	usual chances // the odds but for a blackout
	sent  uint64  // messages so far
	late  []lateMessage
	tails []*nats.Msg // of the present process: what may come again after its end
}

// lateMessage is one that is kept back until so many others were sent, or until a time.
type lateMessage struct {
	m     *nats.Msg
	after uint64
	at    time.Time
}

// mostTails is how many messages of a process may come after its end.
const mostTails = 8

// Publish implements events.Bus.
func (b *unreliable) Publish(m *nats.Msg) error {
	if _, err := wire.ParseEventsSubject(m.Subject); err != nil || !b.on.Load() {
		return b.Bus.Publish(m) // an answer to a request
	}
	b.mu.Lock()
	b.sent++
	out := b.judge(m)
	out = append(out, b.due(time.Now())...)
	b.mu.Unlock()
	return b.send(out)
}

// judge returns the part of m to send now, and keeps the rest.
func (b *unreliable) judge(m *nats.Msg) []*nats.Msg {
	epoch, _ := strconv.ParseUint(m.Header.Get(wire.HeaderEpoch), 10, 64)
	seq, _ := strconv.ParseUint(m.Header.Get(wire.HeaderSeq), 10, 64)
	draw := chance(b.seed, epoch, seq)
	if len(m.Data) == 0 { // a heartbeat has the number of the message before
		draw = chance(draw, b.sent, 4)
	}
	if hits(chance(draw, 0, 5), b.odds.Straggler) && len(b.tails) < mostTails {
		b.tails = append(b.tails, m)
	}
	switch kind := float64(chance(draw, 0, 6)>>11) / (1 << 53); {
	case kind < b.odds.Drop:
		b.count.dropped.Add(1)
		return nil
	case kind < b.odds.Drop+b.odds.Double:
		b.count.doubled.Add(1)
		return []*nats.Msg{m, m}
	case kind < b.odds.Drop+b.odds.Double+b.odds.Reorder:
		b.count.reordered.Add(1)
		b.late = append(b.late, lateMessage{m: m, after: b.sent + 1 + chance(draw, 0, 7)%uint64(b.window)})
		return nil
	case kind < b.odds.Drop+b.odds.Double+b.odds.Reorder+b.odds.Delay:
		b.count.delayed.Add(1)
		b.late = append(b.late, lateMessage{m: m, at: time.Now().Add(b.wait)})
		return nil
	}
	return []*nats.Msg{m}
}

// due removes and returns the messages whose delay is over.
func (b *unreliable) due(now time.Time) []*nats.Msg {
	var out []*nats.Msg
	kept := b.late[:0]
	for _, l := range b.late {
		if l.at.IsZero() && l.after <= b.sent || !l.at.IsZero() && !l.at.After(now) {
			out = append(out, l.m)
		} else {
			kept = append(kept, l)
		}
	}
	clear(b.late[len(kept):])
	b.late = kept
	return out
}

// succeed notes that the process behind the bus has ended: some of its messages come among its successor's.
func (b *unreliable) succeed() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, m := range b.tails {
		b.count.stragglers.Add(1)
		b.late = append(b.late, lateMessage{m: m, after: b.sent + 1 + 3*uint64(i)})
	}
	b.tails = nil
}

// settle sends all that was kept back. on is to be off, so that nothing is kept after it.
func (b *unreliable) settle() error {
	b.mu.Lock()
	var out []*nats.Msg
	for _, l := range b.late {
		out = append(out, l.m)
	}
	b.late, b.tails = nil, nil
	b.mu.Unlock()
	return b.send(out)
}

func (b *unreliable) send(out []*nats.Msg) error {
	var errs []error
	for _, m := range out {
		errs = append(errs, b.Bus.Publish(m))
	}
	return errors.Join(errs...)
}

// forgetful is the subscriber's bus: some of its requests get no answer, and its messages can be stopped as though
// their handler took its time.
type forgetful struct {
	wire.Bus
	seed  uint64
	odds  float64 // that a request is lost
	count *injected
	on    *atomic.Bool

	asked atomic.Uint64
	gate  gate
}

// Request implements events.Bus.
func (b *forgetful) Request(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
	if b.on.Load() && hits(chance(b.seed, b.asked.Add(1), 8), b.odds) {
		b.count.requests.Add(1)
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return b.Bus.Request(ctx, m)
}

// Subscribe implements events.Bus.
func (b *forgetful) Subscribe(subject string, handle func(*nats.Msg), slow func(int)) (func(), error) {
	return b.Bus.Subscribe(subject, func(m *nats.Msg) { b.gate.pass(nil); handle(m) }, slow)
}

// gate lets pass while it is open, which a new one is.
type gate struct {
	mu     sync.Mutex
	closed chan struct{} // nil while open
}

// pass waits until the gate is open, or until is closed.
func (g *gate) pass(until <-chan struct{}) {
	g.mu.Lock()
	wait := g.closed
	g.mu.Unlock()
	if wait == nil {
		return
	}
	select {
	case <-wait:
	case <-until:
	}
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed == nil {
		g.closed = make(chan struct{})
	}
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed != nil {
		close(g.closed)
		g.closed = nil
	}
}
