package events

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/tandem-pd/tandem/router/index"
)

const testPool = "m/prefill"

// rig is a subscriber with one index, and publishers, on a bus.
type rig struct {
	t    *testing.T
	bus  Bus // the publishers'
	sub  *Subscriber
	idx  *index.Index
	reg  *prometheus.Registry
	ctx  context.Context
	runs sync.WaitGroup
}

// newRig starts a subscriber on subBus. All it started has ended when the test has.
func newRig(t *testing.T, cfg SubscriberConfig, pubBus, subBus Bus) *rig {
	return newRigWithLog(t, cfg, pubBus, subBus, slog.New(slog.DiscardHandler))
}

func newRigWithLog(t *testing.T, cfg SubscriberConfig, pubBus, subBus Bus, log *slog.Logger) *rig {
	ctx, cancel := context.WithCancel(t.Context())
	r := &rig{t: t, bus: pubBus, idx: index.New(index.Config{}), reg: prometheus.NewRegistry(), ctx: ctx}
	var err error
	r.sub, err = NewSubscriber(cfg, subBus, func(string) *index.Index { return r.idx }, log, r.reg)
	if err != nil {
		t.Fatal(err)
	}
	r.runs.Go(func() {
		if err := r.sub.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); r.runs.Wait() })
	return r
}

// publisher starts one of a worker's rank 0. It ends with the returned func, or the rig.
func (r *rig) publisher(cfg PublisherConfig) (*Publisher, func()) {
	p, err := NewPublisher(cfg, r.bus, slog.New(slog.DiscardHandler))
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(r.ctx)
	done := make(chan struct{})
	r.runs.Go(func() {
		defer close(done)
		if err := p.Run(ctx); err != nil {
			r.t.Error(err)
		}
	})
	return p, func() { cancel(); <-done }
}

func (r *rig) status(worker string) SourceStatus {
	for _, s := range r.sub.Sources() {
		if s.Source.Worker == worker {
			return s
		}
	}
	return SourceStatus{}
}

// settled says whether worker is live at p's last message and the index is what g holds.
func (r *rig) settled(g *fakeEngine, p *Publisher, worker string) bool {
	s := r.status(worker)
	return s.State == Live && s.Epoch == p.Epoch() && s.Seq == p.Stats().Seq &&
		g.mismatch(r.idx, r.idx.Owner(worker, 0), 16) == ""
}

// valueOf reads a counter.
func valueOf(c prometheus.Metric) float64 {
	var m dto.Metric
	if err := c.Write(&m); err != nil {
		panic(err)
	}
	return m.GetCounter().GetValue()
}

// within waits for a condition, asking for it again every pause. In a bubble the time is virtual.
func within(t *testing.T, limit, pause time.Duration, what string, condition func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for !condition() {
		select {
		case <-ctx.Done():
			t.Fatalf("not within %v: %s", limit, what)
		case <-tick.C:
		}
	}
}

// lossyBus loses, doubles and reorders event messages, and fails requests, each with the given chance in a hundred.
type lossyBus struct {
	Bus
	chance int

	mu     sync.Mutex // guards all below
	rng    *rand.Rand
	late   *nats.Msg
	losses int
}

func (b *lossyBus) roll() bool { return b.rng.IntN(100) < b.chance }

func (b *lossyBus) Publish(m *nats.Msg) error {
	if _, err := ParseEventsSubject(m.Subject); err != nil {
		return b.Bus.Publish(m)
	}
	b.mu.Lock()
	var out []*nats.Msg
	if b.roll() {
		b.losses++
	} else {
		out = append(out, m)
	}
	if b.roll() {
		out = append(out, m)
	}
	if b.late != nil {
		out = append(out, b.late)
		b.late = nil
	} else if len(out) > 0 && b.roll() {
		b.late, out = out[0], out[1:]
	}
	b.mu.Unlock()
	for _, m := range out {
		if err := b.Bus.Publish(m); err != nil {
			return err
		}
	}
	return nil
}

func (b *lossyBus) Request(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
	b.mu.Lock()
	lose := b.roll()
	b.mu.Unlock()
	if lose {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return b.Bus.Request(ctx, m)
}

// scriptedBus answers requests with one answer after another, and then for ever with the last.
type scriptedBus struct {
	Bus
	answers []*nats.Msg
}

func (b *scriptedBus) Request(context.Context, *nats.Msg) (*nats.Msg, error) {
	if len(b.answers) == 0 {
		return nil, errors.New("nothing to answer")
	}
	m := b.answers[0]
	if len(b.answers) > 1 {
		b.answers = b.answers[1:]
	}
	return m, nil
}
