package handoff

import (
	"slices"
	"testing"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/pools"
)

// TestAProducerIsAskedAgain: decode cannot find the engine whose KV it is to pull: a Mooncake prefill that has started again draws another
// engine id (MooncakeConnector in vLLM 0.32). The worker is asked at once, and the next round leaves it out.
func TestAProducerIsAskedAgain(t *testing.T) {
	h := newHouse(t, true, map[string]pools.Role{"p1": pools.Prefill, "p2": pools.Prefill, "d1": pools.Decode})
	var looked []string
	h.rooms.Look = func(worker string) { looked = append(looked, worker) }
	member := func(id string) *pools.Worker {
		m, _ := h.rooms.Roster.Lookup(id)
		return m.Worker
	}
	for class, want := range map[fault.Class][]string{fault.EngineError: {"p1"}, fault.Stalled: nil, fault.Overloaded: nil} {
		looked = nil
		r := h.ask()
		r.KV = &StagedKV{producer: member("p1")}
		h.suspect(r, member("d1"), &fault.Error{Leg: pools.Decode, Worker: "d1", Class: class})
		if !slices.Equal(looked, want) || slices.Contains(r.tried, "p1") != (want != nil) {
			t.Errorf("%v: asked %v, left out %v", class, looked, r.tried)
		}
	}
}
