package kvevents

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/tandem-pd/tandem/internal/kvevents/eventstest"
	"github.com/tandem-pd/tandem/internal/kvevents/follow"
	"github.com/tandem-pd/tandem/internal/kvevents/publish"
	"github.com/tandem-pd/tandem/internal/kvevents/wire"
)

// A message of a process that has ended casts a doubt that can wait; messages that are missing meanwhile can not.
func TestGapDoesNotWaitForADoubt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := eventstest.NewBus()
		t.Cleanup(bus.Close)
		speaks := &mutableBus{Bus: bus}
		r := newRig(t, follow.Config{RetryMin: 10 * time.Millisecond, SnapshotEvery: time.Hour}, speaks, bus)
		g := eventstest.NewEngine(1, 16)
		source := wire.Source{Pool: eventstest.Pool, Worker: "w", Rank: 0}
		old, stop := r.publisher(publish.Config{Source: source})
		r.sub.Track(eventstest.Pool, "w", []int{0}, 16, 0)
		synctest.Wait()
		stop()
		p, _ := r.publisher(publish.Config{Source: source})
		if err := p.Publish([]wire.Event{g.Store(3)}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		straggler := nats.NewMsg(source.EventsSubject())
		wire.Stamp(straggler, old.Epoch(), 1)
		// The first has it asked who is there, at once; the second not before an hour has passed.
		for range 2 {
			if err := bus.Publish(straggler); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		if s := r.status("w"); s.State != follow.Recovering || s.Snapshots == 0 {
			t.Fatalf("no doubt is left open: %+v", s)
		}
		speaks.mute.Store(true)
		if err := p.Publish([]wire.Event{g.Store(1)}); err != nil {
			t.Fatal(err)
		}
		speaks.mute.Store(false)
		if err := p.Publish([]wire.Event{g.Store(1)}); err != nil {
			t.Fatal(err)
		}
		within(t, time.Minute, 10*time.Millisecond, "the gap is filled", func() bool {
			s := r.status("w")
			return s.Seq == p.Stats().Seq && g.Mismatch(r.idx.Of("w", 0), 16) == ""
		})
	})
}

// mutableBus takes messages while it is mute, and delivers none.
type mutableBus struct {
	wire.Bus
	mute atomic.Bool
}

func (b *mutableBus) Publish(m *nats.Msg) error {
	if b.mute.Load() {
		return nil
	}
	return b.Bus.Publish(m)
}
