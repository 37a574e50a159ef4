package kvevents

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tandem-pd/tandem/internal/kvevents/eventstest"
	"github.com/tandem-pd/tandem/internal/kvevents/follow"
	"github.com/tandem-pd/tandem/internal/kvevents/publish"
	"github.com/tandem-pd/tandem/internal/kvevents/wire"
	"github.com/tandem-pd/tandem/lab/zmqpub"
)

// among is a gateway's group: asked at own, with others.
func among(bus wire.Bus, own string, others ...string) *follow.Group {
	return &follow.Group{Bus: bus, Join: func(context.Context) (string, []string) { return own, others }}
}

// source is a worker's rank 0.
func source(worker string) wire.Source { return wire.Source{Pool: eventstest.Pool, Worker: worker} }

// TestRestoredFromAnotherGateway: a gateway that starts has another's views, asks no publisher for a snapshot, and goes on.
// One view takes several pages.
func TestRestoredFromAnotherGateway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := eventstest.NewBus()
		t.Cleanup(bus.Close)
		a := newRig(t, follow.Config{Group: among(bus, "a")}, bus, bus)
		engines, publishers := map[string]*eventstest.Engine{}, map[string]*publish.Publisher{}
		for i, w := range []string{"u", "v", "w"} {
			engines[w] = eventstest.NewEngine(uint64(i), 16)
			publishers[w], _ = a.publisher(publish.Config{Source: source(w), MaxBytes: 4096})
			a.sub.Track(eventstest.Pool, w, []int{0}, 16, 0)
			synctest.Wait()
			for range 100 {
				if err := publishers[w].Publish(engines[w].Step()); err != nil {
					t.Fatal(err)
				}
			}
		}
		large, _ := a.publisher(publish.Config{Source: source("large")})
		a.sub.Track(eventstest.Pool, "large", []int{0}, 16, 0)
		synctest.Wait()
		for base := range uint32(40) {
			if err := large.Publish([]wire.Event{eventstest.Chain(base, 1000)}); err != nil {
				t.Fatal(err)
			}
		}
		within(t, 30*time.Second, 10*time.Millisecond, "the first knows all", func() bool {
			return a.settled(engines["u"], publishers["u"], "u") && a.settled(engines["v"], publishers["v"], "v") &&
				a.settled(engines["w"], publishers["w"], "w") && a.idx.Of("large", 0).Blocks() == 40_000
		})
		asked := map[string]uint64{}
		for w, p := range publishers {
			asked[w] = p.Stats().Snapshots
		}
		b := newRig(t, follow.Config{Group: among(bus, "b", "a")}, bus, bus)
		for _, w := range []string{"u", "v", "w", "large"} {
			b.sub.Track(eventstest.Pool, w, []int{0}, 16, 0)
		}
		synctest.Wait()
		for w, p := range publishers {
			if !b.settled(engines[w], p, w) || b.status(w).Repaired[follow.ByPeer] != 1 || p.Stats().Snapshots != asked[w] {
				t.Errorf("%s: %+v, and its publisher was asked for %d snapshots", w, b.status(w), p.Stats().Snapshots-asked[w])
			}
			if err := p.Publish(engines[w].Step()); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		for w, p := range publishers {
			if !b.settled(engines[w], p, w) || p.Stats().Snapshots != asked[w] {
				t.Errorf("%s does not go on: %+v", w, b.status(w))
			}
		}
		if n := b.idx.Of("large", 0).Blocks(); n != 40_000 || b.status("large").Repaired[follow.ByPeer] != 1 {
			t.Errorf("%d of 40,000 blocks: %+v", n, b.status("large"))
		}
	})
}

// TestRestoredUnderLoss is TestIndexEqualsEnginesUnderLoss of a gateway that starts in the middle: what is published between
// a view and its being followed is not lost, whatever the network does to events and to requests.
func TestRestoredUnderLoss(t *testing.T) {
	restored := uint64(0)
	for seed := range uint64(12) {
		synctest.Test(t, func(t *testing.T) {
			memory := eventstest.NewBus()
			t.Cleanup(memory.Close)
			bus := &lossyBus{Bus: memory, Chance: 15, Rng: rand.New(rand.NewPCG(seed, 5))}
			rigs := []*rig{newRig(t, follow.Config{Seed: seed, Group: among(bus, "a")}, bus, bus)}
			workers := []string{"u", "v", "w"}
			engines, publishers := map[string]*eventstest.Engine{}, map[string]*publish.Publisher{}
			for i, w := range workers {
				engines[w] = eventstest.NewEngine(seed*10+uint64(i), 16)
				publishers[w], _ = rigs[0].publisher(publish.Config{Source: source(w), MaxBytes: 4096})
				rigs[0].sub.Track(eventstest.Pool, w, []int{0}, 16, 0)
			}
			pace := rand.New(rand.NewPCG(seed, 6))
			for step := range 400 {
				if step == 200 {
					rigs = append(rigs, newRig(t, follow.Config{Seed: seed + 100, Group: among(bus, "b", "a")}, bus, bus))
					for _, w := range workers {
						rigs[1].sub.Track(eventstest.Pool, w, []int{0}, 16, 0)
					}
				}
				w := workers[pace.IntN(len(workers))]
				if err := publishers[w].Publish(engines[w].Step()); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Duration(pace.IntN(20)) * time.Millisecond) // virtual
			}
			for _, w := range workers {
				within(t, 30*time.Minute, 50*time.Millisecond, fmt.Sprintf("seed %d: worker %s settles", seed, w), func() bool {
					return rigs[0].settled(engines[w], publishers[w], w) && rigs[1].settled(engines[w], publishers[w], w)
				})
				restored += rigs[1].status(w).Repaired[follow.ByPeer]
			}
		})
	}
	if restored == 0 {
		t.Error("no view was restored: nothing was tried")
	}
}

// TestRestoredOverZMQ: blocks that an engine stored before its ring began, or that has no ring, are known to a gateway that
// starts, and it goes on from there.
func TestRestoredOverZMQ(t *testing.T) {
	for _, replay := range []string{"", "tcp://*:0"} {
		t.Run(fmt.Sprintf("replay=%t", replay != ""), func(t *testing.T) {
			bus := eventstest.NewBus()
			t.Cleanup(bus.Close)
			e := newZMQEngine(t, 1, zmqpub.Config{ReplayEndpoint: replay, BufferSteps: 5})
			cfg := zmqConfig()
			cfg.Group = among(bus, "a")
			a := newRig(t, cfg, nil, nil)
			a.trackZMQ("w", e, 0)
			a.until("subscribed", func() bool { return e.pub.Subscribers() == 1 && (replay == "" || a.status("w").State == follow.Live) })
			e.publish(200)
			a.until("the first knows all", func() bool { return a.exact(e, "w") })

			cfg.Group = among(bus, "b", "a")
			b := newRig(t, cfg, nil, nil)
			b.trackZMQ("w", e, 0)
			b.until("restored, and a ring has shown that it is the same engine", func() bool {
				s := b.status("w")
				return e.pub.Subscribers() == 2 && s.Repaired[follow.ByPeer] == 1 && (replay == "" || s.State == follow.Live)
			})
			checkIndex(t, e.Engine, b.idx.Of("w", 0))
			e.publish(100)
			b.until("live and exact", func() bool { return b.exact(e, "w") })
			if s := b.status("w"); s.Losses != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// TestRestoredViewOfADeadEngine: another gateway's view is of an engine that has started again since. Its successor's numbers
// show it, with a ring or without, and the view is the successor's. Only where it has no ring, and the first had not said
// much, is what it said before its numbers met lost, as it would be without another gateway.
func TestRestoredViewOfADeadEngine(t *testing.T) {
	for _, k := range []struct {
		replay string
		before int
	}{{"tcp://*:0", 50}, {"", 300}, {"", 50}} {
		t.Run(fmt.Sprintf("replay=%t/%d", k.replay != "", k.before), func(t *testing.T) {
			bus := eventstest.NewBus()
			t.Cleanup(bus.Close)
			e := newZMQEngine(t, 1, zmqpub.Config{ReplayEndpoint: k.replay})
			cfg := zmqConfig()
			cfg.Group = among(bus, "a")
			a := newRig(t, cfg, nil, nil)
			a.trackZMQ("w", e, 0)
			a.until("subscribed", func() bool { return e.pub.Subscribers() == 1 })
			e.publish(k.before)
			a.until("the first knows all", func() bool { return a.exact(e, "w") })
			said := newEcho(t, bus, "a", "late")
			cfg.Group = among(bus, "b", "echo")
			b := newRig(t, cfg, nil, nil) // it has the view of the first engine repeated
			b.trackZMQ("w", e, 0)
			b.until("restored", func() bool { return b.status("w").Repaired[follow.ByPeer] == 1 })

			said.stopAsking()
			e.restart()
			cfg.Group = among(bus, "c", "late")
			c := newRig(t, cfg, nil, nil)
			c.trackZMQ("w", e, 0)
			c.until("subscribed", func() bool { return e.pub.Subscribers() == 3 && c.status("w").Repaired[follow.ByPeer] == 1 })
			e.publish(80)
			if k.replay == "" && k.before < 80 {
				c.until("predicted", func() bool { s := c.status("w"); return s.State == follow.Predicted && s.Seq == e.pub.Next() })
				e.Blocks = nil
				if err := e.pub.Publish([]wire.Event{{Kind: wire.Cleared}, e.Store(3)}); err != nil {
					t.Fatal(err)
				}
			}
			c.until("live and exact", func() bool { return c.exact(e, "w") })
		})
	}
}

// echo answers at "echo" what a gateway answers, and at another subject what it answered last.
type echo struct {
	mu   sync.Mutex // guards last
	last *nats.Msg
	stop func()
}

func newEcho(t *testing.T, bus wire.Bus, of, late string) *echo {
	x := &echo{}
	answer := func(m *nats.Msg) {
		x.mu.Lock()
		defer x.mu.Unlock()
		if err := bus.Publish(&nats.Msg{Subject: m.Reply, Header: x.last.Header, Data: x.last.Data}); err != nil {
			t.Error(err)
		}
	}
	var err error
	x.stop, err = bus.Subscribe("echo", func(m *nats.Msg) {
		got, err := bus.Request(t.Context(), &nats.Msg{Subject: of, Data: m.Data})
		if t.Context().Err() != nil {
			return
		}
		if err != nil {
			t.Error(err)
			return
		}
		x.mu.Lock()
		x.last = got
		x.mu.Unlock()
		answer(m)
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bus.Subscribe(late, answer, nil); err != nil {
		t.Fatal(err)
	}
	return x
}

func (x *echo) stopAsking() { x.stop() }

// TestGatewaysThatCannotBeRestoredFrom: one that answers nonsense, half a view, a view of another block size or nothing at
// all is passed over, and costs a bounded time; the next gateway is asked, and without one the worker.
func TestGatewaysThatCannotBeRestoredFrom(t *testing.T) {
	stamped := func(m *nats.Msg, data string, cursor string) *nats.Msg {
		answer := nats.NewMsg(m.Reply)
		wire.Stamp(answer, 1, 7)
		if answer.Data = []byte(data); cursor != "" {
			answer.Header.Set(wire.HeaderCursor, cursor)
		}
		return answer
	}
	head := `{"version":1,"epoch":9,"seq":7,"at":{}}` + "\n"
	for name, answer := range map[string]func(m *nats.Msg) *nats.Msg{
		"nonsense":           func(m *nats.Msg) *nats.Msg { return stamped(m, "what?", "") },
		"no numbers":         func(m *nats.Msg) *nats.Msg { return nats.NewMsg(m.Reply) },
		"another version":    func(m *nats.Msg) *nats.Msg { return stamped(m, strings.Replace(head, "1", "2", 1)+"\x10\x10\x00", "") },
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
					bus := eventstest.NewBus()
					t.Cleanup(bus.Close)
					a := newRig(t, follow.Config{Group: among(bus, "a")}, bus, bus)
					g := eventstest.NewEngine(3, 16)
					p, _ := a.publisher(publish.Config{Source: source("w")})
					a.sub.Track(eventstest.Pool, "w", []int{0}, 16, 0)
					for range 50 {
						if err := p.Publish(g.Step()); err != nil {
							t.Fatal(err)
						}
					}
					within(t, 10*time.Second, 10*time.Millisecond, "the first knows all", func() bool { return a.settled(g, p, "w") })
					if _, err := bus.Subscribe("bad", func(m *nats.Msg) {
						if answer == nil {
							return
						}
						if reply := answer(m); reply != nil {
							_ = bus.Publish(reply)
						}
					}, nil); err != nil {
						t.Fatal(err)
					}
					others := []string{"bad"}
					if second {
						others = []string{"bad", "a"}
					}
					b := newRig(t, follow.Config{Group: among(bus, "b", others...)}, bus, bus)
					b.sub.Track(eventstest.Pool, "w", []int{0}, 16, 0)
					within(t, 4*time.Second, 10*time.Millisecond, "it knows all, after a page's time at most", func() bool { return b.settled(g, p, "w") })
				})
			})
		}
	}
}
