package simulate

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/tandem-pd/tandem/lab/replay"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
)

// phases returns the goodput of each phase of a run, and of all.
func phases(v *Variant, out *Outcome, each time.Duration) (all float64, by []float64) {
	var good, n []float64
	var sum, of float64
	for i := range out.Samples {
		s := &out.Samples[i]
		at := int(time.Duration(s.Scheduled) / each)
		for len(n) <= at {
			n, good = append(n, 0), append(good, 0)
		}
		var kept replay.Kept
		kept.Add(&v.plan.SLO, s, 0)
		n[at], of = n[at]+1, of+1
		good[at], sum = good[at]+float64(kept.Good), sum+float64(kept.Good)
	}
	for i := range n {
		by = append(by, good[i]/n[i])
	}
	return sum / of, by
}

// armOf runs an arm of a recipe.
func armOf(t *testing.T, recipe, arm string, change func(v *Variant)) (*Variant, *Outcome) {
	t.Helper()
	s, err := ParsePlan("../../bench/recipes/"+recipe+".yaml", []byte(readRecipe(t, recipe)))
	require.NoError(t, err)
	for _, v := range s.Variants {
		if v.Arm == arm {
			change(v)
			r, err := v.ran(t.Context(), nil, 1, 1)
			require.NoError(t, err)
			return v, r.out
		}
	}
	t.Fatalf("%s has no arm %s", recipe, arm)
	return nil, nil
}

// The square wave between 8,000 tokens with answers of 200 and 500 with answers of 1,000: the planner has 1.15 times the
// goodput of the fixed split, and .95 of what the best split has in each phase, by two moves in each transition.
func TestPlannerFollowsASquareWave(t *testing.T) {
	const phase = 10 * time.Minute
	once := func(v *Variant) {
		for i := range v.plan.Workload.Families {
			v.plan.Workload.Families[i].Times = 1
		}
	}
	v, out := armOf(t, "square", "4P4D kv", once)
	static, _ := phases(v, out, phase)
	v, out = armOf(t, "square", "5P3D kv", once)
	_, long := phases(v, out, phase)
	v, out = armOf(t, "square", "3P5D kv", once)
	_, short := phases(v, out, phase)
	best := []float64{long[0], short[1]}

	v, out = armOf(t, "square", "planner kv", func(*Variant) {})
	planned, by := phases(v, out, phase)
	t.Logf("4P4D %.3f, planner %.3f: by phase %.3f, and of the best splits %.3f", static, planned, by, best)
	assert.GreaterOrEqual(t, planned, 1.15*static)
	sum := 0.
	for i := range by {
		sum += by[i] / best[i%2] / float64(len(by))
	}
	assert.GreaterOrEqual(t, sum, .95, "share of the best split's goodput")
	moves := make([]int, len(by))
	for _, m := range out.Moves {
		assert.Equal(t, "ok", m.Result)
		moves[int(m.Since.Sub(time.Unix(1_700_000_000, 0))/phase)]++
	}
	for i, n := range moves {
		assert.True(t, n >= 1 && n <= 2, "%d moves in phase %d", n, i)
	}
}

// A load that stays moves nothing for an hour, once the split fits it, nor where it trembles by 8 %.
func TestPlannerKeepsStill(t *testing.T) {
	_, out := armOf(t, "square", "planner kv", func(v *Variant) {
		steady := v.plan.Workload.Families[0]
		v.fleet[0].Count, v.fleet[1].Count = 5, 3
		steady.Duration, steady.Times, steady.Every = 10*time.Second, 180, 20*time.Second
		slower := steady
		steady.Rate, slower.Rate, slower.From = 1.08*steady.Rate, .92*slower.Rate, steady.Duration
		v.plan.Workload.Families = []FamilyPlan{steady, slower}
	})
	assert.Empty(t, out.Moves)
}

// Moves lose no request, whether the engine needs a call and loses its cache or not: each is answered once, and nothing
// stays booked.
func TestMovesLoseNothing(t *testing.T) {
	w := made(3, 6000)
	for i := range w.Requests { // long prompts, then long answers
		if i/1500%2 == 1 {
			w.Requests[i].OutputTokens *= 8
		}
	}
	for _, p := range []PlannerPlan{{}, {Switch: 2 * time.Second}} {
		p.Mode, p.HoldShort, p.Hold, p.Cooldown, p.Reverse, p.ITL = "act", time.Second, time.Second, time.Second, time.Second, 30*time.Millisecond
		cfg := Config{
			Stages: []Stage{{Requests: w.Requests, Chains: NewChains(w.Requests, 16)}}, Fleet: fleets()["2P2D"], Planner: p, Speed: .5,
			Routers: map[pools.Role]router.Config{},
		}
		cfg.Fleet[0].Count, cfg.Fleet[1].Count = 4, 2
		for _, role := range roles {
			cfg.Routers[role] = router.DefaultConfig().For(role)
		}
		cfg.Queue.Limit, cfg.Queue.Bytes, cfg.Queue.Timeout, cfg.Queue.Policy = 1<<20, 1<<40, time.Hour, "fcfs"
		r := ended(t, cfg)
		assert.NotZero(t, r.out.Moved, "moves that ended in a new role, %+v", p)
	}
}

// Chat by day and agents by night: the planner has 1.10 times the goodput of the best fixed split. The others of the
// recipe are far below the one that is tried here (make recipes).
func TestPlannerFollowsTheDay(t *testing.T) {
	v, out := armOf(t, "drift", "2P6D kv", func(*Variant) {})
	static, each := phases(v, out, 10*time.Minute)
	v, out = armOf(t, "drift", "planner kv", func(*Variant) {})
	planned, by := phases(v, out, 10*time.Minute)
	t.Logf("2P6D %.3f, by phase %.2f; planner %.3f, by phase %.2f; %d moves", static, each, planned, by, out.Moved)
	assert.GreaterOrEqual(t, planned, 1.1*static)
}
