package handoff

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
	"github.com/tandem-pd/tandem/router/placement"
)

// A prefill pass whose decode workers have gone since the choice calls no worker, gives its booking back and leaves the
// rest to the next admission, which ends the request.
func TestTurnWithoutADecodeWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, true, oneOfEach)
		r := h.ask()
		lease, err := h.rooms.Routers.For("m", pools.Prefill).Reserve(
			h.rooms.Roster.Snapshot("m", pools.Prefill), router.Request{ID: r.ID, ISL: r.ISL}, time.Now())
		require.NoError(t, err)
		r.book(&placement.Placement{Prefill: placement.Booking{Lease: lease, Done: func(error) {}}}, nil)
		require.True(t, r.prefillsOnly(), "a prefill worker alone is booked")
		h.drain(t, "d1")
		failed := h.prefillPass(t.Context(), r)
		assert.True(t, failed == nil && !r.prefillsOnly() && r.passes == 0 && h.bookings() == [2]int{},
			"%v; %d passes, %v bookings, another pass %v", failed, r.passes, h.bookings(), r.prefillsOnly())
		assert.ErrorIs(t, h.admit(t.Context(), r), placement.ErrNoDecode)
	})
}

// A pass that went to another worker than the slice before it has lost nothing, however often it comes: the router
// chose it knowing that. One that finds its worker's cache without the slice has.
func TestATurnThatMovesLosesNothing(t *testing.T) {
	for _, c := range []struct {
		worker string
		rank   int
		on     bool
	}{{"p", 0, false}, {"q", 0, true}, {"p", 1, true}} {
		f, r := new(Flow), &request{sliced: 4096, done: router.Done{Worker: "p", Tokens: 8192}}
		for range 100 {
			f.found(r, c.worker, c.rank, 0)
		}
		assert.Equal(t, c.on, f.slices.on(), "slices of p's rank 0 that continue at %s's rank %d: on", c.worker, c.rank)
	}
}
