package kvevents

import (
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/tandem-pd/tandem/internal/kvevents/eventstest"
	"github.com/tandem-pd/tandem/internal/kvevents/follow"
	"github.com/tandem-pd/tandem/internal/kvevents/publish"
	"github.com/tandem-pd/tandem/internal/kvevents/wire"
)

// TestFalseNumbersPass: one message under a number that the publisher never used costs at most a snapshot. What the publisher
// answers when it is asked is its word on where it stands.
func TestFalseNumbersPass(t *testing.T) {
	stored := wire.AppendBatch(nil, &wire.Batch{Events: []wire.Event{{Kind: wire.Stored, Hashes: []wire.Hash{7}, Tokens: make([]uint32, 16), BlockSize: 16}}})
	cleared := wire.AppendBatch(nil, &wire.Batch{Events: []wire.Event{{Kind: wire.Cleared}}})
	for _, c := range []struct {
		name    string
		payload []byte
	}{{"heartbeat", nil}, {"blocks", stored}, {"cleared", cleared}} {
		for _, seq := range []uint64{math.MaxUint64, math.MaxUint64 - 1, 1 << 48, 1 << 40, 5000} {
			for _, busy := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s %d busy=%v", c.name, seq, busy), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						bus := eventstest.NewBus()
						t.Cleanup(bus.Close)
						r := newRig(t, follow.Config{SnapshotEvery: time.Second}, bus, bus)
						g := eventstest.NewEngine(1, 16)
						p, _ := r.publisher(publish.Config{Source: wire.Source{Pool: eventstest.Pool, Worker: "w", Rank: 0}})
						r.sub.Track(eventstest.Pool, "w", []int{0}, 16, 0)
						for range 50 {
							if err := p.Publish(g.Step()); err != nil {
								t.Fatal(err)
							}
						}
						within(t, 10*time.Second, 10*time.Millisecond, "live", func() bool { return r.settled(g, p, "w") })
						for range 3 {
							m := nats.NewMsg(wire.Source{Pool: eventstest.Pool, Worker: "w", Rank: 0}.EventsSubject())
							wire.Stamp(m, p.Epoch(), seq)
							m.Data = c.payload
							if err := bus.Publish(m); err != nil {
								t.Fatal(err)
							}
						}
						synctest.Wait()
						for range 100 {
							if !busy {
								break
							}
							if err := p.Publish(g.Step()); err != nil {
								t.Fatal(err)
							}
							time.Sleep(20 * time.Millisecond) // virtual
						}
						within(t, 20*time.Second, 10*time.Millisecond, "live again", func() bool { return r.settled(g, p, "w") })
						if err := p.Publish(g.Step()); err != nil {
							t.Fatal(err)
						}
						within(t, 10*time.Second, 10*time.Millisecond, "following", func() bool { return r.settled(g, p, "w") })
					})
				})
			}
		}
	}
}
