package kvevents

import (
	"testing"

	"github.com/tandem-pd/tandem/internal/kvevents/eventstest"
	"github.com/tandem-pd/tandem/internal/kvevents/follow"
	"github.com/tandem-pd/tandem/internal/kvevents/publish"
	"github.com/tandem-pd/tandem/internal/kvevents/view"
	"github.com/tandem-pd/tandem/internal/kvevents/wire"
)

// TestOvergrownIsPredicted: over NATS and over a bridge as well, and neither index nor bridge keeps what was named.
func TestOvergrownIsPredicted(t *testing.T) {
	publishes := func(r *rig, tell func(...wire.Event)) {
		t.Helper()
		status := func() follow.SourceStatus { return r.status("w") }
		next := uint32(0)
		r.until("predicted", func() bool {
			if next < 100 {
				next++
				tell(eventstest.Chain(next, 1000))
			}
			return status().State == follow.Predicted
		})
		r.until("nothing is kept", func() bool { return r.idx.Of("w", 0).Blocks() == 0 && status().Blocks == 0 })
		tell(wire.Event{Kind: wire.Cleared}, eventstest.Chain(7, 3))
		r.until("believed again", func() bool { return status().State == follow.Live && r.idx.Of("w", 0).Blocks() == 3 })
	}
	t.Run("nats", func(t *testing.T) {
		bus := memoryBus(t)
		r := newRig(t, follow.Config{}, bus, bus)
		p := r.speaks(1, publish.Config{})
		r.sub.Track(eventstest.Pool, "w", []int{0}, 16, 1000)
		publishes(r, p.tell)
	})
	t.Run("bridge", func(t *testing.T) {
		e := newZMQEngine(t, 1, replays)
		r := natsRig(t, memoryBus(t))
		b := r.bridge(e.at(), 1, 1000)
		r.until("connected", func() bool { return e.pub.Subscribers() > 0 })
		publishes(r, e.tell)
		if got := b.Status()[0]; got.Blocks > 4000+1000 {
			t.Errorf("the bridge keeps %d blocks", got.Blocks)
		}
	})
	// Blocks that others follow on are mirrored after their removal: leaves alone would keep all chains.
	t.Run("leaves", func(t *testing.T) {
		e := newZMQEngine(t, 1, replays)
		r := natsRig(t, memoryBus(t))
		b := r.bridge(e.at(), 1, 1000)
		r.until("connected", func() bool { return e.pub.Subscribers() > 0 })
		for i := range 100 {
			chain := eventstest.Chain(uint32(i+1), 1000)
			e.tell(chain, wire.Event{Kind: wire.Removed, Hashes: chain.Hashes[:999]})
		}
		r.until("all was heard", func() bool { return b.caughtUp(e) })
		if got := b.Status()[0]; got.Blocks > view.MostBlocks(1000) || !got.Partial {
			t.Errorf("%+v", got)
		}
	})
}
