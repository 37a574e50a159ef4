package handoff

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/handoff/connector"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
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

// KV whose lease ends while its request waits for a decode worker is bound to none:
// the wait ends before the lease does, the KV is released once, and the request goes
// through both legs again.
func TestALeaseBoundsTheWaitForDecode(t *testing.T) {
	for _, c := range []struct {
		name  string
		frees time.Duration // when decode has room again
		again int
	}{
		{"in time", 10 * time.Second, 0},
		{"too late", 27 * time.Second, 1}, // the lease has three seconds left
		{"much too late", 45 * time.Second, 1},
	} {
		bubble(t, c.name, func(t *testing.T) {
			h := newHouse(t, true, oneOfEach)
			h.change(t, "d1", func(w *pools.Worker) { w.MaxNumSeqs = 1 })
			first, released := h.take(t), 0
			r, began := h.staged(&released), time.Now()
			time.AfterFunc(c.frees, func() {
				first.Release(time.Now())
				h.Wake("m")
			})
			h.admitted(t, r)
			assert.Equal(t, c.frees, time.Since(began))
			assert.NotNil(t, r.d.Lease)
			assert.Equal(t, c.again, released, "how often the KV was released")
			assert.Equal(t, c.again == 1, r.KV == nil && r.p.Lease != nil, "both legs again")
			r.stack.release()
		})
	}
}

// KV that is staged for decode workers is released where only workers that serve
// alone are left, and a request whose time in the queue is over is not kept by it.
func TestStagedKVIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, true, map[string]pools.Role{"p1": pools.Prefill, "d1": pools.Decode, "b": pools.Both})
		released := 0
		r := h.admitted(t, h.staged(&released, "d1"))
		assert.True(t, r.KV == nil && released == 1 && r.d.Worker.ID == "b", "KV %v released %d times, on %v", r.KV, released, r.d)
		r.stack.release()
		h.drain(t, "b")
		r = h.staged(&released, "d1")
		r.Attempts = 0
		err := h.admit(t.Context(), r)
		assert.ErrorIs(t, err, placement.ErrNoDecode)
		assert.NotErrorIs(t, err, queue.ErrExpired)
		r.stack.release()
	})
}

// staged is a request's second round, with KV of p for decode; released counts how often that is released.
func (h *house) staged(released *int, tried ...string) *request {
	r := h.ask(tried...)
	r.stack.releaseKV = func(*StagedKV) { *released++ }
	r.Attempts = 1
	r.stage(&StagedKV{KV: prefill.KV{Producer: "p1", Expires: time.Now().Add(connector.LeaseDuration)}})
	return r
}
