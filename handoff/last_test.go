package handoff

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/queue"
	"github.com/tandem-pd/tandem/router/placement"
)

// A request that waits for room waits on when the last worker of its pool goes, as it does for any other reason: until a worker is there
// again, or for --queue-timeout. One that comes when there is no worker is refused at once.
func TestTheQueueOutlivesTheLastWorker(t *testing.T) {
	alone := map[string]pools.Role{"b": pools.Both}
	for _, c := range []struct {
		gone  string
		roles map[string]pools.Role
		err   error // of one that comes meanwhile
	}{{"b", alone, placement.ErrNoPrefill}, {"d1", oneOfEach, placement.ErrNoDecode}, {"p1", oneOfEach, placement.ErrNoPrefill}} {
		for _, back := range []bool{true, false} {
			bubble(t, fmt.Sprintf("%s, back %v", c.gone, back), func(t *testing.T) {
				h := newHouse(t, false, c.roles)
				for id := range c.roles {
					h.change(t, id, func(w *pools.Worker) { w.TotalKVBlocks = 64 }) // has room for one prompt of 40 blocks
				}
				large := func() *request {
					r := h.ask()
					r.ISL = 40 * r.card.BlockSize
					return r
				}
				served, waits, ended := h.admitted(t, large()), large(), make(chan error, 1)
				began, longest := time.Now(), h.cfg.Queue.Timeout
				go func() { ended <- h.admit(t.Context(), waits) }()
				synctest.Wait()
				m, _ := h.rooms.Roster.Lookup(c.gone)
				h.rooms.Roster.Remove(c.gone)
				served.stack.release() // its worker has ended
				synctest.Wait()
				require.Empty(t, ended, "it did not wait")
				if back {
					time.Sleep(longest / 2)
					require.NoError(t, h.rooms.Roster.Put(*m.Worker))
					assert.NoError(t, <-ended)
					assert.Equal(t, longest/2, time.Since(began))
				} else {
					assert.ErrorIs(t, <-ended, queue.ErrExpired)
					assert.Equal(t, longest, time.Since(began))
					assert.ErrorIs(t, h.admit(t.Context(), large()), c.err, "without a queue")
				}
				waits.stack.release()
			})
		}
	}
}
