package handoff

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-pd/tandem/decode"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/internal/upstream"
	"github.com/tandem-pd/tandem/models"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
	"github.com/tandem-pd/tandem/queue"
	"github.com/tandem-pd/tandem/router"
	"github.com/tandem-pd/tandem/router/placement"
)

// nowhere is a Transport that is not called.
type nowhere struct{}

func (nowhere) Call(context.Context, upstream.Leg) (upstream.Stream, error) {
	return nil, errors.New("called")
}

// house is a flow over workers that are only chosen, never called.
type house struct {
	*Flow
	breakers *fault.Breakers
}

const openFor = time.Second

// rosterOf has workers of an engine by id and role.
func rosterOf(t *testing.T, engine string, workers map[string]pools.Role) *pools.Roster {
	t.Helper()
	roster := pools.NewRoster(pools.Config{}, slog.New(slog.DiscardHandler))
	for id, role := range workers {
		w := pools.Worker{ID: id, Incarnation: "i", Model: "m", Role: role, Engine: engine, Address: "http://h:1", BlockSize: 16}
		if err := roster.Put(w); err != nil {
			t.Fatal(err)
		}
	}
	return roster
}

// routers has the default router of each role.
func routers(t *testing.T) *router.Set {
	t.Helper()
	base, cfg := router.DefaultConfig(), map[pools.Role]router.Config{}
	for _, role := range []pools.Role{pools.Prefill, pools.Decode, pools.Both} {
		cfg[role] = base.For(role)
	}
	set, err := router.NewSet(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func newHouse(t *testing.T, fallback bool, workers map[string]pools.Role) *house {
	t.Helper()
	roster, set := rosterOf(t, "vllm", workers), routers(t)
	h := &house{breakers: fault.NewBreakers(fault.BreakerConfig{Consecutive: 1, OpenFor: openFor})}
	var err error
	h.Flow, err = New(Config{DecodeFallback: fallback, Queue: setting.Default[queue.Config]()}, Rooms{
		Roster:   roster,
		Prefill:  prefill.New(prefill.Config{}, roster, nowhere{}),
		Decode:   decode.New(decode.Config{}, roster, nowhere{}),
		Breakers: h.breakers, Transport: nowhere{}, Routers: set,
	}, unobserved{})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// ask is a request that has been understood.
func (h *house) ask(tried ...string) *request {
	r := requestOf(Call{Request: &openai.Request{Model: "m", N: 1}}, h.ids.next())
	r.ISL, r.tried, r.card = 4, tried, models.Card{BlockSize: 16}
	return r
}

// reserve is the drain step of r.
func (h *house) reserve(r *request, ahead []*placement.Ask, now time.Time) (*placement.Placement, error) {
	ask := h.Flow.ask(r)
	g, err := h.Flow.reserve(&ask, ahead, now)
	if err != nil {
		return nil, err
	}
	return &g, nil
}

// open opens a worker's circuit.
func (h *house) open(t *testing.T, leg pools.Role, workers ...string) {
	t.Helper()
	for _, w := range workers {
		end, err := h.breakers.Acquire(w, "i", leg, "", false)
		if err != nil {
			t.Fatal(err)
		}
		end(fault.Reset)
	}
}

// Many requests that choose at once: each half-open worker gets exactly one of
// them, booked, and the others go where a circuit is closed.
func TestOneTrialAmongMany(t *testing.T) {
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
					held, err := h.reserve(h.ask(), nil, time.Now())
					if err != nil {
						t.Errorf("round %d: %v", round, err)
						return
					}
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
				if chosen[trial] > 1 {
					t.Errorf("round %d: %d requests try %s", round, chosen[trial], trial)
				}
			}
			if len(h.breakers.OnTrial(pools.Decode, "")) != chosen["d1"]+chosen["d2"] || chosen["d1"]+chosen["d2"]+chosen["p1"] == 0 {
				t.Errorf("round %d: chosen %v, on trial %q", round, chosen, h.breakers.OnTrial(pools.Decode, ""))
			}
			for _, g := range grants {
				if g.Decode.Worker.ID != "d3" {
					g.Decode.Done(fault.Timeout) // it is dead still
				}
				if g.Prefill.Worker.ID == "p1" {
					g.Prefill.Done(fault.Timeout)
				}
				g.Release(time.Now())
			}
			for _, role := range []pools.Role{pools.Prefill, pools.Decode} {
				if open := h.rooms.Routers.For("m", role).Open(); open != 0 {
					t.Errorf("round %d: %d bookings are open in pool %s", round, open, role)
				}
			}
		}
	})
}

// What becomes of a request by the state of the pools' circuits.
func TestChoiceByCircuits(t *testing.T) {
	two := map[string]pools.Role{"p1": pools.Prefill, "d1": pools.Decode, "d2": pools.Decode}
	one := map[string]pools.Role{"p1": pools.Prefill, "d1": pools.Decode}
	for _, c := range []struct {
		name     string
		workers  map[string]pools.Role
		prefills []string // circuits opened
		decodes  []string
		half     bool // and half-open by now
		trials   int  // requests that came before, each a trial
		fallback bool
		tried    []string
		p, d     string // who is chosen; "" for none
		err      error
	}{
		{"all closed", one, nil, nil, false, 0, false, nil, "p1", "d1", nil},
		{"one is open", two, nil, []string{"d1"}, false, 0, false, nil, "p1", "d2", nil},
		{"all are open: asked all the same", one, nil, []string{"d1"}, false, 0, false, nil, "p1", "d1", nil},
		{"prefill is open: asked all the same", one, []string{"p1"}, nil, false, 0, true, nil, "p1", "d1", nil},
		{"the trial", one, nil, []string{"d1"}, true, 0, false, nil, "p1", "d1", nil},
		{"beside the trial: waits", one, nil, []string{"d1"}, true, 1, false, nil, "", "", queue.ErrWait},
		{"beside the trial: elsewhere", two, nil, []string{"d1"}, true, 1, false, []string{"d1"}, "p1", "d2", nil},
		{"beside two trials: waits", two, nil, []string{"d1", "d2"}, true, 2, false, nil, "", "", queue.ErrWait},
		{"beside prefill's trial: decode prefills", one, []string{"p1"}, nil, true, 1, true, nil, "", "d1", nil},
		{"beside prefill's trial: waits", one, []string{"p1"}, nil, true, 1, false, nil, "", "", queue.ErrWait},
		{"tried and none left", one, nil, nil, false, 0, false, []string{"d1"}, "", "", placement.ErrNoDecode},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHouse(t, c.fallback, c.workers)
				h.open(t, pools.Prefill, c.prefills...)
				h.open(t, pools.Decode, c.decodes...)
				if c.half {
					time.Sleep(openFor + 1)
				}
				for range c.trials {
					if _, err := h.reserve(h.ask(), nil, time.Now()); err != nil {
						t.Fatal(err)
					}
				}
				held, err := h.reserve(h.ask(c.tried...), nil, time.Now())
				if c.err != nil {
					if !errors.Is(err, c.err) || held != nil {
						t.Errorf("%v, %v; want %v", held, err, c.err)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				var got [2]string
				g := held
				if g.Prefill.Lease != nil {
					got[0] = g.Prefill.Worker.ID
				}
				if g.Decode.Lease != nil {
					got[1] = g.Decode.Worker.ID
				}
				if got != [2]string{c.p, c.d} {
					t.Errorf("chose %q, want %q and %q", got, c.p, c.d)
				}
			})
		})
	}
}

// While one worker is open and the other on its trial, what must go somewhere
// goes to the open one, uncounted: never a second call to the trial's.
func TestFailOpenSparesTheTrial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, true, map[string]pools.Role{"p1": pools.Prefill, "d1": pools.Decode, "d2": pools.Decode})
		h.open(t, pools.Decode, "d1")
		time.Sleep(openFor + 1)
		h.open(t, pools.Decode, "d2")
		trial, err := h.reserve(h.ask(), nil, time.Now())
		if err != nil || trial.Decode.Worker.ID != "d1" {
			t.Fatalf("%+v, %v", trial, err)
		}
		for range 20 {
			held, err := h.reserve(h.ask(), nil, time.Now())
			if err != nil || held.Decode.Worker.ID != "d2" {
				t.Fatalf("%+v, %v", held, err)
			}
			held.Decode.Done(fault.Reset)
			held.Release(time.Now())
		}
		if i := slices.IndexFunc(h.breakers.States(), func(c fault.Circuit) bool { return c.Worker == "d2" && c.Leg == pools.Decode }); h.breakers.States()[i].Failures != 1 {
			t.Errorf("calls without leave were counted: %+v", h.breakers.States()[i])
		}
		trial.Release(time.Now()) // its client left: the next is the trial
		next, err := h.reserve(h.ask(), nil, time.Now())
		if err != nil || next.Decode.Worker.ID != "d1" {
			t.Errorf("%+v, %v", next, err)
		}
	})
}

// A request that waits for a trial goes on when it ends.
func TestTrialsEndWakesTheQueue(t *testing.T) {
	for _, ends := range []fault.Class{fault.None, fault.Reset, fault.ClientGone} {
		t.Run(ends.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHouse(t, true, map[string]pools.Role{"p1": pools.Prefill, "d1": pools.Decode})
				h.open(t, pools.Decode, "d1")
				time.Sleep(openFor + 1)
				first, second := h.ask(), h.ask()
				if err := h.admit(t.Context(), first); err != nil {
					t.Fatal(err)
				}
				admitted := make(chan error, 1)
				go func() { admitted <- h.admit(t.Context(), second) }()
				synctest.Wait()
				select {
				case err := <-admitted:
					t.Fatalf("did not wait: %v", err)
				default:
				}
				first.d.Done(ends)
				first.stack.release()
				if err := <-admitted; err != nil || second.d.Worker.ID != "d1" {
					t.Errorf("%v", err)
				}
				second.stack.release()
			})
		})
	}
}

// A trial whose answer is not streamed is silent until its end. It holds the next
// request up for a tenth of the time that a circuit is open, and no longer.
func TestSilentTrialHoldsNooneUpForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, true, map[string]pools.Role{"p1": pools.Prefill, "d1": pools.Decode})
		h.open(t, pools.Decode, "d1")
		time.Sleep(openFor + 1)
		first, second := h.ask(), h.ask()
		if err := h.admit(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if err := h.admit(t.Context(), second); err != nil || second.d.Worker.ID != "d1" {
			t.Errorf("%v", err)
		}
		if waited := time.Since(began); waited != openFor/10 {
			t.Errorf("it waited %v", waited)
		}
		first.stack.release()
		second.stack.release()
	})
}

// Requests that wait for a worker's room go to another one as soon as its circuit
// half-opens, though nothing else happens.
func TestHalfOpenCircuitWakesTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, true, nil)
		for _, id := range []string{"d1", "d2"} {
			err := h.rooms.Roster.Put(pools.Worker{
				ID: id, Incarnation: "i", Model: "m", Role: pools.Both, Engine: "vllm", Address: "http://h:1", BlockSize: 16, TotalKVBlocks: 4,
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		h.open(t, pools.Decode, "d2")
		first, waits := h.ask(), h.ask()
		first.ISL, waits.ISL = 48, 48
		if err := h.admit(t.Context(), first); err != nil || first.d.Worker.ID != "d1" {
			t.Fatalf("%v", err)
		}
		began := time.Now()
		if err := h.admit(t.Context(), waits); err != nil || waits.d.Worker.ID != "d2" {
			t.Errorf("%v", err)
		}
		if waited := time.Since(began); waited > openFor+time.Millisecond {
			t.Errorf("it waited %v after %v of an open circuit", waited, openFor)
		}
		first.stack.release()
		waits.stack.release()
	})
}

// A broken adapter takes no worker from the model: its own requests go elsewhere, all others do not.
func TestAdaptersCircuits(t *testing.T) {
	h := newHouse(t, true, map[string]pools.Role{"d1": pools.Both, "d2": pools.Both})
	for _, id := range []string{"d1", "d2"} {
		m, _ := h.rooms.Roster.Lookup(id)
		w := *m.Worker
		w.Adapters = []string{"sql"}
		if err := h.rooms.Roster.Put(w); err != nil {
			t.Fatal(err)
		}
	}
	end, err := h.breakers.Acquire("d1", "i", pools.Decode, "sql", false)
	if err != nil {
		t.Fatal(err)
	}
	end(fault.EngineError)
	chosen := map[string]map[string]int{"": {}, "sql": {}}
	for range 8 {
		for adapter, ids := range chosen {
			r := h.ask()
			r.Call.Request.Adapter = adapter
			g, err := h.reserve(r, nil, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			ids[g.Decode.Worker.ID]++
			defer g.Release(time.Now())
		}
	}
	if chosen[""]["d1"] == 0 || chosen["sql"]["d1"] != 0 {
		t.Errorf("chosen: %v", chosen)
	}
}
