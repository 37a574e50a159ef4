package router

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/kv/overlap"
	"github.com/tandem-pd/tandem/pools"
)

// parityRig is a router over one worker, whose events store given blocks.
type parityRig struct {
	*Router
	t    *testing.T
	pool *pools.Pool
	idx  *index.Index
	logs bytes.Buffer
	turn uint64
}

var parityRank = overlap.Rank{Worker: "w", Rank: 0}

func newParityRig(t *testing.T, cfg Config) *parityRig {
	g := &parityRig{t: t, idx: index.New(index.Config{}), pool: poolOf(pools.Prefill, worker("w", 0, 0, 0))}
	g.idx.Owner("w", 0)
	g.Router = newRouter(t, cfg.logTo(slog.New(slog.NewTextHandler(&g.logs, nil))).For(pools.Prefill), g.idx)
	return g
}

// prompt books a new prompt of 100 blocks of which the events store some, and answers that so many were cached.
func (g *parityRig) prompt(stored, cached int, want overlap.Verdict) *Lease {
	g.t.Helper()
	g.turn++
	hashes := chain(g.turn, 100)
	if stored > 0 {
		g.idx.Store(g.idx.Owner("w", 0), index.Device, hashes[:stored])
	}
	l := book(g.t, g.Router, g.pool, hashes, noon)
	require.Equal(g.t, want, l.Compare(16*cached), "answer %d: %d blocks of which %d were stored", g.turn, cached, stored)
	return l
}

// predicted reports whether the worker is.
func (g *parityRig) predicted() bool { return g.Predicts(g.pool) }

// restart has another process take the worker's place.
func (g *parityRig) restart() {
	w := *g.pool.Members[0].Worker
	w.Incarnation += "next"
	g.pool = poolOf(pools.Prefill, &w)
	g.pool.Version = 2 + g.turn
}

// lose has the worker's events be lost.
func (g *parityRig) lose() { g.Sources().SetStale(map[overlap.Rank]struct{}{parityRank: {}}) }

func TestParity(t *testing.T) {
	g := newParityRig(t, DefaultConfig())
	assert.Equal(t, 90, g.prompt(90, 90, overlap.Right).Overlap)
	assert.Equal(t, overlap.Unsampled, g.prompt(90, 0, overlap.Over).Compare(-1), "an answer that says nothing")
	for n := 1; !g.predicted(); n++ {
		g.prompt(90, 0, overlap.Over)
		require.LessOrEqual(t, n, 8, "answers, and the worker is not predicted")
	}
	p, ok := g.Sources().Parity()
	assert.True(t, ok && p.Marked == 1 && p.Right == 1 && p.Over == 7, "compared %+v", p)
	rank, _ := g.Sources().RankParity(parityRank)
	assert.Equal(t, overlap.RankParity{Marked: true}, rank)
	assert.Contains(t, g.logs.String(), "wrong=7 samples=8 last=over")
	assert.Zero(t, g.prompt(90, 90, overlap.Right).Overlap, "marked it is predicted, and compared")
	for n := 2; g.predicted(); n++ {
		g.prompt(0, 0, overlap.Unsampled) // nothing is learnt of such
		g.prompt(90, 90, overlap.Right)
		require.LessOrEqual(t, n, 32, "answers, and it does not come back")
	}
	rank, _ = g.Sources().RankParity(parityRank)
	assert.Equal(t, overlap.RankParity{Samples: 32}, rank)
	for _, once := range []string{"disagree with", "agree with reported cache hits again"} {
		assert.Equal(t, 1, strings.Count(g.logs.String(), " "+once), "%q in the log:\n%s", once, &g.logs)
	}
}

// A worker that restarted, or whose events are lost, is judged again.
func TestParityRestarts(t *testing.T) {
	for name, restart := range map[string]func(g *parityRig){
		"another process": (*parityRig).restart,
		"another view":    func(g *parityRig) { g.Sources().Resync(parityRank) },
		"events lost and whole again": func(g *parityRig) {
			g.lose()
			assert.Zero(g.t, g.prompt(90, 0, overlap.Unsampled).expected, "lost events are believed")
			assert.True(g.t, g.predicted())
			g.Sources().SetStale(map[overlap.Rank]struct{}{})
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := newParityRig(t, DefaultConfig())
			for range 2 {
				for range 8 {
					g.prompt(0, 90, overlap.Under)
				}
				require.True(t, g.predicted(), "not marked")
				restart(g)
				g.prompt(0, 0, overlap.Unsampled) // sees the pool
				rank, ok := g.Sources().RankParity(parityRank)
				assert.True(t, !g.predicted() && !ok, "it is still judged by its past: %+v", rank)
				p, _ := g.Sources().Parity()
				assert.Zero(t, p.Marked)
			}
		})
	}
}

// An answer of a process that is no more says nothing of its successor, nor one of before its events were lost.
func TestParityLeavesOldAnswersOut(t *testing.T) {
	g := newParityRig(t, DefaultConfig())
	old := book(t, g.Router, g.pool, chain(1, 100), noon)
	g.restart()
	l := book(t, g.Router, g.pool, chain(2, 100), noon)
	assert.Equal(t, overlap.Unsampled, old.Compare(1600), "the old process's answer")
	g.lose()
	l.Compare(1600)
	rank, ok := g.Sources().RankParity(parityRank)
	assert.False(t, ok, "an answer from before the loss counts: %+v", rank)
}

// In a decode pool, and where there is nothing to fall back to, nothing is compared.
func TestParityOff(t *testing.T) {
	alone, deaf := DefaultConfig(), DefaultConfig()
	alone.Predictions = index.PredictorConfig{}
	deaf.KVEvents = false
	for name, cfg := range map[string]Config{"no predictions": alone, "no events": deaf} {
		g := newParityRig(t, cfg)
		for range 40 {
			g.prompt(90, 0, overlap.Unsampled)
		}
		_, ok := g.Sources().Parity()
		assert.False(t, ok, "%s: something was compared", name)
	}
}

func TestCompareAllocatesNothing(t *testing.T) {
	l := newParityRig(t, DefaultConfig()).prompt(90, 90, overlap.Right)
	assert.Zero(t, testing.AllocsPerRun(100, func() { l.Compare(1440) }), "allocations")
}

// The engine's blocks are asked for where an answer differs, and excuse it where they are large.
func TestParityUsesTheEnginesBlocks(t *testing.T) {
	cfg := DefaultConfig()
	cfg.EngineBlock = func(w *pools.Worker, rank int) int { return 512 }
	g := newParityRig(t, cfg)
	g.prompt(96, 64, overlap.Right)
	g.prompt(96, 0, overlap.Over) // more than two of them
}
