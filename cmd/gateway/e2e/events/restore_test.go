package events

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/natsbus"
	"github.com/tandem-pd/tandem/kv/follow"
	"github.com/tandem-pd/tandem/kv/view"
	"github.com/tandem-pd/tandem/kv/wire"
	"github.com/tandem-pd/tandem/lab/engine"
	"github.com/tandem-pd/tandem/lab/testkit"
)

// among is a gateway's group: its own address, and others.
func among(bus wire.Bus, own string, others ...string) *follow.Group {
	return &follow.Group{Bus: bus, Join: func(context.Context) (string, string, []string) { return own, own, others }}
}

// TestRestoredFromAnotherGateway: a gateway that starts gets another's views, requests no snapshot from a publisher,
// and continues. One view takes several pages.
func TestRestoredFromAnotherGateway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := memoryBus(t)
		a := newRig(t, follow.Config{Group: among(bus, "a")}, bus, bus)
		var all []*speaker
		for i, w := range []string{"u", "v", "w"} {
			p := a.speaks(uint64(i), view.PublisherConfig{Source: source(w), MaxBytes: 4096})
			a.track(w)
			synctest.Wait()
			p.publishSteps(100)
			a.catchesUp(p, "the first knows all")
			all = append(all, p)
		}
		large := a.speaks(9, view.PublisherConfig{Source: source("large")})
		a.track("large")
		for base := range uint32(40) {
			large.publishEvents(testkit.Chain(base, 1000))
		}
		a.until("the first knows all", func() bool { return a.idx.Of("large", 0).Blocks() == 40_000 })
		asked := map[string]uint64{}
		for _, p := range all {
			asked[p.worker] = p.Stats().Snapshots
		}
		b := newRig(t, follow.Config{Group: among(bus, "b", "a")}, bus, bus)
		b.track("u", "v", "w", "large")
		synctest.Wait()
		for _, when := range []string{"restored", "going on"} {
			for _, p := range all {
				if s := b.status(p.worker); !b.follows(p) || s.Repaired[follow.ByPeer] != 1 || p.Stats().Snapshots != asked[p.worker] {
					t.Errorf("%s: %s: %+v, and its publisher was asked for %d snapshots", when, p.worker, s, p.Stats().Snapshots-asked[p.worker])
				}
				p.publishSteps(1)
			}
			synctest.Wait()
		}
		if n := b.idx.Of("large", 0).Blocks(); n != 40_000 || b.status("large").Repaired[follow.ByPeer] != 1 {
			t.Errorf("%d of 40,000 blocks: %+v", n, b.status("large"))
		}
	})
}

// TestRestoredUnderLoss is TestIndexEqualsEnginesUnderLoss of a gateway that starts in the middle: what is published
// between a view and its being followed is not lost, whatever the network does to events and to requests.
func TestRestoredUnderLoss(t *testing.T) {
	restored := uint64(0)
	for seed := range uint64(12) {
		synctest.Test(t, func(t *testing.T) {
			bus := &lossyBus{Bus: memoryBus(t), Chance: 15, Rng: rand.New(rand.NewPCG(seed, 5))}
			a := newRig(t, follow.Config{Seed: seed, Group: among(bus, "a")}, bus, bus)
			var all []*speaker
			for i, w := range []string{"u", "v", "w"} {
				all = append(all, a.speaks(seed*10+uint64(i), view.PublisherConfig{Source: source(w), MaxBytes: 4096}))
			}
			a.track("u", "v", "w")
			var b *rig
			pace := rand.New(rand.NewPCG(seed, 6))
			for step := range 400 {
				if step == 200 {
					b = newRig(t, follow.Config{Seed: seed + 100, Group: among(bus, "b", "a")}, bus, bus)
					b.track("u", "v", "w")
				}
				all[pace.IntN(len(all))].publishSteps(1)
				time.Sleep(time.Duration(pace.IntN(20)) * time.Millisecond) // virtual
			}
			for _, p := range all {
				within(t, 30*time.Minute, 50*time.Millisecond, fmt.Sprintf("seed %d: worker %s settles", seed, p.worker),
					func() bool { return a.follows(p) && b.follows(p) })
				restored += b.status(p.worker).Repaired[follow.ByPeer]
			}
		})
	}
	assert.NotZero(t, restored, "no view was restored: nothing was tried")
}

// restoring follows an engine over ZMQ as own, of a group.
func restoring(t *testing.T, bus wire.Bus, e *zmqEngine, own string, others ...string) *rig {
	cfg := zmqConfig()
	cfg.QuietCheck = time.Minute // asked in the midst of what is published, a short ring would show a loss
	cfg.Group = among(bus, own, others...)
	r := newRig(t, cfg, nil, nil)
	r.trackZMQ("w", e, 0)
	return r
}

// TestRestoredOverZMQ: blocks that an engine stored before its ring began, or that has no ring, are in the view of a
// gateway that starts, and it continues from there.
func TestRestoredOverZMQ(t *testing.T) {
	for _, replay := range []string{"", "tcp://*:0"} {
		t.Run(fmt.Sprintf("replay=%t", replay != ""), func(t *testing.T) {
			bus, e := memoryBus(t), newZMQEngine(t, 1, engine.PublisherConfig{ReplayEndpoint: replay, BufferSteps: 5})
			a := restoring(t, bus, e, "a")
			a.until("subscribed", func() bool { return e.pub.Subscribers() == 1 && (replay == "" || a.status("w").State == follow.Live) })
			e.publish(200)
			a.until("the first knows all", func() bool { return a.exact(e, "w") })

			b := restoring(t, bus, e, "b", "a")
			b.until("restored, and a ring has shown that it is the same engine", func() bool {
				s := b.status("w")
				return e.pub.Subscribers() == 2 && s.Repaired[follow.ByPeer] == 1 && (replay == "" || s.State == follow.Live)
			})
			checkIndex(t, e.Engine, b.idx.Of("w", 0))
			e.publish(100)
			b.until("live and exact", func() bool { return b.exact(e, "w") })
			assert.Zero(t, b.status("w").Losses)
		})
	}
}

// TestRestoredViewOfADeadEngine: another gateway's view is of an engine that has started again since. Its successor's
// numbers show it, with a ring or without, and the view is the successor's. Only if it has no ring, and the first had
// not sent much, are its events before their numbers met lost, as it would be without another gateway.
func TestRestoredViewOfADeadEngine(t *testing.T) {
	for _, k := range []struct {
		replay string
		before int
	}{{"tcp://*:0", 50}, {"", 300}, {"", 50}} {
		t.Run(fmt.Sprintf("replay=%t/%d", k.replay != "", k.before), func(t *testing.T) {
			bus, e := memoryBus(t), newZMQEngine(t, 1, engine.PublisherConfig{ReplayEndpoint: k.replay})
			a := restoring(t, bus, e, "a")
			e.subscribed()
			e.publish(k.before)
			a.until("the first knows all", func() bool { return a.exact(e, "w") })
			stop := echo(t, bus, "a", "late")
			b := restoring(t, bus, e, "b", "echo") // it has the view of the first engine repeated
			b.until("restored", func() bool { return b.status("w").Repaired[follow.ByPeer] == 1 })

			stop()
			e.restart()
			c := restoring(t, bus, e, "c", "late")
			c.until("subscribed", func() bool { return e.pub.Subscribers() == 3 && c.status("w").Repaired[follow.ByPeer] == 1 })
			e.publish(80)
			if k.replay == "" && k.before < 80 {
				c.until("predicted", func() bool { s := c.status("w"); return s.State == follow.Predicted && s.Seq == e.pub.Next() })
				e.clear()
			}
			c.until("live and exact", func() bool { return c.exact(e, "w") })
		})
	}
}

// echo answers at "echo" what a gateway answers, until stop, and at another subject what it answered last.
func echo(t *testing.T, bus wire.Bus, of, late string) (stop func()) {
	var last atomic.Pointer[nats.Msg]
	answer := func(m *nats.Msg) {
		assert.NoError(t, bus.Publish(&nats.Msg{Subject: m.Reply, Header: last.Load().Header, Data: last.Load().Data}))
	}
	stop, err := bus.Subscribe("echo", func(m *nats.Msg) {
		got, err := bus.Request(t.Context(), &nats.Msg{Subject: of, Data: m.Data})
		if t.Context().Err() == nil && assert.NoError(t, err) {
			last.Store(got)
			answer(m)
		}
	}, nil)
	require.NoError(t, err)
	_, err = bus.Subscribe(late, answer, nil)
	require.NoError(t, err)
	return stop
}

// TestGatewaysThatCannotBeRestoredFrom: one that answers nonsense, half a view, a view of another block size or nothing
// at all is ignored, and costs a bounded time; the next gateway is tried, and without one the worker.
func TestGatewaysThatCannotBeRestoredFrom(t *testing.T) {
	stamped := func(m *nats.Msg, data string, cursor string) *nats.Msg {
		answer := nats.NewMsg(m.Reply)
		wire.Stamp(answer, 1, 7)
		if answer.Data = []byte(data); cursor != "" {
			answer.Header.Set(wire.HeaderCursor, cursor)
		}
		return answer
	}
	const at = `{"epoch":9,"seq":7,"at":{}}` + "\n"
	head := string(natsbus.Seal(nil, natsbus.View, "bad")) + at
	next, err := (&natsbus.Envelope{Version: natsbus.Version + 1, Kind: natsbus.View, From: "bad"}).MarshalMsg(nil)
	require.NoError(t, err)
	for name, answer := range map[string]func(m *nats.Msg) *nats.Msg{
		"nonsense":           func(m *nats.Msg) *nats.Msg { return stamped(m, "what?", "") },
		"no numbers":         func(m *nats.Msg) *nats.Msg { return nats.NewMsg(m.Reply) },
		"another version":    func(m *nats.Msg) *nats.Msg { return stamped(m, string(next)+at+"\x10\x10\x00\x00", "") },
		"another block size": func(m *nats.Msg) *nats.Msg { return stamped(m, head+"\x20\x20\x00", "") },
		"blocks without end": func(m *nats.Msg) *nats.Msg { return stamped(m, head+"\x10\x10\xff\xff\xff\xff\x07", "") },
		"pages without end":  func(m *nats.Msg) *nats.Msg { return stamped(m, strings.Repeat("x", 1<<20), "1-1") },
		"silence":            nil,
		"death in the middle": func(m *nats.Msg) *nats.Msg {
			if m.Header.Get(wire.HeaderCursor) != "" {
				return nil
			}
			return stamped(m, head+"\x10\x10\x01", "1-1")
		},
		"another process": func(m *nats.Msg) *nats.Msg { return stamped(m, head+"\x10\x10\x00", "") },
	} {
		for _, second := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/second=%t", name, second), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					bus := memoryBus(t)
					a := newRig(t, follow.Config{Group: among(bus, "a")}, bus, bus)
					p := a.speaks(3, view.PublisherConfig{})
					a.track("w")
					p.publishSteps(50)
					a.catchesUp(p, "the first knows all")
					_, err := bus.Subscribe("bad", func(m *nats.Msg) {
						if answer == nil {
							return
						}
						if reply := answer(m); reply != nil {
							_ = bus.Publish(reply)
						}
					}, nil)
					require.NoError(t, err)
					others := []string{"bad"}
					if second {
						others = []string{"bad", "a"}
					}
					b := newRig(t, follow.Config{Group: among(bus, "b", others...)}, bus, bus)
					b.track("w")
					within(t, 4*time.Second, 10*time.Millisecond, "it knows all, after a page's time at most", func() bool { return b.follows(p) })
				})
			})
		}
	}
}
