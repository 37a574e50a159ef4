package events

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
)

// A message of a process that has ended casts a doubt that can wait; messages that are missing meanwhile can not.
func TestGapDoesNotWaitForADoubt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := NewMemoryBus()
		t.Cleanup(bus.Close)
		speaks := &mutableBus{Bus: bus}
		r := newRig(t, SubscriberConfig{RetryMin: 10 * time.Millisecond, SnapshotEvery: time.Hour}, speaks, bus)
		g := newFakeEngine(1, 16)
		source := Source{testPool, "w", 0}
		old, stop := r.publisher(PublisherConfig{Source: source})
		r.sub.Track(testPool, "w", []int{0}, 16, 0)
		synctest.Wait()
		stop()
		p, _ := r.publisher(PublisherConfig{Source: source})
		if err := p.Publish([]Event{g.store(3)}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		straggler := nats.NewMsg(source.EventsSubject())
		stamp(straggler, old.Epoch(), 1)
		// The first has it asked who is there, at once; the second not before an hour has passed.
		for range 2 {
			if err := bus.Publish(straggler); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		if s := r.status("w"); s.State != Recovering || s.Snapshots == 0 {
			t.Fatalf("no doubt is left open: %+v", s)
		}
		speaks.mute.Store(true)
		if err := p.Publish([]Event{g.store(1)}); err != nil {
			t.Fatal(err)
		}
		speaks.mute.Store(false)
		if err := p.Publish([]Event{g.store(1)}); err != nil {
			t.Fatal(err)
		}
		within(t, time.Minute, 10*time.Millisecond, "the gap is filled", func() bool {
			s := r.status("w")
			return s.Seq == p.Stats().Seq && g.mismatch(r.idx, r.idx.Owner("w", 0), 16) == ""
		})
	})
}

// mutableBus takes messages while it is mute, and delivers none.
type mutableBus struct {
	Bus
	mute atomic.Bool
}

func (b *mutableBus) Publish(m *nats.Msg) error {
	if b.mute.Load() {
		return nil
	}
	return b.Bus.Publish(m)
}
