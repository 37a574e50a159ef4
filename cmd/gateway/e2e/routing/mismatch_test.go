package routing

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/tokens"
	"github.com/tandem-pd/tandem/kv/wire"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/lab/engine"
	"github.com/tandem-pd/tandem/lab/fleet"
	"github.com/tandem-pd/tandem/lab/replay"
	"github.com/tandem-pd/tandem/lab/simulate"
	"github.com/tandem-pd/tandem/pools"
)

// compared is how a pool's events compare with its answers, by verdict, and how many ranks are marked.
func compared(t *testing.T, reg *prometheus.Registry, pool string) (verdicts map[string]int, marked int) {
	t.Helper()
	f := &fleet.Fleet{T: t, Reg: reg}
	verdicts = map[string]int{}
	for _, verdict := range []string{"right", "over", "under"} {
		verdicts[verdict] = int(f.Value("tandem_kv_parity_samples_total", pool, verdict))
	}
	return verdicts, int(f.Value("tandem_kv_parity_marked_ranks", pool))
}

// lies are events as they are changed on the way.
var lies = map[string]struct {
	verdict string
	alter   func([]wire.Event) []wire.Event
}{
	"removals are dropped": {"over", func(es []wire.Event) (out []wire.Event) {
		for _, e := range es {
			if e.Kind != wire.Removed {
				out = append(out, e)
			}
		}
		return out
	}},
	"stores are dropped": {"under", func(es []wire.Event) (out []wire.Event) {
		for _, e := range es {
			if e.Kind != wire.Stored {
				out = append(out, e)
			}
		}
		return out
	}},
	"other tokens are reported": {"under", func(es []wire.Event) (out []wire.Event) {
		for _, e := range es {
			e.Tokens = append([]uint32(nil), e.Tokens...)
			for i := range e.Tokens {
				e.Tokens[i]++
			}
			out = append(out, e)
		}
		return out
	}},
}

// A worker whose events are not true is detected by a few of its answers, counted, logged and predicted, and used again
// once its events are true.
func TestLyingEventsAreFound(t *testing.T) {
	t.Parallel()
	for name, lie := range lies {
		fleet.VirtualRun(t, name, func(t *testing.T) {
			var lying atomic.Bool
			lying.Store(true)
			f := fleet.New(t, fleet.Options{Prefill: 1, Decode: 1, Worker: func(c *devfleet.WorkerConfig) {
				if c.Engine.Role == "prefill" { // eight of the prompts below
					c.Engine.TotalKVBlocks, c.Engine.ContextLength = 8*47, 4096
					c.KVEvents.Alter = func(es []wire.Event) []wire.Event {
						if lying.Load() {
							return lie.alter(es)
						}
						return es
					}
				}
			}})
			const pool = "tandem-sim/prefill"
			turn := 0
			ask := func() {
				t.Helper()
				// Each is sent twice, and again when it was evicted.
				prompt := strings.Repeat(fmt.Sprintf("Paper %d. %s", turn/2%12, fleet.Long), 16)
				turn++
				f.Good(fleet.CompletionPath, `{"model":"tandem-sim","max_tokens":1,"prompt":"`+prompt+`"}`)
			}
			ask()
			f.Idle()
			require.InDelta(t, 43.5, f.Workers["prefill-1"].Engine.Books().Blocks.Cached, 3.5, "blocks that the prompt takes")
			for marked := 0; marked == 0; _, marked = compared(t, f.Reg, pool) {
				if ask(); turn > 100 {
					t.Fatal("not detected")
				}
			}
			verdicts, _ := compared(t, f.Reg, pool)
			t.Logf("noticed after %d answers: %v", turn, verdicts)
			assert.GreaterOrEqual(t, verdicts[lie.verdict], 3, "verdicts %v, want at least three of %s", verdicts, lie.verdict)
			s := f.Sources()["prefill-1"]
			assert.True(t, s.State == "predicted" && s.Reason == "parity" && s.Parity != nil && s.Parity.Marked,
				"/workers shows %+v", s)
			if other := f.Sources()["decode-1"]; other.State != "live" || other.Reason != "" || other.Parity != nil {
				t.Errorf("/workers shows of decode %+v", other)
			}
			lying.Store(false)
			for marked := 1; marked == 1; _, marked = compared(t, f.Reg, pool) {
				if ask(); turn > 1000 {
					t.Fatal("it does not come back")
				}
			}
			t.Logf("back after %d answers", turn)
			if s := f.Sources()["prefill-1"]; s.State != "live" || s.Reason != "" || s.Parity.Marked || s.Parity.Samples != 32 ||
				s.Parity.Wrong >= 4 {
				t.Errorf("/workers shows %+v, %+v", s, s.Parity)
			}
			logs := f.Logs.String()
			if on, off := strings.Count(logs, "disagree with reported cache hits"), strings.Count(logs,
				"agree with reported cache hits again"); on != 1 || off != 1 {
				t.Errorf("%d and %d lines in the log", on, off)
			}
			f.Idle()
		})
	}
}

// A worker with true events is never marked. Requests queue in gateway and engines, siblings come in bursts, and blocks that
// the choice counted on are evicted before the request's turn.
func TestTrueEventsAreNeverMarked(t *testing.T) {
	t.Parallel()
	prompter, err := replay.NewPrompter(tokens.Sim(), paritySeed)
	require.NoError(t, err)
	cfg := parityEngine()
	cfg.TotalKVBlocks = 1600 // of which the longest prompt takes 700
	for _, shape := range []struct {
		name   string
		pool   string
		groups []simulate.Group
	}{
		{"agg", "both", []simulate.Group{{Count: 3, Role: pools.Both, Engine: cfg}}},
		{"2P2D", "prefill", []simulate.Group{{Count: 2, Role: pools.Prefill, Engine: cfg},
			{Count: 2, Role: pools.Decode, Engine: engine.Config{
				Model: cfg.Model, BlockSize: parityBlock, TotalKVBlocks: 8192, ContextLength: cfg.ContextLength}}}},
	} {
		for seed, threshold := range []float64{-1, 0.1} {
			t.Run(fmt.Sprintf("%s/threshold=%v", shape.name, threshold), func(t *testing.T) {
				t.Parallel()
				f := parityFleet{groups: shape.groups, mode: "kv", threshold: threshold, reg: prometheus.NewRegistry()}
				synctest.Test(t, func(t *testing.T) { f.onTheWire(t, parityTrace(paritySeed+uint64(seed)), prompter) })
				verdicts, marked := compared(t, f.reg, simulate.Model+"/"+shape.pool)
				if wrong := verdicts["over"] + verdicts["under"]; marked != 0 || wrong > verdicts["right"]/50 || verdicts["right"] < 40 {
					t.Errorf("%d marked, %v", marked, verdicts)
				}
			})
		}
	}
}
