package events

import (
	"context"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/kv/wire"
	"github.com/tandem-pd/tandem/lab/testkit"
)

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

// lossyBus loses, doubles and reorders event messages, sends some again when their process may have ended, and fails
// requests, each with the given chance in a hundred.
type lossyBus struct {
	wire.Bus
	Chance int

	mu     sync.Mutex // guards all below
	Rng    *rand.Rand
	late   *nats.Msg
	old    *nats.Msg // to be sent again
	losses int
}

// Losses is how many messages were lost so far.
func (b *lossyBus) Losses() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.losses
}

func (b *lossyBus) roll() bool { return b.Rng.IntN(100) < b.Chance }

func (b *lossyBus) Publish(m *nats.Msg) error {
	if !strings.HasPrefix(m.Subject, wire.EventsPrefix) {
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
	if b.old != nil && b.roll() {
		out = append(out, b.old)
	}
	if b.old == nil || b.roll() {
		b.old = m
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

// fakeIndex is an index that keeps, for each rank and tier, a set of what was put there.
type fakeIndex struct {
	mu    sync.Mutex // guards ranks
	ranks map[fakeRank]*testkit.Part

	faults atomic.Int32 // how many of the next changes panic
}

// faulty is a part whose changes may panic.
type faulty struct {
	index.Part
	faults *atomic.Int32
}

func (f faulty) Store(t index.Tier, chain []uint64) {
	if f.faults.Load() > 0 {
		f.faults.Add(-1)
		panic("on purpose")
	}
	f.Part.Store(t, chain)
}

type fakeRank struct {
	worker string
	rank   int
}

// newIndex returns an empty index.
func newIndex() *fakeIndex { return &fakeIndex{ranks: map[fakeRank]*testkit.Part{}} }

// Of returns the index of a worker's rank, and adds the rank.
func (x *fakeIndex) Of(worker string, rank int) *testkit.Part {
	x.mu.Lock()
	defer x.mu.Unlock()
	of := fakeRank{worker, rank}
	if x.ranks[of] == nil {
		x.ranks[of] = &testkit.Part{}
	}
	return x.ranks[of]
}

// Has reports whether the index has a worker's rank.
func (x *fakeIndex) Has(worker string, rank int) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.ranks[fakeRank{worker, rank}] != nil
}

// Drop forgets a worker.
func (x *fakeIndex) Drop(worker string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	maps.DeleteFunc(x.ranks, func(of fakeRank, _ *testkit.Part) bool { return of.worker == worker })
}

// checkIndex fails the test unless the index is what the engine holds.
func checkIndex(t *testing.T, g *testkit.Engine, part *testkit.Part) {
	t.Helper()
	text := g.Mismatch(part, 16)
	require.Empty(t, text, "%d blocks in the engine, %d indexed", len(g.Blocks), part.Blocks())
}
