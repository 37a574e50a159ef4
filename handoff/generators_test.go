package handoff

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
	"github.com/tandem-pd/tandem/router/placement"
)

// Workers of role both serve while no pair can: their being there is of use when
// the only decode worker drains, has failed the request, lacks its taint or its
// circuit is open. With --no-decode-fallback no round lets decode compute a prompt, a retry neither.
func TestWorkersThatServeAloneStandIn(t *testing.T) {
	for _, c := range []struct {
		name     string
		fallback bool
		happens  func(h *house, r *request)
		want     string // who generates
		err      error
	}{
		{"nothing", true, func(*house, *request) {}, "d", nil},
		{"decode drains", true, func(h *house, _ *request) { h.drain(t, "d") }, "b", nil},
		{"decode's circuit is open", true, func(h *house, _ *request) { h.open(t, pools.Decode, "d") }, "b", nil},
		{"decode has failed it", true, func(_ *house, r *request) { r.tried = []string{"d"} }, "b", nil},
		{"decode lacks the taint", true, func(h *house, r *request) {
			h.change(t, "b", func(w *pools.Worker) { w.Taints = []string{"gold"} })
			r.Call.Request.Nvext.RequiredTaints = []string{"gold"}
		}, "b", nil},
		{"decode is too small", true, func(h *house, r *request) {
			h.change(t, "d", func(w *pools.Worker) { w.TotalKVBlocks = 4 })
			r.ISL = 100
		}, "b", nil},
		{"all drain", true, func(h *house, _ *request) { h.drain(t, "d"); h.drain(t, "b") }, "", placement.ErrNoDecode},
		{"prefill drains", true, func(h *house, _ *request) { h.drain(t, "p") }, "d", nil},
		{"prefill drains, without fallback", false, func(h *house, _ *request) { h.drain(t, "p") }, "b", nil},
		{"decode is left in a retry, without fallback", false, func(h *house, r *request) {
			r.Attempts = 1
			h.rooms.Roster.Remove("p")
			h.rooms.Roster.Remove("b")
		}, "", placement.ErrNoPrefill},
		{"both pinned to decode", true, func(_ *house, r *request) { r.pins.decode.Worker = "d" }, "d", nil},
	} {
		h := newHouse(t, c.fallback, map[string]pools.Role{"p": pools.Prefill, "d": pools.Decode, "b": pools.Both})
		r := h.ask()
		c.happens(h, r)
		held, err := h.reserve(r)
		require.ErrorIs(t, err, c.err, c.name)
		assert.True(t, err != nil || held.Decode.Worker.ID == c.want, "%s: %+v, want %s", c.name, held, c.want)
	}
}

// A circuit keeps a request off a worker only while another could serve that very
// request: one with its taints, and large enough.
func TestFailOpenLooksAtTaintsAndSizes(t *testing.T) {
	for name, wants := range map[string]func(h *house, r *request){
		"taints": func(h *house, r *request) {
			for _, id := range []string{"d1", "p1"} {
				h.change(t, id, func(w *pools.Worker) { w.Taints = []string{"gold"} })
			}
			r.Call.Request.Nvext.RequiredTaints = []string{"gold"}
		},
		"size": func(h *house, r *request) {
			h.change(t, "d2", func(w *pools.Worker) { w.TotalKVBlocks = 4 })
			r.ISL = 100
		},
		"rank": func(h *house, r *request) {
			h.change(t, "d1", func(w *pools.Worker) { w.DataParallelRanks = 2 })
			r.pins.decode.Pin = router.Pin{Ranked: true, Rank: 1}
		},
	} {
		h := newHouse(t, true, twoDecode)
		r := h.ask()
		wants(h, r)
		h.open(t, pools.Decode, "d1")
		held, err := h.reserve(r)
		require.True(t, err == nil && held.Decode.Worker.ID == "d1", "%s: %v, %v, want d1 for want of another", name, held, err)
		held.Release(time.Now())
		assert.Equal(t, "d2", h.take(t).Decode.Worker.ID, "%s: of another request", name)
	}
}
