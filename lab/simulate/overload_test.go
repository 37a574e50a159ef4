package simulate

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A run whose fleet cannot keep up is stopped, as its report notes; its requests count as missed. A peak that is worked
// off later is none of that.
func TestAFleetThatCannotKeepUp(t *testing.T) {
	const plan = `
seeds: [1]
workload:
  families: [{rate: RATE, duration: LASTS, input: {PROMPT}, output: {p50: 20, p99: 40}}]
fleet: {workers: WORKERS, fit: qwen3-32b-h200-tp2, kv_tokens: 671000, bandwidth_gb: 50}
router: {queue_threshold: -1, mode: auto}
slo: {ttft: 2s}
`
	for _, c := range []struct {
		name, workers, rate, lasts, prompt string
		givenUp                            bool
	}{
		{"enough", "2P1D", "2", "300s", "p50: 8000, p99: 16000", false},
		{"a peak", "1P1D", "4", "150s", "p50: 8000, p99: 16000", false}, // needs 4 minutes more than it lasts
		{"far too few of role both", "1", "30", "300s", "p50: 8000, p99: 16000", true},
		{"far too few for hours", "1P1D", "4", "2h", "p50: 40000, p99: 80000", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := reported(t, strings.NewReplacer("RATE", c.rate, "WORKERS", c.workers, "LASTS", c.lasts, "PROMPT", c.prompt).Replace(plan), "")
			a := &r.Arms[0]
			requests := a.Stats["requests"].Mean
			text, _ := written(t, r)
			if a.GivenUp == nil {
				require.True(t, !c.givenUp && a.Stats.unanswered() <= 0 && !strings.Contains(text, "keep up"),
					"%.0f requests, %.0f unanswered, not given up:\n%s", requests, a.Stats.unanswered(), text)
				return
			}
			g := *a.GivenUp
			if !c.givenUp || g.Needs <= min(g.Lasts, patience)+grace || g.At > min(g.Lasts, patience) || g.Open < 100 || requests < 8000 ||
				a.Stats.unanswered() < requests/2 {
				t.Errorf("given up: %+v; %.0f requests, %.0f unanswered", g, requests, a.Stats.unanswered())
			}
			if lasts, _ := time.ParseDuration(c.lasts); g.Lasts > lasts || !strings.Contains(text, "the fleet cannot keep up") ||
				!strings.Contains(r.Advice(), "No fleet here can keep up with this load") {
				t.Errorf("the report does not say so:\n%s\n%s", text, r.Advice())
			}
		})
	}
}

// A plan that makes up more requests than fit into memory is refused before any of them is made.
func TestTooManyRequests(t *testing.T) {
	for workload, fits := range map[string]bool{
		"{input_tokens: 1000, output_tokens: 1, stages: [{rate: 480, duration: 30m}]}":                         true,
		"{input_tokens: 1000, output_tokens: 1, stages: [{rate: 480, duration: 1h}]}":                          false,
		"{input_tokens: 1000, output_tokens: 1, stages: [{rate: 480, duration: 1h, requests: 1000}]}":          true,
		"{input_tokens: 1000, output_tokens: 1, turns: 9, stages: [{rate: 480, duration: 30m}]}":               false,
		"{input_tokens: 100000, output_tokens: 1, stages: [{rate: 400, requests: 900000}]}":                    false,
		"{families: [{rate: 1000, duration: 30m, input: {p50: 100, p99: 100}, output: {p50: 1, p99: 1}}]}":     false,
		"{families: [{rate: 500, duration: 30m, input: {p50: 100, p99: 200}, output: {p50: 1, p99: 1}}]}":      true,
		"{families: [{rate: 500, duration: 30m, input: {p50: 20000, p99: 200000}, output: {p50: 1, p99: 1}}]}": false,
	} {
		_, err := ParsePlan("plan.yaml", []byte("workload: "+workload+"\nfleet: {workers: 2, kv_tokens: 671000}\n"))
		assert.True(t, (err == nil) == fits && (err == nil || strings.Contains(err.Error(), "a run can keep")),
			"%s: %v", workload, err)
	}
}
