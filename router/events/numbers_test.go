package events

import (
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
)

// TestFalseNumbersPass: one message under a number that the publisher never used costs at most a snapshot. What the publisher
// answers when it is asked is its word on where it stands.
func TestFalseNumbersPass(t *testing.T) {
	stored := AppendBatch(nil, &Batch{Events: []Event{{Kind: Stored, Hashes: []Hash{7}, Tokens: make([]uint32, 16), BlockSize: 16}}})
	cleared := AppendBatch(nil, &Batch{Events: []Event{{Kind: Cleared}}})
	for _, c := range []struct {
		name    string
		payload []byte
	}{{"heartbeat", nil}, {"blocks", stored}, {"cleared", cleared}} {
		for _, seq := range []uint64{math.MaxUint64, math.MaxUint64 - 1, maxNumber, 1 << 40, 5000} {
			for _, busy := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s %d busy=%v", c.name, seq, busy), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						bus := NewMemoryBus()
						t.Cleanup(bus.Close)
						r := newRig(t, SubscriberConfig{SnapshotEvery: time.Second}, bus, bus)
						g := newFakeEngine(1, 16)
						p, _ := r.publisher(PublisherConfig{Source: Source{testPool, "w", 0}})
						r.sub.Track(testPool, "w", []int{0}, 16, 0)
						for range 50 {
							if err := p.Publish(g.step()); err != nil {
								t.Fatal(err)
							}
						}
						within(t, 10*time.Second, 10*time.Millisecond, "live", func() bool { return r.settled(g, p, "w") })
						for range 3 {
							m := nats.NewMsg(Source{testPool, "w", 0}.EventsSubject())
							stamp(m, p.Epoch(), seq)
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
							if err := p.Publish(g.step()); err != nil {
								t.Fatal(err)
							}
							time.Sleep(20 * time.Millisecond) // virtual
						}
						within(t, 20*time.Second, 10*time.Millisecond, "live again", func() bool { return r.settled(g, p, "w") })
						if err := p.Publish(g.step()); err != nil {
							t.Fatal(err)
						}
						within(t, 10*time.Second, 10*time.Millisecond, "following", func() bool { return r.settled(g, p, "w") })
					})
				})
			}
		}
	}
}
