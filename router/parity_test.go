package router

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router/index"
	"github.com/tandem-pd/tandem/router/overlap"
)

// parityRig is a router over one worker, whose events store what tell says.
type parityRig struct {
	*Router
	t    *testing.T
	pool *pools.Pool
	idx  *index.Index
	logs bytes.Buffer
	turn uint64
}

func newParityRig(t *testing.T, cfg Config) *parityRig {
	g := &parityRig{t: t, idx: index.New(index.Config{}), pool: poolOf(pools.Prefill, worker("w", 0, 0, 0))}
	g.idx.Owner("w", 0)
	var err error
	if g.Router, err = New(cfg.logTo(slog.New(slog.NewTextHandler(&g.logs, nil))).For(pools.Prefill), g.idx); err != nil {
		t.Fatal(err)
	}
	return g
}

// prompt books a new prompt of 100 blocks of which the events told, and answers
// that so many were cached.
func (g *parityRig) prompt(told, cached int) (*Lease, overlap.Verdict) {
	g.t.Helper()
	g.turn++
	hashes := chain(g.turn, 100)
	if told > 0 {
		g.idx.Store(g.idx.Owner("w", 0), index.Device, hashes[:told])
	}
	l := book(g.t, g.Router, g.pool, hashes, noon)
	return l, l.Compare(16 * cached)
}

// predicted reports whether the worker is.
func (g *parityRig) predicted() bool { return g.Predicts(g.pool) }

func TestParity(t *testing.T) {
	g := newParityRig(t, DefaultConfig())
	if l, v := g.prompt(90, 90); v != overlap.Right || l.Overlap != 90 {
		t.Fatalf("%v with an overlap of %d", v, l.Overlap)
	}
	if l, _ := g.prompt(90, 0); l.Compare(-1) != overlap.Unsampled {
		t.Error("an answer that says nothing is a sample")
	}
	for n := 1; !g.predicted(); n++ {
		if _, v := g.prompt(90, 0); v != overlap.Over || n > 8 {
			t.Fatalf("answer %d: %v, and the worker is not predicted", n, v)
		}
	}
	if p, ok := g.Sources().Parity(); !ok || p.Marked != 1 || p.Right != 1 || p.Over != 7 {
		t.Errorf("compared %+v", p)
	}
	if p, ok := g.Sources().RankParity(overlap.Rank{Worker: "w", Rank: 0}); !ok || p != (overlap.RankParity{Marked: true}) {
		t.Errorf("the rank has %+v", p)
	}
	assert.Contains(t, g.logs.String(), "wrong=7 samples=8 last=over", "the log has")
	if l, v := g.prompt(90, 90); v != overlap.Right || l.Overlap != 0 {
		t.Errorf("marked it is predicted (overlap %d) and compared (%v)", l.Overlap, v)
	}
	for n := 2; g.predicted(); n++ {
		if g.prompt(0, 0); n > 32 { // nothing is learnt of such
			t.Fatal("it does not come back")
		}
		g.prompt(90, 90)
	}
	if p, _ := g.Sources().RankParity(overlap.Rank{Worker: "w", Rank: 0}); p != (overlap.RankParity{Samples: 32}) {
		t.Errorf("the rank has %+v", p)
	}
	if marked, back := strings.Count(g.logs.String(), "disagree with"), strings.Count(g.logs.String(), "agree with reported cache hits again"); marked != 1 || back != 1 {
		t.Errorf("%d and %d lines in the log:\n%s", marked, back, &g.logs)
	}
}

// A worker that started anew, or whose events are lost, is judged anew.
func TestParityBeginsAnew(t *testing.T) {
	wrong := func(g *parityRig) {
		for range 8 {
			g.prompt(0, 90)
		}
		require.True(g.t, g.predicted(), "not marked")
	}
	for name, anew := range map[string]func(g *parityRig){
		"another process": func(g *parityRig) {
			w := *g.pool.Members[0].Worker
			w.Incarnation = "next"
			g.pool = poolOf(pools.Prefill, &w)
			g.pool.Version = 2
		},
		"another view": func(g *parityRig) { g.Sources().Resync(overlap.Rank{Worker: "w", Rank: 0}) },
		"events lost and whole again": func(g *parityRig) {
			g.Sources().SetStale(map[overlap.Rank]struct{}{{Worker: "w", Rank: 0}: {}})
			if l, v := g.prompt(90, 0); v != overlap.Unsampled || !g.predicted() || l.believed != (overlap.Belief{}) {
				g.t.Errorf("lost events are compared: %v", v)
			}
			g.Sources().SetStale(map[overlap.Rank]struct{}{})
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := newParityRig(t, DefaultConfig())
			wrong(g)
			anew(g)
			g.prompt(0, 0) // sees the pool
			if p, ok := g.Sources().RankParity(overlap.Rank{Worker: "w", Rank: 0}); g.predicted() || ok {
				t.Errorf("it is still judged by its past: %+v", p)
			}
			if p, _ := g.Sources().Parity(); p.Marked != 0 {
				t.Errorf("%d are marked", p.Marked)
			}
			wrong(g)
		})
	}
}

// An answer of a process that is no more says nothing of its successor, nor one
// of before its events were lost.
func TestParityLeavesOldAnswersOut(t *testing.T) {
	g := newParityRig(t, DefaultConfig())
	old := book(t, g.Router, g.pool, chain(1, 100), noon)
	w := *g.pool.Members[0].Worker
	w.Incarnation = "next"
	g.pool = poolOf(pools.Prefill, &w)
	g.pool.Version = 2
	l := book(t, g.Router, g.pool, chain(2, 100), noon)
	assert.Equal(t, overlap.Unsampled, old.Compare(1600), "the old process's answer")
	g.Sources().SetStale(map[overlap.Rank]struct{}{{Worker: "w", Rank: 0}: {}})
	l.Compare(1600)
	if p, ok := g.Sources().RankParity(overlap.Rank{Worker: "w", Rank: 0}); ok {
		t.Errorf("an answer from before the loss counts: %+v", p)
	}
}

// Off, in a decode pool, and where there is nothing to fall back to, nothing is
// compared.
func TestParityOff(t *testing.T) {
	off, alone, deaf := DefaultConfig(), DefaultConfig(), DefaultConfig()
	off.Parity = overlap.ParityConfig{}
	alone.Predictions = index.PredictorConfig{}
	deaf.KVEvents = false
	for name, cfg := range map[string]Config{"off": off, "no predictions": alone, "no events": deaf} {
		g := newParityRig(t, cfg)
		for range 40 {
			if _, v := g.prompt(90, 0); v != overlap.Unsampled {
				t.Fatalf("%s: %v", name, v)
			}
		}
		if _, ok := g.Sources().Parity(); ok {
			t.Errorf("%s: something was compared", name)
		}
	}
	for _, wrong := range []overlap.ParityConfig{{On: true, Window: 65, Least: 1, Wrong: .5}, {On: true, Window: 8, Least: 9, Wrong: .5}, {On: true, Window: 8, Least: 1, Wrong: 1}} {
		cfg := DefaultConfig()
		cfg.Parity = wrong
		if _, err := New(cfg, nil); err == nil || !strings.Contains(err.Error(), "kv-parity") {
			t.Errorf("%+v: error %v", wrong, err)
		}
	}
}

func TestCompareAllocatesNothing(t *testing.T) {
	g := newParityRig(t, DefaultConfig())
	l, _ := g.prompt(90, 90)
	assert.EqualValues(t, 0, testing.AllocsPerRun(100, func() { l.Compare(1440) }), "allocations")
}

// The engine's blocks are asked for where an answer differs, and excuse it where
// they are large.
func TestParityKnowsTheEnginesBlocks(t *testing.T) {
	cfg := DefaultConfig()
	cfg.EngineBlock = func(w *pools.Worker, rank int) int { return 512 }
	g := newParityRig(t, cfg)
	if _, v := g.prompt(96, 64); v != overlap.Right {
		t.Errorf("%v with engine blocks of 512", v)
	}
	if _, v := g.prompt(96, 0); v != overlap.Over {
		t.Errorf("%v beyond two of them", v)
	}
}
