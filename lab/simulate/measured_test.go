package simulate

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/lab/engine"
)

// h200 reads the runs with a real vLLM 0.26.0 on one NVIDIA H200 of 26 November 2026, by name. docs/results.md
// describes them.
func h200(t *testing.T) map[string]json.RawMessage {
	t.Helper()
	text, err := os.ReadFile("../../bench/recipes/h200.jsonl")
	require.NoError(t, err)
	runs := map[string]json.RawMessage{}
	for line := range strings.Lines(string(text)) {
		var run struct{ Run string }
		require.NoError(t, json.Unmarshal([]byte(line), &run))
		runs[run.Run] = json.RawMessage(line)
	}
	return runs
}

// hasTable compares the table of docs/results.md below a head with the rows; -update writes them.
func hasTable(t *testing.T, head string, rows []string) {
	t.Helper()
	text, err := os.ReadFile(resultsPage)
	require.NoError(t, err)
	before, rest, ok := strings.Cut(string(text), "\n"+head+"\n|")
	table, after, ended := strings.Cut(rest, "\n\n")
	require.True(t, ok && ended, "%s has no table %s", resultsPage, head)
	rule, _, _ := strings.Cut(table, "\n")
	want := rule + "\n" + strings.Join(rows, "\n")
	if t.Log(head + "\n|" + want); *update {
		require.NoError(t, os.WriteFile(resultsPage, []byte(before+"\n"+head+"\n|"+want+"\n\n"+after), 0o644))
	} else if want != table {
		t.Errorf("%s has other figures: go test ./lab/simulate -run %s -update", resultsPage, t.Name())
	}
}

// played runs streams that begin together, each with a prompt of its own behind what is cached, and returns the last
// one's time to the first token and its mean time between tokens, in ms.
func played(t *testing.T, fit Fit, streams, cached, prompt int) (ttft, itl float64) {
	t.Helper()
	core, err := engine.NewCore(engine.Config{Latency: fit.Latency, TotalKVBlocks: 20_000}, vocabulary)
	require.NoError(t, err)
	tokens := func(seed, n int) []uint32 {
		all := make([]uint32, n)
		for i := range all {
			all[i] = uint32(seed<<16 + i)
		}
		return all
	}
	now := time.Unix(0, 0)
	ends := func() (first, last time.Time, n int) {
		for {
			r := core.Step(now)
			for _, o := range r.Outputs {
				if o.Generated == 1 {
					first = now
				}
				last, n = now, o.Generated
			}
			if r.Next.IsZero() {
				return first, last, n
			}
			now = r.Next
		}
	}
	if cached > 0 {
		require.NoError(t, core.Add(engine.Request{ID: "before", Prompt: tokens(0, cached), MaxTokens: 1}))
		ends()
	}
	for i := range streams {
		all := slices.Concat(tokens(0, cached), tokens(i+1, prompt))
		require.NoError(t, core.Add(engine.Request{ID: fmt.Sprint(i), Prompt: all, MaxTokens: 128, IgnoreEOS: true}))
	}
	began := now
	first, last, n := ends()
	return first.Sub(began).Seconds() * 1e3, last.Sub(first).Seconds() * 1e3 / float64(n-1)
}

// TestMeasuredEngine compares the fit made from one vLLM's figures with them.
func TestMeasuredEngine(t *testing.T) {
	// frontEnd is what TTFT has beyond the step, whatever the length: what the measured TTFT of 2,048 to 14,000 tokens,
	// as c + Prefill·n + Quad·n²/2, leaves for c. Front ends are not simulated.
	const frontEnd = 10 // ms
	var probe map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(h200(t)["probe"], &probe))
	own, _ := FitNamed("qwen2.5-7b-h200-tp1")
	var rows []string
	for _, c := range []struct {
		key                     string
		streams, cached, prompt int
		most                    float64 // share by which the fit may differ
	}{
		{"ttft_ms_64", 1, 0, 64, .15}, {"ttft_ms_512", 1, 0, 512, .15}, {"ttft_ms_1024", 1, 0, 1024, .15},
		{"ttft_ms_2048", 1, 0, 2048, .02}, {"ttft_ms_4096", 1, 0, 4096, .02}, {"ttft_ms_8192", 1, 0, 8192, .02},
		{"ttft_ms_14000", 1, 0, 14000, .02},
		{"ttft_ms_8192cached+64", 1, 8192, 64, .25},
		{"itl_ms_b1", 1, 0, 256, .08}, {"itl_ms_b8", 8, 0, 256, .08}, {"itl_ms_b32", 32, 0, 256, .08}, {"itl_ms_b64", 64, 0, 256, .08},
	} {
		measured, row, decimals := 0.0, "", 1
		if three := []float64(nil); json.Unmarshal(probe[c.key], &three) == nil {
			slices.Sort(three)
			measured, row = three[len(three)/2], fmt.Sprintf("TTFT, %d tokens", c.prompt)
			if c.cached > 0 {
				row += fmt.Sprintf(" behind %d cached", c.cached)
			}
		} else {
			require.NoError(t, json.Unmarshal(probe[c.key], &measured), c.key)
			row, decimals = fmt.Sprintf("ITL, batch of %d", c.streams), 2
		}
		fitted, itl := played(t, own, c.streams, c.cached, c.prompt)
		if fitted += frontEnd; strings.HasPrefix(c.key, "itl") {
			fitted = itl
		}
		off := fitted/measured - 1
		row = fmt.Sprintf("| %s | %.*f | %.*f, %+.1f %% |", row, decimals, measured, decimals, fitted, 100*off)
		assert.LessOrEqual(t, math.Abs(off), c.most, row)
		rows = append(rows, row)
	}
	hasTable(t, "| ms | measured | `qwen2.5-7b-h200-tp1` |", rows)
}

// TestMeasuredModes: the figures of the modes on two real engines, in docs/results.md and README.md, are those of the
// runs.
func TestMeasuredModes(t *testing.T) {
	runs := h200(t)
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	type figures struct{ Mean, P50, P99 float64 }
	var rows []string
	for _, name := range []string{"A-round-robin", "A-kv", "A-auto", "M-round-robin", "M-kv"} {
		var run struct {
			N, OK  int
			Prompt float64 `json:"prompt_tokens"`
			Cached float64 `json:"cached_tokens"`
			TTFT   figures `json:"ttft_ms"`
			ITL    figures `json:"itl_ms"`
		}
		require.NoError(t, json.Unmarshal(runs[name], &run))
		load, mode, _ := strings.Cut(name, "-")
		cached := fmt.Sprintf("%.1f %%", 100*run.Cached/run.Prompt)
		ttft, itl := run.TTFT, run.ITL
		rows = append(rows, fmt.Sprintf("| %s, `%s` | %d of %d | %s | %.0f | %.0f | %.0f | %.1f | %.1f |",
			map[string]string{"A": "sessions", "M": "Mooncake"}[load], mode, run.OK, run.N, cached, ttft.Mean, ttft.P50, ttft.P99, itl.P50, itl.P99))
		if load == "A" {
			assert.Contains(t, string(readme), fmt.Sprintf("| `%s` | %.0f / %.0f / %.0f | %.1f | %s |", mode, ttft.Mean, ttft.P50, ttft.P99,
				itl.P50, cached))
		}
	}
	hasTable(t, "| load, mode | answered | cached | TTFT mean, ms | p50 | p99 | ITL p50, ms | p99 |", rows)
}
