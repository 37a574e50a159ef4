package simulate

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/lab/engine"
	"github.com/tandem-pd/tandem/lab/replay"
	"github.com/tandem-pd/tandem/pools"
)

// steadily is n requests, perSecond of them, with prompts of 500 to 8,500 tokens and answers of 32.
func steadily(seed uint64, n int, perSecond float64) *replay.Workload {
	rng := rand.New(rand.NewPCG(seed, 2))
	w := &replay.Workload{Name: "steadily"}
	at := time.Duration(0)
	for i := range n {
		at += time.Duration(rng.ExpFloat64() / perSecond * float64(time.Second))
		w.Requests = append(w.Requests, replay.Request{Index: i, At: at, OutputTokens: 32,
			Spans: []replay.Span{{ID: uint64(i), Tokens: 500 + rng.IntN(8000)}}})
	}
	return w
}

// meanTTFT is that of a stage's answers, all of which came, and the share of them that were handed over.
func meanTTFT(t *testing.T, out *Outcome, stage int32) (mean time.Duration, handed float64) {
	t.Helper()
	n := 0.0
	for i, s := range out.Samples {
		require.Equal(t, replay.Answered, s.Outcome)
		if out.StageOf[i] == stage {
			n++
			mean += time.Duration(s.TTFT)
			if s.PrefillWorker != "" {
				handed++
			}
		}
	}
	return mean / time.Duration(n), handed / n
}

// A link that moves a sixth of what the load needs costs at most 1.2 times the TTFT of whole workers, as many as
// decode, from the first request on, and loses no answer; when it is fast again, prompts are handed over again. (The
// bound is issue 33's.)
func TestASlowLinkCostsLittle(t *testing.T) {
	const perSecond, perToken = 2, 262_144 // requests, and bytes of a token, the engine's default
	for name, c := range map[string]struct{ prefill, decode int }{"1P1D": {1, 1}, "2P2D": {2, 2}} {
		for _, mode := range []string{"kv", "auto"} {
			t.Run(name+" "+mode, func(t *testing.T) {
				load := steadily(3, 400*c.prefill*c.decode, perSecond*float64(c.decode)) // two or three prompts a pair find out
				tokens := 0
				for _, q := range load.Requests {
					tokens += q.InputTokens()
				}
				needed := float64(tokens) / load.Span().Seconds() * perToken / float64(c.decode) // of each worker's link
				slow := engine.Config{BlockSize: 16, BandwidthBytesPerSecond: needed / 6}
				whole, err := Run(t.Context(), arm(load, 16, mode, Group{Count: c.decode, Role: pools.Both, Engine: engine.Config{BlockSize: 16}}))
				require.NoError(t, err)
				cfg := arm(load, 16, mode, Group{Count: c.prefill, Role: pools.Prefill, Engine: slow},
					Group{Count: c.decode, Role: pools.Decode, Engine: slow})
				cfg.Stages = append(cfg.Stages, cfg.Stages[0])
				r, err := start(cfg)
				require.NoError(t, err)
				require.NoError(t, r.runStage(t.Context(), 0))
				for _, m := range r.machines {
					m.core.SetBandwidth(50e9)
				}
				require.NoError(t, r.runStage(t.Context(), 1))
				best, _ := meanTTFT(t, whole, 0)
				crawls, before := meanTTFT(t, r.out, 0)
				flies, after := meanTTFT(t, r.out, 1)
				t.Logf("mean TTFT: whole %v; slow link %v, %.2f times, %.1f %% handed over; fast again %v, %.1f %% handed over",
					best, crawls, crawls.Seconds()/best.Seconds(), 100*before, flies, 100*after)
				assert.LessOrEqual(t, crawls.Seconds(), 1.2*best.Seconds())
				assert.Less(t, before, .25)
				assert.Greater(t, after, .8)
			})
		}
	}
}
