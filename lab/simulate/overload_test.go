package simulate

import (
	"strings"
	"testing"
	"time"
)

// A run whose fleet cannot keep up is stopped, and its report says so; its requests count as missed. A peak that is worked off
// later is none of that.
func TestAFleetThatCannotKeepUp(t *testing.T) {
	const plan = `
seeds: [1]
workload:
  families: [{rate: RATE, duration: 300s, input: {p50: 8000, p99: 16000}, output: {p50: 20, p99: 40}}]
fleet: {workers: WORKERS, fit: qwen3-32b-h200-tp2, kv_tokens: 671000, bandwidth_gb: 50}
router: {queue_threshold: -1, mode: auto}
slo: {ttft: 2s}
`
	for _, c := range []struct {
		name, workers, rate string
		givenUp             bool
	}{
		{"enough", "2P1D", "2", false},
		{"a peak", "1P1D", "4", false}, // needs 8 minutes more than it lasts
		{"far too few", "1P1D", "30", true},
		{"far too few of role both", "1", "30", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := ParsePlan("plan.yaml", []byte(strings.NewReplacer("RATE", c.rate, "WORKERS", c.workers).Replace(plan)))
			if err != nil {
				t.Fatal(err)
			}
			r, err := s.Run(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			a := &r.Arms[0]
			requests, text := a.Stats["requests"].Mean, new(strings.Builder)
			if err := r.WriteText(text); err != nil {
				t.Fatal(err)
			}
			if a.GivenUp == nil {
				if c.givenUp || a.Stats.unanswered() > 0 || strings.Contains(text.String(), "keep up") {
					t.Fatalf("%.0f requests, %.0f unanswered, not given up:\n%s", requests, a.Stats.unanswered(), text)
				}
				return
			}
			g := *a.GivenUp
			if !c.givenUp || g.Needs <= g.Lasts+grace || g.At > g.Lasts || g.Open < 100 || requests < 8000 || a.Stats.unanswered() < requests/2 {
				t.Errorf("given up: %+v; %.0f requests, %.0f unanswered", g, requests, a.Stats.unanswered())
			}
			if g.Lasts > 300*time.Second || !strings.Contains(text.String(), "the fleet cannot keep up") || !strings.Contains(r.Advice(), "cannot keep up") {
				t.Errorf("the report does not say so:\n%s\n%s", text, r.Advice())
			}
		})
	}
}
