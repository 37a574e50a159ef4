package handoff

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
	"github.com/tandem-pd/tandem/router/placement"
)

// A turn whose decode workers have gone since the choice calls no worker, gives its booking back and leaves the rest to the
// next admission, which ends the request.
func TestTurnWithoutADecodeWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, true, map[string]pools.Role{"p": pools.Prefill, "d": pools.Decode})
		r, prefill := h.ask(), h.rooms.Routers.For("m", pools.Prefill)
		lease, err := prefill.Reserve(h.rooms.Roster.Snapshot("m", pools.Prefill), router.Request{ID: r.ID, ISL: r.ISL}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		r.book(&placement.Placement{Prefill: placement.Booking{Lease: lease, Done: func(error) {}}}, nil)
		if !r.takesTurn() {
			t.Fatal("a prefill worker alone is no turn")
		}
		h.drain(t, "d")
		if failed := h.turn(t.Context(), r); failed != nil || r.takesTurn() || r.turns != 0 || prefill.Open() != 0 {
			t.Errorf("%v; %d turns, %d bookings, another turn %v", failed, r.turns, prefill.Open(), r.takesTurn())
		}
		if err := h.admit(t.Context(), r); !errors.Is(err, placement.ErrNoDecode) {
			t.Errorf("%v, want that there is no decode worker", err)
		}
	})
}
