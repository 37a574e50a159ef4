package kvevents

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/tandem-pd/tandem/internal/kvevents/eventstest"
	"github.com/tandem-pd/tandem/internal/kvevents/follow"
	"github.com/tandem-pd/tandem/internal/kvevents/publish"
	"github.com/tandem-pd/tandem/internal/kvevents/view"
	"github.com/tandem-pd/tandem/internal/kvevents/wire"

	dto "github.com/prometheus/client_model/go"
)

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
func newRigInto(t *testing.T, cfg follow.Config, pubBus, subBus wire.Bus, log *slog.Logger, index func(pool string) follow.Index) *rig {
	ctx, cancel := context.WithCancel(t.Context())
	r := &rig{t: t, bus: pubBus, subBus: subBus, reg: prometheus.NewRegistry(), ctx: ctx}
	var err error
	r.sub, err = follow.New(cfg, subBus, index, log, r.reg)
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

// indexOf is a fake index as a Subscriber takes it.
type indexOf struct{ *fakeIndex }

func (x indexOf) Part(worker string, rank int) view.Part {
	return faulty{x.Of(worker, rank), &x.faults}
}

// counted is the value of a counter, of all its series that have a label of that value.
func (r *rig) counted(name, label string) (sum float64) {
	families, err := r.reg.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && (label == "" || slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool { return l.GetValue() == label })) {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

// publisher starts one of a worker's rank 0. It ends with the returned func, or the rig.
func (r *rig) publisher(cfg publish.Config) (*publish.Publisher, func()) {
	p, err := publish.New(cfg, r.bus, slog.New(slog.DiscardHandler))
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

func (r *rig) status(worker string) follow.SourceStatus {
	for _, s := range r.sub.Sources() {
		if s.Source.Worker == worker {
			return s
		}
	}
	return follow.SourceStatus{}
}

// settled says whether worker is live at p's last message and the index is what g holds.
func (r *rig) settled(g *eventstest.Engine, p *publish.Publisher, worker string) bool {
	s := r.status(worker)
	return s.State == follow.Live && s.Epoch == p.Epoch() && s.Seq == p.Stats().Seq &&
		g.Mismatch(r.idx.Of(worker, 0), 16) == ""
}
