package kvevents

import (
	"testing"

	"github.com/tandem-pd/tandem/internal/kvevents/eventstest"
	"github.com/tandem-pd/tandem/internal/kvevents/follow"
	"github.com/tandem-pd/tandem/internal/kvevents/publish"
	"github.com/tandem-pd/tandem/internal/kvevents/view"
	"github.com/tandem-pd/tandem/internal/kvevents/wire"
	"github.com/tandem-pd/tandem/lab/zmqpub"
)

// chainOf is a chain of n blocks that begins with base.
func chainOf(base, n int) wire.Event {
	e := wire.Event{Kind: wire.Stored, BlockSize: 16, Medium: "GPU", Tokens: make([]uint32, 16*n)}
	for i := range n {
		e.Hashes = append(e.Hashes, wire.Hash(base<<32|i+1))
	}
	for i := range e.Tokens {
		e.Tokens[i] = uint32(base + i)
	}
	return e
}

// TestOvergrownIsPredicted: over NATS and over a bridge as well, and neither index nor bridge keeps what was named.
func TestOvergrownIsPredicted(t *testing.T) {
	publishes := func(r *rig, status func() follow.SourceStatus, publish func(...wire.Event) error) {
		t.Helper()
		next := 0
		r.until("predicted", func() bool {
			if next < 100 {
				next++
				if err := publish(chainOf(next, 1000)); err != nil {
					t.Fatal(err)
				}
			}
			return status().State == follow.Predicted
		})
		r.until("nothing is kept", func() bool { return r.idx.Of("w", 0).Blocks() == 0 && status().Blocks == 0 })
		if err := publish(wire.Event{Kind: wire.Cleared}, chainOf(7, 3)); err != nil {
			t.Fatal(err)
		}
		r.until("believed again", func() bool { return status().State == follow.Live && r.idx.Of("w", 0).Blocks() == 3 })
	}
	t.Run("nats", func(t *testing.T) {
		bus := memoryBus(t)
		r := newRig(t, follow.Config{}, bus, bus)
		p, _ := r.publisher(publish.Config{Source: wire.Source{Pool: eventstest.Pool, Worker: "w", Rank: 0}})
		r.sub.Track(eventstest.Pool, "w", []int{0}, 16, 1000)
		publishes(r, func() follow.SourceStatus { return r.status("w") }, func(es ...wire.Event) error { return p.Publish(es) })
	})
	t.Run("bridge", func(t *testing.T) {
		e := newZMQEngine(t, 1, zmqpub.Config{ReplayEndpoint: "tcp://*:0"})
		r := natsRig(t, memoryBus(t))
		b := r.bridge(e.at(), 1, 1000)
		r.until("connected", func() bool { return e.pub.Subscribers() > 0 })
		publishes(r, func() follow.SourceStatus { return r.status("w") }, func(es ...wire.Event) error { return e.pub.Publish(es) })
		if got := b.Status()[0]; got.Blocks > 4000+1000 {
			t.Errorf("the bridge keeps %d blocks", got.Blocks)
		}
	})
	// Blocks that others follow on are mirrored after their removal: leaves alone would keep all chains.
	t.Run("leaves", func(t *testing.T) {
		e := newZMQEngine(t, 1, zmqpub.Config{ReplayEndpoint: "tcp://*:0"})
		r := natsRig(t, memoryBus(t))
		b := r.bridge(e.at(), 1, 1000)
		r.until("connected", func() bool { return e.pub.Subscribers() > 0 })
		for i := range 200 {
			chain := chainOf(i+1, 1000)
			if err := e.pub.Publish([]wire.Event{chain, {Kind: wire.Removed, Hashes: chain.Hashes[:999]}}); err != nil {
				t.Fatal(err)
			}
		}
		r.until("all was heard", func() bool { return b.caughtUp(e) })
		if got := b.Status()[0]; got.Blocks > view.MostBlocks(1000) || !got.Partial {
			t.Errorf("%+v", got)
		}
	})
}
