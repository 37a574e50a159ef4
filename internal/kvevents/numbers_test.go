package kvevents

import (
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"github.com/tandem-pd/tandem/internal/kvevents/follow"
	"github.com/tandem-pd/tandem/internal/kvevents/publish"
	"github.com/tandem-pd/tandem/internal/kvevents/wire"
)

// TestFalseNumbersPass: one message under a number that the publisher never used costs at most a snapshot. What the publisher
// answers when it is asked is its word on where it stands.
func TestFalseNumbersPass(t *testing.T) {
	batch := func(e wire.Event) []byte { return wire.AppendBatch(nil, &wire.Batch{Events: []wire.Event{e}}) }
	for name, payload := range map[string][]byte{
		"heartbeat": nil,
		"blocks":    batch(wire.Event{Kind: wire.Stored, Hashes: []wire.Hash{7}, Tokens: make([]uint32, 16), BlockSize: 16}),
		"cleared":   batch(wire.Event{Kind: wire.Cleared}),
	} {
		for _, seq := range []uint64{math.MaxUint64, math.MaxUint64 - 1, 1 << 48, 1 << 40, 5000} {
			for _, busy := range []int{0, 100} {
				t.Run(fmt.Sprintf("%s %d busy=%v", name, seq, busy > 0), func(t *testing.T) {
					virtual(t, follow.Config{SnapshotEvery: time.Second}, func(t *testing.T, r *rig) {
						p := r.speaks(1, publish.Config{})
						r.track("w")
						p.say(50)
						r.catchesUp(p, "live")
						m := nats.NewMsg(source("w").EventsSubject())
						wire.Stamp(m, p.Epoch(), seq)
						m.Data = payload
						for range 3 {
							require.NoError(t, r.bus.Publish(m))
						}
						synctest.Wait()
						for range busy {
							p.say(1)
							time.Sleep(20 * time.Millisecond) // virtual
						}
						r.catchesUp(p, "live again")
						p.say(1)
						r.catchesUp(p, "following")
					})
				})
			}
		}
	}
}
