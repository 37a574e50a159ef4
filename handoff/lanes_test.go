package handoff

import (
	"errors"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/queue"
	"github.com/tandem-pd/tandem/router"
)

// bind pins r, empty for no pin.
func bind(r *request, prefill, decode string) *request {
	r.pins.prefill.Worker, r.pins.decode.Worker = prefill, decode
	return r
}

func TestLanesAreOfWhatIsAlike(t *testing.T) {
	h := newHouse(t, true, map[string]pools.Role{"p1": pools.Prefill, "d1": pools.Decode})
	tainted := func(taints ...string) *request {
		r := h.ask()
		r.call.Request.Nvext.RequiredTaints = taints
		return r
	}
	if lane := h.ask().lane(); lane != "" {
		t.Errorf("a request that takes any worker is in lane %q", lane)
	}
	retry := h.ask("d1")
	retry.kv = &KV{}
	lanes := map[string]bool{}
	all := []*request{
		bind(h.ask(), "p1", ""), bind(h.ask(), "", "d1"), bind(h.ask(), "p1", "d1"), h.ask("d1"), h.ask("p1"), retry,
		tainted("a"), tainted("a", "b"), tainted("ab"),
	}
	for _, r := range all {
		if lanes[r.lane()] || r.lane() == "" {
			t.Errorf("lane %q is another's", r.lane())
		}
		lanes[r.lane()] = true
	}
	if a, b := tainted("a", "b").lane(), tainted("b", "a").lane(); a != b {
		t.Errorf("lanes %q and %q of the same taints", a, b)
	}
}

// A request that waits for both its workers in turn keeps its claim to the one while it waits for the other, and a
// request behind it takes neither.
func TestClaimsAddUp(t *testing.T) {
	h := newHouse(t, true, map[string]pools.Role{"p1": pools.Prefill, "p2": pools.Prefill, "d1": pools.Decode, "d2": pools.Decode})
	for id, role := range map[string]pools.Role{"p1": pools.Prefill, "d1": pools.Decode} {
		w := pools.Worker{ID: id, Incarnation: "i", Model: "m", Role: role, Engine: "vllm", Address: "http://h:1", BlockSize: 16,
			MaxNumSeqs: 1, MaxNumBatchedTokens: 1}
		if err := h.rooms.Roster.Put(w); err != nil {
			t.Fatal(err)
		}
	}
	now := time.Now()
	take := func(prefill, decode string) *grant {
		t.Helper()
		r := bind(h.ask(), prefill, decode)
		r.isl = 40
		held, err := h.reserve(r, nil, now)
		if err != nil {
			t.Fatal(err)
		}
		return held.(*grant)
	}
	onDecode := take("p2", "d1")
	waits, own := bind(h.ask(), "p1", "d1"), &claims{}
	refused := func(legs int) {
		t.Helper()
		_, err := h.reserve(waits, nil, now)
		if !errors.Is(err, queue.ErrWait) {
			t.Fatalf("%v, want that it waits", err)
		}
		if own.add(h.Flow, waits, err); len(own.legs) != legs {
			t.Fatalf("it claims %+v, want %d legs", own.legs, legs)
		}
	}
	refused(1)
	for range 4 { // decode's worker is claimed, prefill's is not
		held, err := h.reserve(bind(h.ask(), "p1", ""), claimed([]any{own}), now)
		if err != nil || held.(*grant).d.Worker.ID != "d2" {
			t.Fatalf("%v, want a place on d2", err)
		}
		held.Release()
	}
	onDecode.Release()
	onPrefill := take("p1", "d2")
	refused(2)
	onPrefill.Release()
	for range 4 {
		held, err := h.reserve(h.ask(), claimed([]any{own}), now)
		if err != nil || held.(*grant).d.Worker.ID != "d2" || held.(*grant).p.Worker.ID != "p2" {
			t.Fatalf("%v, want places on p2 and d2", err)
		}
		held.Release()
	}
	if _, err := h.reserve(bind(h.ask(), "", "d1"), []router.Claim{{Role: pools.Decode, Pin: &router.Pin{Worker: "d1"}}}, now); !errors.Is(err, queue.ErrWait) {
		t.Errorf("a request behind it got %v, want that it waits", err)
	}
	if held, err := h.reserve(waits, nil, now); err != nil {
		t.Errorf("it is not served: %v", err)
	} else {
		held.Release()
	}
}
