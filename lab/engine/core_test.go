package engine

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var epoch = time.Unix(1_000_000, 0)

func testVocabulary() Vocabulary {
	v := Vocabulary{EOS: 1}
	for i := range uint32(500) {
		v.Words = append(v.Words, 10+i)
	}
	return v
}

// smallConfig is an engine of 64 blocks of 4 tokens.
func smallConfig() Config {
	return Config{BlockSize: 4, TotalKVBlocks: 64, ContextLength: 160, MaxNumSeqs: 8, MaxNumBatchedTokens: 32}
}

func newTestCore(t testing.TB, cfg Config) *Core {
	t.Helper()
	c, err := NewCore(cfg, testVocabulary())
	require.NoError(t, err)
	return c
}

// prompt is n tokens that no prompt of another seed shares.
func prompt(seed uint32, n int) []uint32 {
	p := make([]uint32, n)
	for i := range p {
		p[i] = seed*1_000_003 + uint32(i)
	}
	return p
}

func mustAdd(t testing.TB, c *Core, rs ...Request) {
	t.Helper()
	for _, r := range rs {
		require.NoError(t, c.Add(r), "Add(%s)", r.ID)
	}
}

// observed is an output and when it came.
type observed struct {
	Output
	at time.Duration // since epoch
}

// drive steps a core from now until nothing is left to do.
func drive(t testing.TB, c *Core, now time.Time) (outs []observed, end time.Time) {
	t.Helper()
	outs, _, end = driven(t, c, now)
	return outs, end
}

// driven is drive with the events of the cache.
func driven(t testing.TB, c *Core, now time.Time) (outs []observed, events []Event, end time.Time) {
	t.Helper()
	for range 1_000_000 {
		r := c.Step(now)
		for _, o := range r.Outputs {
			outs = append(outs, observed{o, now.Sub(epoch)})
		}
		for _, e := range r.Events {
			e.Hashes = slices.Clone(e.Hashes)
			events = append(events, e)
		}
		require.NoError(t, audit(c))
		if r.Next.IsZero() {
			return outs, events, now
		}
		if r.Next.Before(now) {
			t.Fatalf("Next is %v before now", now.Sub(r.Next))
		}
		now = r.Next
	}
	t.Fatal("the core never came to rest")
	return nil, nil, now
}

func tokensOf(outs []observed, id string) (ids []uint32) {
	for _, o := range outs {
		if o.ID == id && o.Generated > 0 {
			ids = append(ids, o.Token)
		}
	}
	return ids
}

func milliseconds(ms float64) time.Duration {
	return time.Duration(math.Round(ms * 1e6))
}

func TestLatencyFollowsTheFit(t *testing.T) {
	l := Qwen3Latency()
	for _, tc := range []struct {
		name             string
		decodes, context int
		chunks           float64
		want             float64 // ms
	}{
		{"one decode", 1, 1000, 0, 14.05 + 0.0625 + 0.0492},
		{"64 decodes of 2k", 64, 128_000, 0, 14.05 + 4 + 6.2976},
		{"1k prompt alone", 0, 0, l.ChunkMillis(1000, 0), 45.5 + 0.715},
		{"tiny prompt alone costs the weights", 0, 0, l.ChunkMillis(16, 0), 14.05},
		{"chunk behind a prefix", 0, 0, l.ChunkMillis(2000, 4000), 91 + 1.43*2*5},
		{"mixed", 2, 3000, l.ChunkMillis(1000, 0), 14.05 + 0.125 + 0.1476 + 46.215},
	} {
		got := l.Step(tc.decodes, tc.context, tc.chunks)
		assert.LessOrEqual(t, (got - milliseconds(tc.want)).Abs(), time.Nanosecond,
			"%s: %v, want %.4f ms", tc.name, got, tc.want)
	}
	l.Floor = 24
	for want, got := range map[time.Duration]time.Duration{
		milliseconds(24): l.Step(3, 3000, l.ChunkMillis(16, 0)), l.Step(3, 3000, 0): Qwen3Latency().Step(3, 3000, 0),
		milliseconds(45.5 + 0.715): l.Step(0, 0, l.ChunkMillis(1000, 0)),
	} {
		assert.Equal(t, want, got, "the floor is that of steps with a chunk")
	}
}

func TestRunningSequencesShareTheBudgetWithChunksOfNewOnes(t *testing.T) {
	c := newTestCore(t, Config{})
	l := Qwen3Latency()
	mustAdd(t, c, Request{ID: "a", Prompt: prompt(1, 1000), MaxTokens: 3, IgnoreEOS: true})
	now := c.Step(epoch).Next
	mustAdd(t, c, Request{ID: "b", Prompt: prompt(2, 10_000), MaxTokens: 1, IgnoreEOS: true})
	r := c.Step(now)
	assert.Equal(t, l.Step(1, 1001, l.ChunkMillis(8191, 0)), r.Next.Sub(now), "mixed step takes")
	now = r.Next
	r = c.Step(now)
	assert.Equal(t, l.Step(1, 1002, l.ChunkMillis(1809, 8191)), r.Next.Sub(now), "second mixed step takes")
}

func TestPreemptedSequencesRecomputeAndAnswerTheSame(t *testing.T) {
	roomy, tight := smallConfig(), smallConfig()
	roomy.TotalKVBlocks, roomy.ContextLength = 1000, 80
	tight.TotalKVBlocks, tight.ContextLength = 24, 80
	var answers [2]map[string][]uint32
	for i, cfg := range []Config{roomy, tight} {
		c := newTestCore(t, cfg)
		for k := range uint32(4) {
			mustAdd(t, c, Request{ID: fmt.Sprint(k), Prompt: prompt(k, 12), MaxTokens: 50, IgnoreEOS: true})
		}
		outs, _ := drive(t, c, epoch)
		answers[i] = map[string][]uint32{}
		for k := range 4 {
			answers[i][fmt.Sprint(k)] = tokensOf(outs, fmt.Sprint(k))
		}
		if got := c.Stats().Preemptions > 0; got != (i == 1) {
			t.Errorf("cache of %d blocks: %d preemptions", cfg.TotalKVBlocks, c.Stats().Preemptions)
		}
	}
	assert.Equal(t, answers[1], answers[0], "preemption changed the answers")
}

func TestLateTimerDoesNotSlowTheEngine(t *testing.T) {
	c := newTestCore(t, Config{})
	mustAdd(t, c, Request{ID: "a", Prompt: prompt(1, 1000), MaxTokens: 100, IgnoreEOS: true})
	end := c.Step(epoch).Next
	next := c.Step(end.Add(2 * time.Millisecond)).Next
	assert.Equal(t, Qwen3Latency().Step(1, 1001, 0), next.Sub(end), "noticed 2 ms late, the next step ends N after it")
	stopped := next.Add(time.Minute)
	assert.GreaterOrEqual(t, c.Step(stopped).Next.Sub(stopped), 14*time.Millisecond,
		"after a minute's stop the engine catches up: next step ends N later")
}
