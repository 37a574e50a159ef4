package handoff

import (
	"errors"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
	"github.com/tandem-pd/tandem/router/placement"
)

// worker gives a worker of a house its taints and size; no blocks means unknown.
func (h *house) worker(t *testing.T, id string, role pools.Role, blocks int, taints ...string) {
	t.Helper()
	w := pools.Worker{ID: id, Incarnation: "i", Model: "m", Role: role, Engine: "vllm", Address: "http://h:1", BlockSize: 16,
		TotalKVBlocks: blocks, Taints: taints}
	if err := h.rooms.Roster.Put(w); err != nil {
		t.Fatal(err)
	}
}

// bind pins r, empty for no pin.
func bind(r *request, prefill, decode string) *request {
	r.pins.prefill.Worker, r.pins.decode.Worker = prefill, decode
	return r
}

func (h *house) drain(t *testing.T, id string) {
	t.Helper()
	if err := h.rooms.Roster.Drain(id, true); err != nil {
		t.Fatal(err)
	}
}

// Workers of role both serve while no pair can: their being there is of use when
// the only decode worker drains, has failed the request, lacks its taint or its
// circuit is open.
func TestWorkersThatServeAloneStandIn(t *testing.T) {
	for _, c := range []struct {
		name     string
		fallback bool
		happens  func(t *testing.T, h *house, r *request)
		want     string // who generates
	}{
		{"nothing", true, func(*testing.T, *house, *request) {}, "d"},
		{"decode drains", true, func(t *testing.T, h *house, _ *request) { h.drain(t, "d") }, "b"},
		{"decode's circuit is open", true, func(t *testing.T, h *house, _ *request) { h.open(t, pools.Decode, "d") }, "b"},
		{"decode has failed it", true, func(_ *testing.T, _ *house, r *request) { r.tried = []string{"d"} }, "b"},
		{"decode lacks the taint", true, func(t *testing.T, h *house, r *request) {
			h.worker(t, "b", pools.Both, 0, "gold")
			r.Call.Request.Nvext.RequiredTaints = []string{"gold"}
		}, "b"},
		{"decode is too small", true, func(t *testing.T, h *house, r *request) {
			h.worker(t, "d", pools.Decode, 4)
			r.ISL = 100
		}, "b"},
		{"all drain", true, func(t *testing.T, h *house, _ *request) { h.drain(t, "d"); h.drain(t, "b") }, ""},
		{"prefill drains", true, func(t *testing.T, h *house, _ *request) { h.drain(t, "p") }, "d"},
		{"prefill drains, without fallback", false, func(t *testing.T, h *house, _ *request) { h.drain(t, "p") }, "b"},
		{"both pinned to decode", true, func(t *testing.T, h *house, r *request) { bind(r, "", "d") }, "d"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHouse(t, c.fallback, map[string]pools.Role{"p": pools.Prefill, "d": pools.Decode, "b": pools.Both})
			r := h.ask()
			c.happens(t, h, r)
			held, err := h.reserve(r, nil, time.Now())
			switch {
			case c.want == "" && !errors.Is(err, placement.ErrNoDecode):
				t.Errorf("%v, want that there is none", err)
			case c.want != "" && (err != nil || held.Decode.Worker.ID != c.want):
				t.Errorf("%v, %v, want %s", held, err, c.want)
			}
		})
	}
}

// With --no-decode-fallback no round lets decode compute a prompt, a retry neither.
func TestNoFallbackInARetry(t *testing.T) {
	h := newHouse(t, false, map[string]pools.Role{"p": pools.Prefill, "d": pools.Decode})
	r := h.ask()
	r.Attempts = 1
	h.rooms.Roster.Remove("p")
	if held, err := h.reserve(r, nil, time.Now()); !errors.Is(err, placement.ErrNoPrefill) {
		t.Errorf("%+v, %v, want %v", held, err, placement.ErrNoPrefill)
	}
}

// A circuit keeps a request off a worker only while another could serve that very
// request: one with its taints, and large enough.
func TestFailOpenLooksAtTaintsAndSizes(t *testing.T) {
	for _, c := range []struct {
		name  string
		wants func(t *testing.T, h *house, r *request)
	}{
		{"taints", func(t *testing.T, h *house, r *request) {
			h.worker(t, "d1", pools.Decode, 0, "gold")
			h.worker(t, "p", pools.Prefill, 0, "gold")
			r.Call.Request.Nvext.RequiredTaints = []string{"gold"}
		}},
		{"size", func(t *testing.T, h *house, r *request) {
			h.worker(t, "d2", pools.Decode, 4)
			r.ISL = 100
		}},
		{"rank", func(t *testing.T, h *house, r *request) {
			w := pools.Worker{ID: "d1", Incarnation: "i", Model: "m", Role: pools.Decode, Engine: "vllm", Address: "http://h:1", BlockSize: 16, DataParallelRanks: 2}
			if err := h.rooms.Roster.Put(w); err != nil {
				t.Fatal(err)
			}
			r.pins.decode.Pin = router.Pin{Ranked: true, Rank: 1}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHouse(t, true, map[string]pools.Role{"p": pools.Prefill, "d1": pools.Decode, "d2": pools.Decode})
			r := h.ask()
			c.wants(t, h, r)
			h.open(t, pools.Decode, "d1")
			held, err := h.reserve(r, nil, time.Now())
			if err != nil || held.Decode.Worker.ID != "d1" {
				t.Fatalf("%v, %v, want d1 for want of another", held, err)
			}
			held.Release(time.Now())
			if held, err := h.reserve(h.ask(), nil, time.Now()); err != nil || held.Decode.Worker.ID != "d2" {
				t.Errorf("%v, %v of another request, want d2", held, err)
			}
		})
	}
}
