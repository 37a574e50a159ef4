package handoff

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
)

// queuedBy calls f for a request that is about to be queued.
type queuedBy struct {
	unobserved
	f func()
}

func (q queuedBy) Queued(*Record, int) { q.f() }

// A request that is granted at once is looked up once: the queue's key and the choice come from one look. A retry looks again.
func TestOneLookPerRequest(t *testing.T) { synctest.Test(t, oneLook) }

func oneLook(t *testing.T) {
	h := newHouse(t, true, map[string]pools.Role{"p1": pools.Prefill, "d1": pools.Decode})
	h.change(t, "p1", func(w *pools.Worker) { w.KVEvents = "nats" })
	idx, hashes := h.rooms.Routers.Index("m", pools.Prefill), []uint64{11, 12, 13}
	owner := idx.Owner("p1", 0)
	idx.Store(owner, index.Device, hashes[:1])
	h.observer = queuedBy{f: func() { idx.Store(owner, index.Device, hashes[:2]) }}
	r := h.ask()
	r.ISL, r.ids, r.Hashes = 49, make([]uint32, 49), hashes
	require.NoError(t, h.admit(t.Context(), r))
	assert.Equal(t, 1, r.Prefill.Why.Overlap, "blocks of the first choice")
	r.releaseAll()
	r.Attempts, r.done = 1, router.Done{}
	require.NoError(t, h.admit(t.Context(), r))
	assert.Equal(t, 2, r.Prefill.Why.Overlap, "blocks of the second choice")
}
