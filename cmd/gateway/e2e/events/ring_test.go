package events

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/kv/follow"
	"github.com/tandem-pd/tandem/kv/view"
	"github.com/tandem-pd/tandem/kv/wire"
)

// dropBus loses all event messages while it is set.
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

// lost has messages of three blocks lost on the way.
func (b *dropBus) lost(p *speaker, messages int) {
	b.drop.Store(true)
	for range messages {
		p.publishEvents(p.Store(3))
	}
	b.drop.Store(false)
}

func TestGapIsHealedOutOfTheRing(t *testing.T) {
	for _, c := range []struct {
		name     string
		lost     int
		cfg      view.PublisherConfig
		plain    bool   // the publisher is of before
		ring, in uint64 // healed by the ring, and the requests it took
		snapshot uint64
	}{
		{"one message", 1, view.PublisherConfig{}, false, 1, 1, 0},
		{"many, in pages", 60, view.PublisherConfig{MaxBytes: 4096}, false, 1, 0, 0},
		{"more than the ring holds", 60, view.PublisherConfig{RingMessages: 50}, false, 0, 0, 1},
		{"as many as it holds", 49, view.PublisherConfig{RingMessages: 50}, false, 1, 1, 0},
		{"more bytes than it holds", 60, view.PublisherConfig{RingBytes: 2000}, false, 0, 0, 1},
		{"a publisher without a ring", 5, view.PublisherConfig{}, true, 0, 0, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			memory := memoryBus(t)
			bus := &dropBus{Bus: memory}
			var of wire.Bus = memory
			if c.plain {
				of = plainBus{memory}
			}
			r := newRig(t, follow.Config{}, bus, of)
			p := r.speaks(1, c.cfg)
			synctest.Wait() // it has subscribed
			r.track("w")
			p.publishEvents(p.Store(3))
			synctest.Wait()
			require.True(t, r.follows(p), "%+v", r.status("w"))
			bus.lost(p, c.lost)
			before, answers := r.status("w"), p.Stats()
			p.publishEvents(p.Store(1)) // this one arrives and shows the gap
			synctest.Wait()
			s := r.status("w")
			require.True(t, r.follows(p), "%s: not healed at once: %+v", c.name, s)
			byRing, bySnapshot := s.Repaired[follow.ByRing]-before.Repaired[follow.ByRing],
				s.Repaired[follow.BySnapshot]-before.Repaired[follow.BySnapshot]
			if byRing != c.ring || bySnapshot != c.snapshot || p.Stats().Snapshots-answers.Snapshots != c.snapshot {
				t.Errorf("%s: healed %d times by the ring and %d by a snapshot, want %d and %d", c.name, byRing, bySnapshot, c.ring, c.snapshot)
			}
			if n := p.Stats().Rings - answers.Rings; c.in != 0 && n != c.in || c.cfg.MaxBytes != 0 && n < 2 || c.plain && n != 0 {
				t.Errorf("%s: it took %d requests", c.name, n)
			}
			assert.EqualValues(t, s.Repaired[follow.ByRing], r.counted("kv_events_repaired_total", "ring"), c.name)
		})
	}
}

// plainBus reduces requests to the wanted page, as earlier subscribers did: what an earlier publisher
// reads of a request.
type plainBus struct{ wire.Bus }

func (b plainBus) Request(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
	plain := nats.NewMsg(m.Subject)
	if cursor := m.Header.Get(wire.HeaderCursor); cursor != "" {
		plain.Header.Set(wire.HeaderCursor, cursor)
	}
	return b.Bus.Request(ctx, plain)
}

// A message of a process that has ended marks the view stale, which can wait; a gap meanwhile can not.
func TestGapIsRepairedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := &dropBus{Bus: memoryBus(t)}
		r := newRig(t, follow.Config{RetryMin: 10 * time.Millisecond, SnapshotEvery: time.Hour}, bus, bus)
		old := r.speaks(1, view.PublisherConfig{})
		r.track("w")
		synctest.Wait()
		old.stop()
		p := r.speaks(1, view.PublisherConfig{})
		p.publishEvents(p.Store(3))
		synctest.Wait()
		straggler := nats.NewMsg(source("w").EventsSubject())
		wire.Stamp(straggler, old.Epoch(), 1)
		// The first makes it send a request at once; the second not before an hour has passed.
		for range 2 {
			require.NoError(t, bus.Publish(straggler))
			synctest.Wait()
		}
		s := r.status("w")
		require.True(t, s.State == follow.Recovering && s.Snapshots != 0, "no doubt is left open: %+v", s)
		bus.lost(p, 1)
		p.publishEvents(p.Store(1))
		within(t, time.Minute, 10*time.Millisecond, "the gap is filled", func() bool {
			return r.status("w").Seq == p.Stats().Seq && p.Mismatch(r.idx.Of("w", 0), 16) == ""
		})
	})
}
