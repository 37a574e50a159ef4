package events

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tandem-pd/tandem/kv/follow"
	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/kv/view"
	"github.com/tandem-pd/tandem/kv/wire"
	"github.com/tandem-pd/tandem/lab/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a subscriber with one index, and publishers, on a bus.
type rig struct {
	t      *testing.T
	bus    wire.Bus // the publishers'
	subBus wire.Bus
	sub    *follow.Subscriber
	idx    *fakeIndex
	reg    *prometheus.Registry
	ctx    context.Context
	runs   sync.WaitGroup
}

// virtual runs f in virtual time, with a rig on a bus in memory.
func virtual(t *testing.T, cfg follow.Config, f func(t *testing.T, r *rig)) {
	synctest.Test(t, func(t *testing.T) {
		bus := memoryBus(t)
		f(t, newRig(t, cfg, bus, bus))
	})
}

func memoryBus(t *testing.T) *testkit.Bus {
	bus := testkit.NewBus()
	t.Cleanup(bus.Close)
	return bus
}

// newRig starts a subscriber on subBus. All it started has ended when the test has.
func newRig(t *testing.T, cfg follow.Config, pubBus, subBus wire.Bus) *rig {
	return newRigWithLog(t, cfg, pubBus, subBus, slog.New(slog.DiscardHandler))
}

func newRigWithLog(t *testing.T, cfg follow.Config, pubBus, subBus wire.Bus, log *slog.Logger) *rig {
	idx := newIndex()
	r := newRigInto(t, cfg, pubBus, subBus, log, func(string) follow.Index { return indexOf{idx} })
	r.idx = idx
	return r
}

// newRigInto starts a subscriber that writes into indexes of another kind.
func newRigInto(t *testing.T, cfg follow.Config, pubBus, subBus wire.Bus, log *slog.Logger, indexFor func(pool string) follow.Index) *rig {
	ctx, cancel := context.WithCancel(t.Context())
	r := &rig{t: t, bus: pubBus, subBus: subBus, reg: prometheus.NewRegistry(), ctx: ctx}
	r.sub = follow.New(cfg, subBus, indexFor, log, r.reg)
	r.runs.Go(func() { assert.NoError(t, r.sub.Run(ctx)) })
	t.Cleanup(func() { cancel(); r.runs.Wait() })
	return r
}

// indexOf is a fake index as a Subscriber takes it.
type indexOf struct{ *fakeIndex }

func (x indexOf) Part(worker string, rank int) index.Part {
	return faulty{x.Of(worker, rank), &x.faults}
}

// counted is the value of a counter, of all its series that have a label of that value.
func (r *rig) counted(name, label string) (sum float64) {
	families, err := r.reg.Gather()
	require.NoError(r.t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && (label == "" ||
				slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool { return l.GetValue() == label })) {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

// speaker is an engine's cache that changes at random, with its publisher.
type speaker struct {
	*testkit.Engine
	*view.Publisher
	t      *testing.T
	worker string
	stop   func()
}

// speaks starts one of a worker's rank 0, by default of w. It ends with its stop, or the rig.
func (r *rig) speaks(seed uint64, cfg view.PublisherConfig) *speaker {
	r.t.Helper()
	if cfg.Source.Worker == "" {
		cfg.Source = source("w")
	}
	p, stop := r.publisher(cfg)
	return &speaker{testkit.NewEngine(seed, 16), p, r.t, cfg.Source.Worker, stop}
}

// publisher starts one. It ends with the returned func, or the rig.
func (r *rig) publisher(cfg view.PublisherConfig) (*view.Publisher, func()) {
	p, err := view.NewPublisher(cfg, r.bus, slog.New(slog.DiscardHandler))
	require.NoError(r.t, err)
	ctx, cancel := context.WithCancel(r.ctx)
	done := make(chan struct{})
	r.runs.Go(func() {
		defer close(done)
		assert.NoError(r.t, p.Run(ctx))
	})
	return p, func() { cancel(); <-done }
}

// source is a worker's rank 0.
func source(worker string) wire.Source { return wire.Source{Pool: testkit.Pool, Worker: worker} }

// publishSteps changes the cache so many times.
func (s *speaker) publishSteps(steps int) {
	s.t.Helper()
	for range steps {
		s.publishEvents(s.Step()...)
	}
}

// publishEvents publishes one message.
func (s *speaker) publishEvents(events ...wire.Event) {
	s.t.Helper()
	require.NoError(s.t, s.Publish(events))
}

// track has rank 0 of workers followed.
func (r *rig) track(workers ...string) {
	for _, w := range workers {
		r.sub.Track(testkit.Pool, w, []int{0}, 16, 0)
	}
}

func (r *rig) status(worker string) follow.SourceStatus {
	for _, s := range r.sub.Sources() {
		if s.Source.Worker == worker {
			return s
		}
	}
	return follow.SourceStatus{}
}

// follows reports whether a speaker's worker is live at its last message, and the index equals its cache.
func (r *rig) follows(p *speaker) bool {
	s := r.status(p.worker)
	return s.State == follow.Live && s.Epoch == p.Epoch() && s.Seq == p.Stats().Seq && p.Mismatch(r.idx.Of(p.worker, 0), 16) == ""
}

// catchesUp waits until it does.
func (r *rig) catchesUp(p *speaker, what string) {
	r.t.Helper()
	r.until(what, func() bool { return r.follows(p) })
}

// until waits for a condition.
func (r *rig) until(what string, condition func() bool) {
	r.t.Helper()
	defer func() {
		if r.t.Failed() {
			r.t.Logf("%+v", r.sub.Sources())
		}
	}()
	within(r.t, 20*time.Second, 2*time.Millisecond, what, condition)
}
