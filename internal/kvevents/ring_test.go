package kvevents

import (
	"context"
	"strings"
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

// dropBus loses all event messages while it is told to.
type dropBus struct {
	wire.Bus
	drop atomic.Bool
}

func (b *dropBus) Publish(m *nats.Msg) error {
	if strings.HasPrefix(m.Subject, wire.EventsPrefix) && b.drop.Load() {
		return nil
	}
	return b.Bus.Publish(m)
}

// gapRig is a live worker that has lost some messages on the way, not yet found out.
func gapRig(t *testing.T, lost int, cfg publish.Config, subBus func(wire.Bus) wire.Bus) (*rig, *eventstest.Engine, *publish.Publisher) {
	memory := eventstest.NewBus()
	t.Cleanup(memory.Close)
	bus := &dropBus{Bus: memory}
	r := newRig(t, follow.Config{}, bus, subBus(memory))
	g := eventstest.NewEngine(1, 16)
	cfg.Source = wire.Source{Pool: eventstest.Pool, Worker: "w", Rank: 0}
	p, _ := r.publisher(cfg)
	r.sub.Track(eventstest.Pool, "w", []int{0}, 16, 0)
	synctest.Wait()
	for range 20 {
		if err := p.Publish([]wire.Event{g.Store(3)}); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Wait()
	if !r.settled(g, p, "w") {
		t.Fatalf("not live: %+v", r.status("w"))
	}
	bus.drop.Store(true)
	for range lost {
		if err := p.Publish([]wire.Event{g.Store(3)}); err != nil {
			t.Fatal(err)
		}
	}
	bus.drop.Store(false)
	return r, g, p
}

func same(b wire.Bus) wire.Bus { return b }

func TestGapIsHealedOutOfTheRing(t *testing.T) {
	for _, c := range []struct {
		name     string
		lost     int
		cfg      publish.Config
		ring, in uint64 // healed by the ring, and the requests it took
		snapshot uint64
	}{
		{"one message", 1, publish.Config{}, 1, 1, 0},
		{"many, in pages", 60, publish.Config{MaxBytes: 4096}, 1, 0, 0},
		{"more than the ring holds", 60, publish.Config{RingMessages: 50}, 0, 0, 1},
		{"as many as it holds", 49, publish.Config{RingMessages: 50}, 1, 1, 0},
		{"more bytes than it holds", 60, publish.Config{RingBytes: 2000}, 0, 0, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			r, g, p := gapRig(t, c.lost, c.cfg, same)
			before, answers := r.status("w"), p.Stats()
			if err := p.Publish([]wire.Event{g.Store(1)}); err != nil { // this one arrives and shows the gap
				t.Fatal(err)
			}
			synctest.Wait()
			if !r.settled(g, p, "w") {
				t.Fatalf("%s: not healed at once: %+v", c.name, r.status("w"))
			}
			s := r.status("w")
			byRing, bySnapshot := s.Repaired[follow.ByRing]-before.Repaired[follow.ByRing], s.Repaired[follow.BySnapshot]-before.Repaired[follow.BySnapshot]
			if byRing != c.ring || bySnapshot != c.snapshot || p.Stats().Snapshots-answers.Snapshots != c.snapshot {
				t.Errorf("%s: healed %d times by the ring and %d by a snapshot, want %d and %d", c.name, byRing, bySnapshot, c.ring, c.snapshot)
			}
			if n := p.Stats().Rings - answers.Rings; c.in != 0 && n != c.in || c.cfg.MaxBytes != 0 && n < 2 {
				t.Errorf("%s: it took %d requests", c.name, n)
			}
			if n := r.counted("kv_events_repaired_total", "ring"); n != float64(s.Repaired[follow.ByRing]) {
				t.Errorf("%s: counted %v, want %d", c.name, n, s.Repaired[follow.ByRing])
			}
		})
	}
}

// plainBus has requests say nothing but which page is wanted, as subscribers of before did: what a publisher of before
// reads of a request.
type plainBus struct{ wire.Bus }

func (b plainBus) Request(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
	plain := nats.NewMsg(m.Subject)
	if cursor := m.Header.Get(wire.HeaderCursor); cursor != "" {
		plain.Header.Set(wire.HeaderCursor, cursor)
	}
	return b.Bus.Request(ctx, plain)
}

func TestPublisherWithoutRingGivesASnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, g, p := gapRig(t, 5, publish.Config{}, func(b wire.Bus) wire.Bus { return plainBus{b} })
		if err := p.Publish([]wire.Event{g.Store(1)}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if s := r.status("w"); !r.settled(g, p, "w") || s.Repaired[follow.ByRing] != 0 || p.Stats().Rings != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// A number that no publisher has used cannot be had: it is asked for, but not without end.
func TestWhatDoesNotExistIsNotAskedForWithoutEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := eventstest.NewBus()
		t.Cleanup(bus.Close)
		r := newRig(t, follow.Config{}, bus, bus)
		p, _ := r.publisher(publish.Config{Source: wire.Source{Pool: eventstest.Pool, Worker: "w", Rank: 0}})
		r.sub.Track(eventstest.Pool, "w", []int{0}, 16, 0)
		synctest.Wait()
		forged := nats.NewMsg(wire.Source{Pool: eventstest.Pool, Worker: "w", Rank: 0}.EventsSubject())
		wire.Stamp(forged, p.Epoch(), 1000)
		asked := p.Stats().Messages
		if err := bus.Publish(forged); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute) // virtual
		synctest.Wait()
		if n := p.Stats().Messages - asked; n > 60+40 {
			t.Errorf("%d messages in a minute, 60 of them heartbeats", n)
		}
	})
}
