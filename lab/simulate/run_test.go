package simulate

import (
	"context"
	"errors"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/lab/engine"
	"github.com/tandem-pd/tandem/lab/replay"
	"github.com/tandem-pd/tandem/pools"
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

// TestEveryRequestEnds: whatever the fleet, the policy and the delay of events,
// each request is answered once with all its tokens, and nothing stays booked,
// pinned or running.
func TestEveryRequestEnds(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	w := made(seed, 300)
	for name, fleet := range fleets() {
		for _, mode := range []string{"kv", "round-robin", "least-loaded", "power-of-two", "random"} {
			for _, delay := range []time.Duration{0, 20 * time.Millisecond} {
				cfg := arm(w, 16, mode, fleet...)
				cfg.EventDelay, cfg.Gaps, cfg.Readings = delay, true, 50
				r, err := start(cfg)
				if err != nil {
					t.Fatal(err)
				}
				if err := r.all(t.Context()); err != nil {
					t.Fatalf("%s %s: %v", name, mode, err)
				}
				seen := make([]bool, len(w.Requests))
				for i, s := range r.out.Samples {
					q := &w.Requests[s.Index]
					if seen[s.Index] || s.Outcome != replay.Answered || s.OutputTokens != q.OutputTokens {
						t.Fatalf("%s %s: %+v", name, mode, s)
					}
					seen[s.Index] = true
					if s.TTFT <= 0 || s.E2E < s.TTFT || s.CachedTokens < 0 || s.CachedTokens >= s.InputTokens {
						t.Fatalf("%s %s: times or tokens of %+v", name, mode, s)
					}
					if r.out.TBT[i] <= 0 != (q.OutputTokens == 1) {
						t.Fatalf("%s %s: a TBT of %v for %d tokens", name, mode, r.out.TBT[i], q.OutputTokens)
					}
				}
				if slices.Contains(seen, false) {
					t.Fatalf("%s %s: a request has no sample", name, mode)
				}
				for _, m := range r.machines {
					b := m.core.Books(r.at(r.now))
					if b.Running+b.Waiting+b.Transferring+len(b.Pinned)+b.Blocks.Active > 0 {
						t.Errorf("%s %s: %s holds %+v", name, mode, m.worker.ID, b)
					}
				}
				for _, role := range []pools.Role{pools.Both, pools.Prefill, pools.Decode} {
					if n := r.gateways[0].routers.For(Model, role).Open(); n > 0 {
						t.Errorf("%s %s: %d bookings of role %s are open", name, mode, n, role)
					}
				}
				if len(r.out.Readings) == 0 {
					t.Error("no readings")
				}
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
			if err != nil {
				t.Fatal(err)
			}
			b, err := Run(t.Context(), arm(w, 16, mode, fleet...))
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(a, b) {
				t.Errorf("%s %s: two runs differ", name, mode)
			}
		}
	}
}

// TestGolden pins a run's figures, so that a machine that rounds otherwise, or a
// map whose order leaks into a choice, is found out.
func TestGolden(t *testing.T) {
	out, err := Run(t.Context(), arm(made(42, 400), 16, "kv", fleets()["2P2D"]...))
	if err != nil {
		t.Fatal(err)
	}
	var ttft, e2e time.Duration
	for _, s := range out.Samples {
		ttft, e2e = ttft+time.Duration(s.TTFT), e2e+time.Duration(s.E2E)
	}
	const wantTTFT, wantE2E = time.Duration(21523600388), time.Duration(196348638920)
	if ttft != wantTTFT || e2e != wantE2E {
		t.Errorf("TTFT adds up to %d, E2E to %d; want %d and %d", ttft, e2e, wantTTFT, wantE2E)
	}
}

// TestSessionsWait: a session's turn comes after the answer before it.
func TestSessionsWait(t *testing.T) {
	w := &replay.Workload{}
	for i := range 3 {
		w.Requests = append(w.Requests, replay.Request{Index: i, Session: "s", Delay: time.Second, OutputTokens: 5,
			Spans: []replay.Span{{ID: 1, Tokens: 100}}})
	}
	out, err := Run(t.Context(), arm(w, 16, "kv", fleets()["both"]...))
	if err != nil {
		t.Fatal(err)
	}
	for i := 1; i < 3; i++ {
		before, after := out.Samples[i-1], out.Samples[i]
		if want := before.Scheduled + before.E2E + replay.Millis(time.Second); after.Scheduled != want {
			t.Errorf("turn %d came at %v, want %v", i, after.Scheduled, want)
		}
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
	if err != nil {
		t.Fatal(err)
	}
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

// TestChainsAreAsEqualAsPrompts: two prompts share as many leading block hashes
// as they share full blocks of tokens.
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
		if len(ca) != len(ta)/8 {
			t.Fatalf("%d hashes for %d tokens", len(ca), len(ta))
		}
		same := 0
		for same < min(len(ca), len(cb)) && ca[same] == cb[same] {
			same++
		}
		shared := 0
		for shared < min(len(ta), len(tb)) && ta[shared] == tb[shared] {
			shared++
		}
		if same > shared/8 {
			t.Fatalf("%v and %v share %d hashes and %d tokens", a, b, same, shared)
		}
	}
}
