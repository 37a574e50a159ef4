package events

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/kv/follow"
	"github.com/tandem-pd/tandem/kv/view"
	"github.com/tandem-pd/tandem/kv/wire"
	"github.com/tandem-pd/tandem/kv/zmq"
	"github.com/tandem-pd/tandem/lab/engine"
	"github.com/tandem-pd/tandem/lab/testkit"
)

// bridged is an engine's bridge to the bus of a rig, whose subscriber follows it over NATS.
type bridged struct {
	*follow.Bridge
	*rig
	reg *prometheus.Registry

	mu   sync.Mutex // guards cuts
	cuts []time.Time
}

func (r *rig) bridge(at zmq.Address, ranks, capacity int) *bridged {
	r.t.Helper()
	b := &bridged{rig: r, reg: prometheus.NewRegistry()}
	cfg := zmqConfig()
	cfg.Relearn = time.Millisecond
	var err error
	b.Bridge, err = follow.NewBridge(follow.BridgeConfig{
		Pool: testkit.Pool, Worker: "w", Ranks: ranks, BlockSize: 16, KVBlocks: capacity, From: at, Follow: cfg,
		Publish: view.PublisherConfig{Heartbeat: 20 * time.Millisecond},
		OnRestart: func(cut time.Time) {
			b.mu.Lock()
			b.cuts = append(b.cuts, cut)
			b.mu.Unlock()
		},
	}, r.bus, slog.New(slog.DiscardHandler), b.reg)
	require.NoError(r.t, err)
	ctx, cancel := context.WithCancel(r.ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		assert.NoError(r.t, b.Run(ctx))
	}()
	r.t.Cleanup(func() { cancel(); <-done })
	return b
}

func (b *bridged) restarts() []time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]time.Time(nil), b.cuts...)
}

// caughtUp reports whether all the engine's events passed, and the subscriber of the bus is where the bridge is.
func (b *bridged) caughtUp(e *zmqEngine) bool {
	s, at := b.Status()[0], b.status("w")
	return s.From.Seq == e.pub.Next() && at.Epoch == s.Epoch && at.Seq == s.Seq
}

// holds reports whether the subscriber of the bus relies on an index that equals the engine's cache.
func (b *bridged) holds(e *zmqEngine) bool {
	return b.caughtUp(e) && b.status("w").State == follow.Live && e.Mismatch(b.idx.Of("w", 0), 16) == ""
}

// natsRig is a subscriber of a bus that follows the worker w on it.
func natsRig(t *testing.T, bus wire.Bus, ranks ...int) *rig {
	t.Helper()
	r := newRig(t, follow.Config{RetryMin: 5 * time.Millisecond, RetryMax: 50 * time.Millisecond, PageTimeout: time.Second,
		SnapshotEvery: 50 * time.Millisecond}, bus, bus)
	r.sub.Track(testkit.Pool, "w", append([]int{0}, ranks...), 16, 0)
	return r
}

func TestBridgeCarriesEveryDialect(t *testing.T) {
	for d := range wire.SGLangFirst + 1 {
		t.Run(d.String(), func(t *testing.T) {
			e := newZMQEngine(t, uint64(d), engine.PublisherConfig{Topic: "kv-events", Dialect: d, ReplayEndpoint: "tcp://*:0"})
			r := natsRig(t, memoryBus(t))
			e.publish(100) // before anybody was there
			b := r.bridge(e.at(), 1, 0)
			e.publish(200)
			r.until("live and exact", func() bool { return b.holds(e) })
			s := b.Status()[0]
			assert.True(t, !s.Partial && s.Restarts == 0 && s.From.Losses == 0 && s.Failed == 0 && b.Settled(), "%+v", s)
			assert.GreaterOrEqual(t, s.Blocks, len(e.Blocks), "blocks in the snapshot in the engine")
		})
	}
}

// A bridge without events makes subscribers predict, as the engine itself would.
func TestBridgeOfSilentEngine(t *testing.T) {
	r := natsRig(t, memoryBus(t))
	b := r.bridge(zmq.Address{Endpoint: "tcp://127.0.0.1:1"}, 1, 0)
	r.until("predicted", func() bool { return r.status("w").State == follow.Predicted })
	s := b.Status()[0]
	assert.True(t, s.Partial && !b.Settled(), "%+v", s)
}

// A loss that no replay repairs is forwarded: the view is stale until it is complete again, and the index never has
// more than is true.
func TestBridgeReportsLosses(t *testing.T) {
	for _, test := range []struct{ loss, cure string }{
		{"too short", "cleared"}, {"too short", "restart"}, {"too short", "turnover"}, {"unreadable", "cleared"}, {"unreadable", "chains"},
	} {
		t.Run(test.loss+" "+test.cure, func(t *testing.T) {
			e := newZMQEngine(t, 1, engine.PublisherConfig{ReplayEndpoint: "tcp://*:0", BufferSteps: 5})
			r := natsRig(t, memoryBus(t))
			if test.loss == "too short" {
				e.publish(100)
			}
			b := r.bridge(e.at(), 1, 64)
			if test.loss == "unreadable" {
				e.publish(5)
				r.until("exact", func() bool { return b.holds(e) })
				e.pub.Send([]byte("\xc1 not a batch"))
			}
			r.until("predicted", func() bool { return b.caughtUp(e) && r.status("w").State == follow.Predicted })
			s := b.Status()[0]
			assert.True(t, s.Partial && s.From.Losses != 0, "%+v", s)
			assert.LessOrEqual(t, r.idx.Of("w", 0).Blocks(), len(e.Blocks), "more is indexed than the engine holds")
			// A new subscriber gets the same from the snapshot.
			late := natsRig(t, r.bus)
			late.until("predicted for who is late", func() bool { return late.status("w").State == follow.Predicted })
			again := func(more func()) { // until it is relied on
				r.until("live", func() bool {
					if r.status("w").State == follow.Live && late.status("w").State == follow.Live {
						return true
					}
					more()
					return false
				})
			}
			switch test.cure {
			case "cleared":
				e.clear()
			case "restart": // published under a new epoch
				epoch, began := s.Epoch, time.Now()
				e.restart()
				r.until("empty", func() bool { return b.holds(e) && r.idx.Of("w", 0).Blocks() == 0 })
				e.publish(3)
				s, cuts := b.Status()[0], b.restarts()
				assert.True(t, s.Epoch != epoch && s.Restarts == 1 && len(cuts) == 1 && !cuts[0].Before(began), "%+v; restarts reported: %v", s, cuts)
			case "chains": // used blocks are re-announced, from the beginning
				e.Blocks = nil
				chain := e.Store(3)
				for range 2 * 8 {
					e.publishEvents(chain)
				}
				again(func() { e.publishEvents(chain) }) // time must have passed as well
				return
			case "turnover": // a cache of 64 blocks, full of new prompts, the oldest of which goes as another comes
				var cache []wire.Event
				turn := func() {
					var step []wire.Event
					if len(cache) == 64/2 {
						step, cache = append(step, wire.Event{Kind: wire.Removed, Hashes: cache[0].Hashes, Medium: "GPU"}), cache[1:]
					}
					e.Blocks = nil // no prompt goes on where another ended
					cache = append(cache, e.Store(2))
					e.publishEvents(append(step, cache[len(cache)-1])...)
				}
				for range 32 {
					turn()
				}
				again(turn) // what was indexed before may have been too much for the cache, and all of it was dropped
				return
			}
			r.until("healed", func() bool { return b.holds(e) && !b.Status()[0].Partial })
			late.until("for who was late, too", func() bool {
				return late.status("w").State == follow.Live && e.Mismatch(late.idx.Of("w", 0), 16) == ""
			})
		})
	}
}

// With everything going wrong on both sides, the index ends as what the engine holds.
func TestBridgeUnderLossOnBothSides(t *testing.T) {
	t.Parallel()
	const seed = 5
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	e := newZMQEngine(t, seed, replays)
	lossy := &lossyBus{Bus: memoryBus(t), Chance: 20, Rng: rand.New(rand.NewPCG(seed, 3))}
	r := natsRig(t, lossy)
	b := r.bridge(e.at(), 1, 0)
	for range 40 {
		e.publish(1 + rng.IntN(20))
		switch rng.IntN(10) {
		case 0, 1, 2:
			e.cut()
		case 3:
			e.restart()
		}
	}
	r.until("exact", func() bool { return b.holds(e) })
	s := b.Status()[0]
	assert.True(t, s.From.Losses == 0 && lossy.Losses() != 0, "%+v; %d messages were lost on the bus", s, lossy.Losses())
}

// TestOvergrownIsPredicted: over NATS and over a bridge as well, and neither index nor bridge keeps what was named.
func TestOvergrownIsPredicted(t *testing.T) {
	publishes := func(r *rig, publish func(...wire.Event)) {
		t.Helper()
		status := func() follow.SourceStatus { return r.status("w") }
		next := uint32(0)
		r.until("predicted", func() bool {
			if next < 100 {
				next++
				publish(testkit.Chain(next, 1000))
			}
			return status().State == follow.Predicted
		})
		r.until("nothing is kept", func() bool { return r.idx.Of("w", 0).Blocks() == 0 && status().Blocks == 0 })
		publish(wire.Event{Kind: wire.Cleared}, testkit.Chain(7, 3))
		r.until("believed again", func() bool { return status().State == follow.Live && r.idx.Of("w", 0).Blocks() == 3 })
	}
	t.Run("nats", func(t *testing.T) {
		bus := memoryBus(t)
		r := newRig(t, follow.Config{}, bus, bus)
		p := r.speaks(1, view.PublisherConfig{})
		r.sub.Track(testkit.Pool, "w", []int{0}, 16, 1000)
		publishes(r, p.publishEvents)
	})
	overBridge := func(t *testing.T) (e *zmqEngine, r *rig, b *bridged) {
		e, r = newZMQEngine(t, 1, replays), natsRig(t, memoryBus(t))
		b = r.bridge(e.at(), 1, 1000)
		r.until("connected", func() bool { return e.pub.Subscribers() > 0 })
		return e, r, b
	}
	t.Run("bridge", func(t *testing.T) {
		e, r, b := overBridge(t)
		publishes(r, e.publishEvents)
		assert.LessOrEqual(t, b.Status()[0].Blocks, 4000+1000, "the bridge keeps N blocks")
	})
	// Blocks that others follow on are mirrored after their removal: leaves alone would keep all chains.
	t.Run("leaves", func(t *testing.T) {
		e, r, b := overBridge(t)
		for i := range 100 {
			chain := testkit.Chain(uint32(i+1), 1000)
			e.publishEvents(chain, wire.Event{Kind: wire.Removed, Hashes: chain.Hashes[:999]})
		}
		r.until("all was received", func() bool { return b.caughtUp(e) })
		got := b.Status()[0]
		assert.True(t, got.Blocks <= view.MostBlocks(1000) && got.Partial, "%+v", got)
	})
}
