package planner

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pools"
)

// world is a fleet under a load that a test sets, and a shell that carries decisions out at once. A prefill worker
// computes 1,000 tokens a second, a decode worker runs 100 requests.
type world struct {
	t       *testing.T
	core    *Core
	now     time.Time
	pools   [2]Pool
	arrived float64
	// demand is that of prefill, by arrivals, and of decode, by requests, in workers at a utilization of 0.8.
	demand  [2]float64
	backlog int // tokens booked on prefill besides
	// busy workers finish no request.
	busy bool
	// outcome is that of every change of an engine's role.
	outcome Outcome
	latest  Decision
	moved   []Move
}

const every = 5 * time.Second

func newWorld(t *testing.T, cfg Config, prefill, decode int) *world {
	cfg.Acts = true
	w := &world{t: t, core: NewCore(cfg), now: time.Unix(1e9, 0)}
	for i, n := range []int{prefill, decode} {
		for k := range n {
			w.add(i, fmt.Sprintf("%c%d", "pd"[i], k))
		}
	}
	return w
}

// add adds a warm worker to a pool.
func (w *world) add(to int, id string) *Worker {
	w.pools[to] = append(w.pools[to], Worker{
		Worker: &pools.Worker{ID: id, Incarnation: "1", Role: []pools.Role{pools.Prefill, pools.Decode}[to], Engine: "sim", BlockSize: 16,
			MaxNumSeqs: 100},
		Since: w.now.Add(-time.Hour), Answers: 1000, TokensPerSecond: 1000,
	})
	return &w.pools[to][len(w.pools[to])-1]
}

// run lets time pass and returns how many moves have begun.
func (w *world) run(d time.Duration) int {
	w.t.Helper()
	before := len(w.moved)
	for range d / every {
		w.step()
	}
	return len(w.moved) - before
}

func (w *world) step() {
	w.t.Helper()
	w.now = w.now.Add(every)
	w.arrived += w.demand[0] * 800 * every.Seconds()
	in := &Inputs{Prefill: slices.Clone(w.pools[0]), Decode: slices.Clone(w.pools[1]), Arrived: w.arrived}
	for i := range in.Prefill {
		in.Prefill[i].PrefillTokens = w.backlog / len(in.Prefill)
	}
	for i := range in.Decode {
		if in.Decode[i].Status == pools.Up || w.busy {
			in.Decode[i].Requests = int(w.demand[1] * 80 / float64(len(in.Decode)))
		}
	}
	total := len(in.Prefill) + len(in.Decode)
	w.latest = w.core.Step(w.now, in)
	w.do(w.latest.Do, w.latest.Move)
	require.Equal(w.t, total, len(w.pools[0])+len(w.pools[1]), "workers after a step")
}

// find returns the worker of a move and its pool.
func (w *world) find(id string) (at, i int) {
	for at = range w.pools {
		if i = slices.IndexFunc(w.pools[at], func(x Worker) bool { return x.ID == id }); i >= 0 {
			return at, i
		}
	}
	return 0, -1
}

func (w *world) do(what Action, m *Move) {
	if what == Nothing {
		return
	}
	at, i := w.find(m.Worker)
	if len(w.moved) == 0 || w.moved[len(w.moved)-1].ID != m.ID {
		w.moved = append(w.moved, *m)
	}
	if i < 0 {
		return
	}
	worker := &w.pools[at][i]
	switch what {
	case Cordon:
		worker.Status = pools.Draining
	case Switch:
		w.do(w.core.Switched(m.ID, w.outcome, w.now), m)
	case Restore:
		worker.Status = pools.Up
	case KeepOut:
		worker.Status = pools.Draining
	case Admit:
		moved := *worker
		moved.Status = pools.Up
		w.pools[at] = slices.Delete(w.pools[at], i, i+1)
		w.pools[1-at] = append(w.pools[1-at], moved)
	}
}

func (w *world) reason(i int) Reason { return w.latest.Pools[i].Reason }

func (w *world) split() string { return fmt.Sprintf("%dP%dD", len(w.pools[0]), len(w.pools[1])) }

// A pool that is short gets a worker of one that can spare it, after the hold, and no second one that it does not need.
func TestMoves(t *testing.T) {
	for _, c := range []struct {
		name   string
		demand [2]float64
		split  string
		within time.Duration
		reason [2]Reason
	}{
		{"both have what they need", [2]float64{3.5, 3.5}, "4P4D", time.Hour, [2]Reason{Hold, Hold}},
		{"prefill is short", [2]float64{4.5, 2}, "5P3D", 2 * time.Minute, [2]Reason{Hold, Hold}},
		{"prefill is overloaded", [2]float64{5.9, 1}, "6P2D", 90 * time.Second, [2]Reason{Hold, Hold}},
		{"decode is overloaded", [2]float64{1, 5.9}, "2P6D", 90 * time.Second, [2]Reason{Hold, Hold}},
		{"decode needs all", [2]float64{4.5, 2.9}, "4P4D", time.Hour, [2]Reason{NoDonor, Hold}},
		{"both are short", [2]float64{5, 5}, "4P4D", time.Hour, [2]Reason{NoDonor, NoDonor}},
		{"a pool keeps its last worker", [2]float64{20, 0}, "7P1D", time.Hour, [2]Reason{MinPool, Spare}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, Config{}, 4, 4)
			w.demand = c.demand
			w.run(c.within)
			assert.Equal(t, c.split, w.split(), "after %v", c.within)
			w.run(time.Hour)
			assert.Equal(t, c.split, w.split(), "an hour later")
			if c.reason[1] != Spare {
				assert.Equal(t, c.reason, [2]Reason{w.reason(0), w.reason(1)})
			}
		})
	}
}

// At a load that trembles by 8 % about what a pool bears, nothing moves in an hour, although the other pool has workers
// to spare.
func TestNoiseMovesNothing(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 0))
		for pool := range 2 {
			w := newWorld(t, Config{}, 4, 4)
			w.demand = [2]float64{1, 1}
			for range int(time.Hour / every) {
				w.demand[pool] = 4 * (1 + .08*(2*rng.Float64()-1))
				w.step()
			}
			assert.Empty(t, w.moved, "seed %d, pool %d", seed, pool)
		}
	}
}

// A move back waits for the reverse bar, unless the pool needs it badly, and any second move for the cooldown.
func TestMovesAreFewAndFarBetween(t *testing.T) {
	w := newWorld(t, Config{}, 4, 4)
	w.demand = [2]float64{4.5, 2}
	require.Equal(t, 1, w.run(2*time.Minute), "moves")
	w.demand = [2]float64{2, 3.6}
	assert.Equal(t, 0, w.run(time.Minute), "moves back within a minute")
	w.run(45 * time.Second)
	assert.Equal(t, Reversed, w.reason(1))
	assert.Equal(t, 1, w.run(5*time.Minute), "moves back in time")

	w = newWorld(t, Config{}, 4, 4)
	w.demand = [2]float64{4.5, 2}
	require.Equal(t, 1, w.run(2*time.Minute), "moves")
	w.demand = [2]float64{1, 5.5} // more than one and a half times the three
	assert.GreaterOrEqual(t, w.run(2*time.Minute), 1, "moves back although barred")
}

// Who may not, advises.
func TestAdvice(t *testing.T) {
	w := newWorld(t, Config{}, 4, 4)
	w.core.cfg.Acts = false
	w.demand = [2]float64{4.5, 2}
	assert.Equal(t, 0, w.run(time.Hour), "moves")
	assert.Equal(t, AdviseOnly, w.reason(0))
	assert.Equal(t, 5, w.latest.Pools[0].Desired, "desired prefill workers")
}

// Workers that come and go behind the planner's back are what it plans with next (Dynamo #4420: replicas that somebody
// changed were taken for done, and it never acted).
func TestDynamo4420CountsWhoIsThere(t *testing.T) {
	w := newWorld(t, Config{}, 4, 4)
	w.demand = [2]float64{4.5, 2}
	require.Equal(t, 1, w.run(2*time.Minute), "moves")
	w.pools[0] = w.pools[0][:3]
	w.add(1, "d8")
	w.add(1, "d9")
	w.demand = [2]float64{4.5, 3}
	w.run(5 * time.Minute)
	assert.Equal(t, 4, w.latest.Pools[0].Present+w.latest.Pools[0].Draining, "prefill workers counted")
	assert.Equal(t, "4P4D", w.split())
}

// A worker that starts counts as supply for ten minutes and no longer, and does not keep an idle pool from being found
// too large (Dynamo #14251: a pod that could not be scheduled blocked scaling for an hour).
func TestDynamo14251PendingEnds(t *testing.T) {
	w := newWorld(t, Config{}, 4, 4)
	w.demand = [2]float64{4.5, .5}
	w.add(0, "p9").Pending = true
	assert.Equal(t, 0, w.run(9*time.Minute), "moves while it starts")
	assert.Equal(t, PendingWorker, w.reason(0))
	assert.Equal(t, 1, w.latest.Pools[0].Pending)
	assert.Less(t, w.latest.Pools[1].Desired, 4, "desired of the idle pool")
	assert.Equal(t, 1, w.run(3*time.Minute), "moves after ten minutes")
	assert.Equal(t, 0, w.latest.Pools[0].Pending)
}

// Speeds of cold workers are not planned with (Dynamo #12430: slow first passes entered the regression, and the planner
// asked for far too many workers).
func TestDynamo12430ColdWorkersDoNotCount(t *testing.T) {
	w := newWorld(t, Config{}, 4, 4)
	w.demand = [2]float64{3.5, 1}
	w.run(time.Minute)
	for i := range 2 {
		cold := w.add(0, fmt.Sprint("cold", i))
		cold.TokensPerSecond, cold.Answers, cold.Since = 20, 3, w.now
	}
	w.run(10 * time.Minute)
	assert.InDelta(t, 3.5, w.latest.Pools[0].Smooth, .1, "demand")
	assert.LessOrEqual(t, w.latest.Pools[0].Desired, 6)
	assert.Empty(t, w.moved)
}

// One long prompt is worked off and leaves nothing behind (Dynamo #11624: it raised the floor for ever).
func TestDynamo11624OneLongPrompt(t *testing.T) {
	w := newWorld(t, Config{}, 2, 2)
	w.demand = [2]float64{.8, .5}
	w.run(10 * time.Minute)
	for w.backlog = 19_500; w.backlog > 0; w.backlog -= 10_000 {
		w.step()
	}
	w.backlog = 0
	w.run(30 * time.Minute)
	assert.Equal(t, 1, w.latest.Pools[0].Desired, "desired prefill workers half an hour later")
	assert.Empty(t, w.moved)
}

// A move that fails half-way costs no pool a worker twice: what one pool gains the other has lost, or neither changes
// (Dynamo #12428: one pool was raised, the other not lowered, and the budget overrun).
func TestDynamo12428MovesAreWhole(t *testing.T) {
	for outcome, want := range map[Outcome]string{Restorable: "restored", Failed: "lost"} {
		w := newWorld(t, Config{}, 4, 4)
		w.demand, w.outcome = [2]float64{4.5, 1}, outcome
		require.Equal(t, 1, w.run(2*time.Minute), "moves")
		past := w.core.Past()
		require.Len(t, past, 1)
		assert.Equal(t, want, past[0].Result)
		assert.Equal(t, "4P4D", w.split())
		at, i := w.find(past[0].Worker)
		assert.Equal(t, outcome == Failed, w.pools[at][i].Status == pools.Draining, "the worker is out")
		w.outcome = Done
		w.run(20 * time.Minute)
		assert.Equal(t, "5P3D", w.split())
		assert.NotEqual(t, past[0].Worker, w.moved[1].Worker, "the second try takes the same worker")
	}
}

// A backlog that the engines do not report is in the gateway's own bookings (Dynamo 1.4: SGLang's queued prefill tokens
// stay about 0, and too few workers are planned).
func TestSGLangQueueNearZero(t *testing.T) {
	w := newWorld(t, Config{}, 4, 4)
	w.demand, w.backlog = [2]float64{3, 1}, 15_000
	assert.Equal(t, 1, w.run(2*time.Minute), "moves")
	assert.Equal(t, "5P3D", w.split())
}

// Without a known capacity nothing moves, and with the first one the planner begins to work (Dynamo 1.4: stuck in
// insufficient_data).
func TestInsufficientDataEnds(t *testing.T) {
	w := newWorld(t, Config{}, 4, 4)
	for i := range w.pools[0] {
		w.pools[0][i].TokensPerSecond = 0
	}
	w.demand = [2]float64{4.5, 1}
	assert.Equal(t, 0, w.run(10*time.Minute), "moves")
	assert.Equal(t, ModelNotFit, w.reason(0))
	w.pools[0][0].TokensPerSecond = 1000
	assert.Equal(t, 1, w.run(2*time.Minute), "moves")
}

// A donor is judged by the load that each worker has once there is one less: two half-full workers are not one full
// one (Dynamo: the oscillation between 2 and 1).
func TestDonorIsJudgedWithOneLess(t *testing.T) {
	w := newWorld(t, Config{}, 2, 2)
	w.demand = [2]float64{2.5, .75}
	w.run(time.Hour)
	assert.Empty(t, w.moved)
	assert.Equal(t, NoDonor, w.reason(0))
}

// A worker that cannot change its role is not moved, nor one of another kind than the pool's.
func TestNoCompatibleWorker(t *testing.T) {
	for name, change := range map[string]func(*pools.Worker){
		"none": func(w *pools.Worker) { w.RoleSwitch = pools.NoSwitch }, "tp": func(w *pools.Worker) { w.TensorParallel = 2 },
		"block": func(w *pools.Worker) { w.BlockSize = 64 }, "engine": func(w *pools.Worker) { w.Engine = "vllm" },
	} {
		w := newWorld(t, Config{}, 4, 4)
		for i := range w.pools[1] {
			change(w.pools[1][i].Worker)
		}
		w.demand = [2]float64{4.5, 1}
		assert.Equal(t, 0, w.run(10*time.Minute), "moves: %s", name)
		assert.Equal(t, NoCompatible, w.reason(0), name)
	}
}

// The move of a worker that needs a call waits until it is idle; it ends in the old role if that takes too long, or if
// the process goes.
func TestMoveWaitsForItsWorker(t *testing.T) {
	for name, c := range map[string]struct {
		during func(w *world)
		result string
		split  string
	}{
		"idle":      {func(*world) {}, "ok", "5P3D"},
		"busy":      {func(w *world) { w.busy = true }, "restored", "4P4D"},
		"restarted": {func(w *world) { w.restart(w.moved[0].Worker) }, "restored", "4P4D"},
	} {
		w := newWorld(t, Config{}, 4, 4)
		for i := range w.pools[1] {
			w.pools[1][i].RoleSwitch, w.pools[1][i].Engine = pools.SGLangSwitch, "sglang"
		}
		for i := range w.pools[0] {
			w.pools[0][i].Engine = "sglang"
		}
		w.demand = [2]float64{4.5, 1}
		for len(w.moved) == 0 {
			w.step()
		}
		assert.Equal(t, Draining, w.latest.Move.State)
		c.during(w)
		w.run(125 * time.Second)
		require.NotEmpty(t, w.core.Past(), name)
		assert.Equal(t, c.result, w.core.Past()[0].Result, name)
		if name != "restarted" {
			assert.Equal(t, c.split, w.split(), name)
		}
	}
}

func (w *world) restart(id string) {
	at, i := w.find(id)
	again := *w.pools[at][i].Worker
	again.Incarnation = "2"
	w.pools[at][i].Worker, w.pools[at][i].Status = &again, pools.Up
}

// A report that comes late, of another move, changes nothing.
func TestLateReports(t *testing.T) {
	w := newWorld(t, Config{}, 4, 4)
	w.demand = [2]float64{4.5, 1}
	require.Equal(t, 1, w.run(2*time.Minute))
	assert.Equal(t, Nothing, w.core.Switched(w.moved[0].ID, Failed, w.now))
	assert.Equal(t, Nothing, w.core.Switched(99, Done, w.now))
	assert.Equal(t, "ok", w.core.Past()[0].Result)
}

// Whatever the load, one worker moves at a time, no pool loses its last one, and every reason is of the closed set.
func TestPlannerHoldsItsBounds(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 1))
		w := newWorld(t, Config{MinDecode: 2}, 1+rng.IntN(6), 2+rng.IntN(6))
		for range 500 {
			if rng.IntN(20) == 0 {
				w.demand, w.backlog = [2]float64{8 * rng.Float64(), 8 * rng.Float64()}, rng.IntN(20_000)
				w.outcome = []Outcome{Done, Done, Done, Restorable, Failed}[rng.IntN(5)]
			}
			w.step()
			for i, p := range w.latest.Pools {
				require.Contains(t, reasons, p.Reason)
				require.GreaterOrEqual(t, len(w.pools[i]), 1+i, "seed %d", seed)
			}
		}
	}
}

// The pace is found again that measurements were made of, in the ranges of two kinds of load.
func TestPace(t *testing.T) {
	var f pace
	rng := rand.New(rand.NewPCG(1, 2))
	itl := func(batch, kilo float64) float64 { return .012 + .0005*batch + .00005*kilo }
	now := time.Unix(1e9, 0)
	for i := range 400 {
		batch := 1 + 40*rng.Float64()
		kilo := batch * []float64{1, 8}[i/200]
		f.observe(batch, kilo, itl(batch, kilo)*(1+.05*rng.NormFloat64()), now)
		now = now.Add(every)
	}
	for _, each := range []float64{1, 8} {
		batch := f.batch(each, .03)
		assert.InDelta(t, .03, itl(batch, batch*each), .002, "the time at the batch for 30 ms with %v thousand tokens each", each)
	}
	assert.Zero(t, f.batch(1, .001), "a batch for a time shorter than any")
}

// reasons is the closed set.
var reasons = []Reason{Hold, Short, Spare, Cooling, Reversed, NoDonor, NoCompatible, MinPool, ViewNotWhole, ModelNotFit,
	PendingWorker, AdviseOnly, Moved, Restored, Lost}
