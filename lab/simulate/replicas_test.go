package simulate

import (
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/tandem-pd/tandem/lab/replay"
)

// waits runs the arms of bench/recipes/replicas.yaml by one seed and returns each one's mean wait, in mean lengths of a
// job.
func waits(t testing.TB, arms ...string) []float64 {
	t.Helper()
	const file = "../../bench/recipes/replicas.yaml"
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	study, err := ParsePlan(file, text)
	require.NoError(t, err)
	found := make([]float64, len(arms))
	for _, v := range study.Variants {
		for i, arm := range arms {
			if v.Arm != arm {
				continue
			}
			r, err := v.ran(t.Context(), nil, 1, 1)
			require.NoError(t, err)
			each := v.plan.Fleet.Latency.Prefill / 1e6 // seconds a token
			var waited, work float64
			for _, s := range r.out.Samples {
				require.Equal(t, replay.Answered, s.Outcome, "%s: %+v", arm, s)
				own := float64(float64(s.InputTokens) * each)
				waited, work = waited+time.Duration(s.TTFT).Seconds()-own, work+own
			}
			found[i] = waited / work
		}
	}
	return found
}

// BenchmarkReplicasShare measures what several gateways lose by sharing late, by not sharing, and by dividing the
// workers, as mean waits in lengths of a job; and that the least cost herds where water filling does not.
func BenchmarkReplicasShare(b *testing.B) {
	arms := []string{"1 gateway", "3 at 0.5 ms", "3 sharing nothing", "3 that know they share nothing", "10 at 50 ms",
		"10 at 50 ms by least cost"}
	var w []float64
	for range b.N {
		w = waits(b, arms...)
	}
	for i, arm := range arms {
		b.ReportMetric(w[i], strings.ReplaceAll(arm, " ", "-"))
	}
	one, three, nothing, divided, filled, least := w[0], w[1], w[2], w[3], w[4], w[5]
	if one > 0.04 || three > 0.10 || nothing < 0.9 || divided > 0.25 || filled > 0.65*least {
		b.Errorf("%.3f: one of them is above its limit, or sharing makes no difference", w)
	}
}

// TestReplicasEnd: whatever the gateways share and lose, each request is answered once, the same seed gives the same
// run, and nothing stays booked.
func TestReplicasEnd(t *testing.T) {
	w := made(11, 60)
	for name, fleet := range fleets() {
		for _, c := range []Replicas{
			{Count: 3, Staleness: time.Millisecond}, {Count: 3, Staleness: 20 * time.Millisecond, Loss: 0.2}, {Count: 4, Off: true},
			{Count: 2, Away: true},
		} {
			for _, mode := range []string{"kv", "eft"} {
				t.Run(fmt.Sprintf("%s %s %+v", name, mode, c), func(t *testing.T) {
					c.Seed = 5
					cfg := arm(w, 16, mode, fleet...)
					cfg.Replicas, cfg.SessionIDs = c, true
					again, err := Run(t.Context(), cfg)
					require.NoError(t, err)
					assert.True(t, reflect.DeepEqual(again, ended(t, cfg).out), "two runs differ")
				})
			}
		}
	}
}

// TestBoundSessions: the turns of a session come to gateways at random and go to the workers of the first one, while a
// binding lasts.
func TestBoundSessions(t *testing.T) {
	w := &replay.Workload{}
	for i := range 120 {
		w.Requests = append(w.Requests, replay.Request{Index: i, Session: string(rune('a' + i%6)), Delay: time.Second, OutputTokens: 5,
			Spans: []replay.Span{{ID: uint64(i), Tokens: 100}}})
	}
	for ttl, bound := range map[time.Duration]bool{0: false, 20 * time.Millisecond: false, time.Minute: true} {
		cfg := arm(w, 16, "random", fleets()["2P2D"]...)
		cfg.Replicas, cfg.SessionIDs = Replicas{Count: 3, Staleness: time.Millisecond, Seed: 5}, true
		for role, r := range cfg.Routers {
			r.SessionTTL = ttl
			cfg.Routers[role] = r
		}
		out, err := Run(t.Context(), cfg)
		require.NoError(t, err)
		used := map[string]map[string]bool{}
		for _, s := range out.Samples {
			if used[s.Session] == nil {
				used[s.Session] = map[string]bool{}
			}
			used[s.Session][s.PrefillWorker], used[s.Session][s.DecodeWorker] = true, true
		}
		for session, on := range used {
			assert.Equal(t, bound, (len(on) == 2), "bound for %v: session %s was on %v", ttl, session, on)
		}
	}
}
