package simulate

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/tandem-pd/tandem/lab/engine"
	"github.com/tandem-pd/tandem/lab/replay"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/queue"
	"github.com/tandem-pd/tandem/router"
)

// small is a worker that a few requests can fill.
func small() engine.Config {
	return engine.Config{BlockSize: 16, TotalKVBlocks: 400, ContextLength: 4096, MaxNumBatchedTokens: 512}
}

// made is requests of all kinds: bursts, shared prefixes, sessions.
func made(seed uint64, n int) *replay.Workload {
	rng := rand.New(rand.NewPCG(seed, 1))
	w := &replay.Workload{Name: "made"}
	at := time.Duration(0)
	for i := range n {
		if rng.IntN(3) > 0 {
			at += time.Duration(rng.IntN(100)) * time.Millisecond
		}
		r := replay.Request{Index: i, At: at, OutputTokens: 1 + rng.IntN(60), Spans: []replay.Span{
			{ID: uint64(rng.IntN(4)), Tokens: 16 * (1 + rng.IntN(40))}, {ID: 1000 + uint64(i), Tokens: 1 + rng.IntN(400)},
		}}
		if rng.IntN(4) == 0 {
			r.Session, r.Delay = string(rune('a'+rng.IntN(6))), time.Duration(rng.IntN(50))*time.Millisecond
		}
		w.Requests = append(w.Requests, r)
	}
	return w
}

// fleets under test.
func fleets() map[string][]Group {
	return map[string][]Group{
		"both": {{Count: 3, Role: pools.Both, Engine: small()}},
		"2P2D": {{Count: 2, Role: pools.Prefill, Engine: small()}, {Count: 2, Role: pools.Decode, Engine: small()}},
		"2D":   {{Count: 2, Role: pools.Decode, Engine: small()}},
	}
}

// ended plays a run to its end, and checks that each request was answered once and that nothing stays booked, pinned or
// running.
func ended(t *testing.T, cfg Config) *run {
	t.Helper()
	r, err := start(cfg)
	require.NoError(t, err)
	require.NoError(t, r.all(t.Context()))
	seen := map[int]bool{}
	for _, s := range r.out.Samples {
		require.False(t, seen[s.Index] || s.Outcome != replay.Answered, "%+v", s)
		seen[s.Index] = true
	}
	assert.Len(t, seen, len(cfg.Stages[0].Requests), "requests that ended")
	for _, m := range r.machines {
		b := m.core.Books(r.at(r.now))
		assert.Zero(t, b.Running+b.Waiting+b.Transferring+len(b.Pinned)+b.Blocks.Active, "%s holds %+v", m.worker.ID, b)
	}
	for _, g := range r.gateways {
		for _, role := range roles {
			assert.Zero(t, g.routers.For(Model, role).Open(), "bookings of role %s", role)
		}
	}
	return r
}

// TestEveryRequestEnds: whatever the fleet, the policy and the delay of events, each request is answered once with all
// its tokens.
func TestEveryRequestEnds(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	w := made(seed, 300)
	for name, fleet := range fleets() {
		for _, mode := range []string{"kv", "round-robin", "least-loaded", "power-of-two", "random"} {
			for _, delay := range []time.Duration{0, 20 * time.Millisecond} {
				t.Run(fmt.Sprint(name, mode, delay), func(t *testing.T) {
					cfg := arm(w, 16, mode, fleet...)
					cfg.EventDelay, cfg.Gaps, cfg.Readings = delay, true, 50
					r := ended(t, cfg)
					for i, s := range r.out.Samples {
						if s.OutputTokens != w.Requests[s.Index].OutputTokens || s.TTFT <= 0 || s.E2E < s.TTFT || s.CachedTokens < 0 ||
							s.CachedTokens >= s.InputTokens {
							t.Fatalf("times or tokens of %+v", s)
						}
						require.Equal(t, (s.OutputTokens == 1), r.out.TBT[i] <= 0,
							"a TBT of %v for %d tokens", r.out.TBT[i], s.OutputTokens)
					}
					assert.NotEmpty(t, r.out.Readings)
				})
			}
		}
	}
}

// TestSameSeedSameRun: two runs of one configuration agree in every sample.
func TestSameSeedSameRun(t *testing.T) {
	w := made(7, 300)
	for name, fleet := range fleets() {
		for _, mode := range []string{"kv", "random"} {
			a, err := Run(t.Context(), arm(w, 16, mode, fleet...))
			require.NoError(t, err)
			b, err := Run(t.Context(), arm(w, 16, mode, fleet...))
			require.NoError(t, err)
			assert.Equal(t, b, a, "%s %s: two runs differ", name, mode)
		}
	}
}

// TestGolden pins a run's figures, so that a machine that rounds otherwise, or a
// map whose order leaks into a choice, is found out.
func TestGolden(t *testing.T) {
	out, err := Run(t.Context(), arm(made(42, 400), 16, "kv", fleets()["2P2D"]...))
	require.NoError(t, err)
	var ttft, e2e time.Duration
	for _, s := range out.Samples {
		ttft, e2e = ttft+time.Duration(s.TTFT), e2e+time.Duration(s.E2E)
	}
	const wantTTFT, wantE2E = time.Duration(21523600388), time.Duration(196348638920)
	assert.True(t, ttft == wantTTFT && e2e == wantE2E,
		"TTFT adds up to %d, E2E to %d; want %d and %d", ttft, e2e, wantTTFT, wantE2E)
}

// TestSessionsWait: a session's turn comes after the answer before it.
func TestSessionsWait(t *testing.T) {
	w := &replay.Workload{}
	for i := range 3 {
		w.Requests = append(w.Requests, replay.Request{Index: i, Session: "s", Delay: time.Second, OutputTokens: 5,
			Spans: []replay.Span{{ID: 1, Tokens: 100}}})
	}
	out, err := Run(t.Context(), arm(w, 16, "kv", fleets()["both"]...))
	require.NoError(t, err)
	for i := 1; i < 3; i++ {
		before, after := out.Samples[i-1], out.Samples[i]
		assert.Equal(t, before.Scheduled+before.E2E+replay.Millis(time.Second), after.Scheduled, "turn %d came at", i)
	}
}

// TestShedsAndRefuses: a full queue sheds, a timeout expires.
func TestShedsAndRefuses(t *testing.T) {
	w := made(3, 200)
	for i := range w.Requests {
		w.Requests[i].At = 0
	}
	cfg := arm(w, 16, "kv", fleets()["both"]...)
	cfg.Queue.Limit, cfg.Queue.Timeout = 100, 300*time.Millisecond
	for role, r := range cfg.Routers {
		r.QueueThreshold = 0.1
		cfg.Routers[role] = r
	}
	out, err := Run(t.Context(), cfg)
	require.NoError(t, err)
	got := map[string]int{}
	for _, s := range out.Samples {
		got[s.Outcome]++
	}
	if got[shed] == 0 || got[expired] == 0 || got[replay.Answered] == 0 || got[shed]+got[expired]+got[replay.Answered] != len(out.Samples) {
		t.Errorf("outcomes %v", got)
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, arm(made(1, 400), 16, "kv", fleets()["both"]...)); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want the context's error", err)
	}
}

// TestChainsAreAsEqualAsPrompts: two prompts share as many leading block hashes as they share full blocks of tokens.
func TestChainsAreAsEqualAsPrompts(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 2))
	tokensOf := func(spans []replay.Span) (all [][2]uint64) {
		for _, s := range spans {
			for i := range s.Tokens {
				all = append(all, [2]uint64{s.ID, uint64(i)})
			}
		}
		return all
	}
	prompt := func() (spans []replay.Span) {
		for range 1 + rng.IntN(5) {
			spans = append(spans, replay.Span{ID: rng.Uint64N(3), Tokens: []int{32, 32, 32, 20, 7}[rng.IntN(5)]})
		}
		return spans
	}
	for range 5000 {
		a, b := prompt(), prompt()
		ta, tb := tokensOf(a), tokensOf(b)
		ca, cb := chainOf(a, len(ta), 8), chainOf(b, len(tb), 8)
		require.Len(t, ca, len(ta)/8, "hashes for %d tokens", len(ta))
		same := 0
		for same < min(len(ca), len(cb)) && ca[same] == cb[same] {
			same++
		}
		shared := 0
		for shared < min(len(ta), len(tb)) && ta[shared] == tb[shared] {
			shared++
		}
		require.LessOrEqual(t, same, shared/8, "%v and %v sh hashes and %d tokens", a, b, shared)
	}
}

func arm(w *replay.Workload, block int, mode string, fleet ...Group) Config {
	base := router.DefaultConfig()
	base.Mode, base.Seed, base.QueueThreshold = mode, 1, -1
	routers := map[pools.Role]router.Config{}
	for _, role := range []pools.Role{pools.Prefill, pools.Decode, pools.Both} {
		routers[role] = base.For(role)
	}
	return Config{
		Stages:  []Stage{{Name: "trace", Requests: w.Requests, Chains: NewChains(w.Requests, block)}},
		Fleet:   fleet,
		Routers: routers,
		Queue:   queue.Config{Policy: "fcfs", Limit: 1 << 20, Timeout: 24 * time.Hour, Bytes: 1 << 40},
	}
}
