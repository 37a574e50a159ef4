package handoff

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router/placement"
)

// Many requests that choose at once: each half-open worker gets exactly one of
// them, booked, and the others go where a circuit is closed.
func TestOneTrialOfMany(t *testing.T) {
	const asking = 100
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, true, map[string]pools.Role{
			"p1": pools.Prefill, "p2": pools.Prefill, "p3": pools.Prefill,
			"d1": pools.Decode, "d2": pools.Decode, "d3": pools.Decode,
		})
		h.open(t, pools.Prefill, "p1")
		h.open(t, pools.Decode, "d1", "d2")
		for round := range 5 {
			time.Sleep(openFor + 1)
			grants := make([]*placement.Placement, asking)
			var group sync.WaitGroup
			for i := range grants {
				group.Go(func() {
					held, err := h.reserve(h.ask())
					assert.NoError(t, err, "round %d", round)
					grants[i] = held
				})
			}
			group.Wait()
			if t.Failed() {
				return
			}
			chosen := map[string]int{}
			for _, g := range grants {
				chosen[g.Prefill.Worker.ID]++
				chosen[g.Decode.Worker.ID]++
			}
			for _, trial := range []string{"p1", "d1", "d2"} {
				assert.LessOrEqual(t, chosen[trial], 1, "round %d: requests that try %s", round, trial)
			}
			assert.Len(t, h.breakers.OnTrial(pools.Decode, ""), chosen["d1"]+chosen["d2"], "round %d", round)
			assert.NotZero(t, chosen["d1"]+chosen["d2"]+chosen["p1"], "round %d", round)
			for _, g := range grants {
				if g.Decode.Worker.ID != "d3" {
					g.Decode.Done(fault.Timeout) // it is dead still
				}
				if g.Prefill.Worker.ID == "p1" {
					g.Prefill.Done(fault.Timeout)
				}
				g.Release(time.Now())
			}
			assert.Zero(t, h.bookings(), "round %d", round)
		}
	})
}

// While one worker is open and the other on its trial, what must go somewhere
// goes to the open one, uncounted: never a second call to the trial's.
func TestFailOpenSparesTheTrial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, true, twoDecode)
		h.open(t, pools.Decode, "d1")
		time.Sleep(openFor + 1)
		h.open(t, pools.Decode, "d2")
		trial := h.take(t)
		require.Equal(t, "d1", trial.Decode.Worker.ID)
		for range 20 {
			held := h.take(t)
			require.Equal(t, "d2", held.Decode.Worker.ID)
			held.Decode.Done(fault.Reset)
			held.Release(time.Now())
		}
		for _, c := range h.breakers.States() {
			if c.Worker == "d2" && c.Leg == pools.Decode {
				assert.Equal(t, 1, c.Failures, "calls without leave were counted")
			}
		}
		trial.Release(time.Now()) // its client left: the next is the trial
		assert.Equal(t, "d1", h.take(t).Decode.Worker.ID)
	})
}

// A request that waits for a trial continues when it ends. A trial whose answer is not streamed is silent until its end: it holds the
// next request up for a tenth of the time that a circuit is open, and no longer.
func TestTrialsEndWakesTheQueue(t *testing.T) {
	for name, ends := range map[string]error{"never": nil, "ok": fault.None, "reset": fault.Reset, "client gone": fault.ClientGone} {
		bubble(t, name, func(t *testing.T) {
			h := newHouse(t, true, oneOfEach)
			h.open(t, pools.Decode, "d1")
			time.Sleep(openFor + 1)
			first, second := h.admitted(t, h.ask()), h.ask()
			began, waits := time.Now(), openFor/10
			if ends != nil {
				waits = time.Millisecond
				time.AfterFunc(waits, func() {
					first.d.Done(ends)
					first.stack.release()
				})
			}
			h.admitted(t, second)
			assert.Equal(t, "d1", second.d.Worker.ID)
			assert.Equal(t, waits, time.Since(began))
			if ends == nil {
				first.stack.release()
			}
			second.stack.release()
		})
	}
}

// A broken adapter takes no worker from the model: its own requests go elsewhere, all others do not.
func TestAdaptersCircuits(t *testing.T) {
	h := newHouse(t, true, map[string]pools.Role{"d1": pools.Both, "d2": pools.Both})
	for _, id := range []string{"d1", "d2"} {
		h.change(t, id, func(w *pools.Worker) { w.Adapters = []string{"sql"} })
	}
	end, err := h.breakers.Acquire("d1", "i", pools.Decode, "sql", false)
	require.NoError(t, err)
	end(fault.EngineError)
	chosen := map[string]map[string]int{"": {}, "sql": {}}
	for range 8 {
		for adapter, ids := range chosen {
			r := h.ask()
			r.Call.Request.Adapter = adapter
			g, err := h.reserve(r)
			require.NoError(t, err)
			ids[g.Decode.Worker.ID]++
			defer g.Release(time.Now())
		}
	}
	assert.True(t, chosen[""]["d1"] != 0 && chosen["sql"]["d1"] == 0, "chosen: %v", chosen)
}
