package simulate

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/setting"
)

// good is a plan that errors are planted in.
const good = `name: t
workload:
  input_tokens: 100
  output_tokens: 10
  stages: [{rate: 5, requests: 20}]
fleet:
  workers: 2
  kv_tokens: 4096
  context_length: 2048
router: {mode: kv}
slo: {ttft: 2s}
seeds: [1, 2]
arms:
  - {name: one, set: {router.mode: round-robin}}
  - {name: two, set: {router.mode: kv, fleet.workers: 1P1D}}
`

func TestPlanErrorsNameFileLineAndSetting(t *testing.T) {
	for _, c := range []struct {
		name, old, new string
		line           int
		path, contains string
	}{
		{"an unknown key", "slo: {ttft: 2s}", "slo: {tttft: 2s}", 11, "slo.tttft", "no such key; the nearest is ttft"},
		{"a word for a number", "input_tokens: 100", "input_tokens: many", 3, "workload.input_tokens", "no whole number"},
		{"a negative length", "input_tokens: 100", "input_tokens: -1", 3, "workload.input_tokens", "-1 is not between 1 and"},
		{"no workers", "workers: 2", "workers: 6P", 7, "fleet.workers", `"6P" is neither`},
		{"an unknown policy of one pool", "router.mode: kv, fleet", "router.decode.mode: best, fleet", 15, "router.decode",
			`"best" is not one of`},
		{"a load model of Dynamo's", "router: {mode: kv}", "router: {mode: kv, prefill_load_model: aic}", 10, "router", "online learns the same"},
		{"a path that is none", "router.mode: round-robin", "router.modus: kv", 14, "router.modus",
			"no such key; there are active_request_weight, "},
		{"a fit that is none", "workers: 2", "workers: 2\n  fit: abacus", 8, "fleet.fit", "abacus"},
		{"a rate of nothing", "rate: 5", "rate: 0", 5, "workload.stages", "needs a rate above 0"},
		{"half of what to send", "  input_tokens: 100\n  output_tokens: 10\n  stages: [{rate: 5, requests: 20}]", "  output_tokens: 1", 3,
			"workload.input_tokens", "0 is not between 1"},
		{"another block size of the built-in trace", "  input_tokens: 100\n  output_tokens: 10\n  stages: [{rate: 5, requests: 20}]",
			"  block_tokens: 16", 3, "workload.block_tokens", "has 512"},
		{"an order that is none", "seeds: [1, 2]", "queue: {policy: lifo}", 12, "queue", "lifo"},
		{"two arms of a name", "name: two", "name: one", 14, "arms", `two arms are called "one"`},
		{"a baseline that is none", "seeds: [1, 2]", "baseline: three", 12, "baseline", `no arm "three"`},
		{"a sweep of one value", "seeds: [1, 2]", "sweep: {workload.speed: 2}", 12, "sweep.workload.speed", "must be a list"},
		{"a metric that is none", "seeds: [1, 2]", "published: [{arm: one, metric: fun, value: 1}]", 12, "published", `"fun" is not a metric`},
		{"a fleet that decodes nowhere", "workers: 2", "workers: 2P0D", 7, "fleet", "no worker decodes"},
		{"a list", good, "- a\n", 1, "", "a mapping"},
		{"fewer than no gateways", "seeds: [1, 2]", "replicas: -1", 12, "replicas", "-1 is not between"},
		{"shares that come soon", "seeds: [1, 2]", "staleness: soon", 12, "staleness", `"soon" is neither`},
		{"all shares lost", "seeds: [1, 2]", "loss: 1", 12, "loss", "1 is not a share"},
		{"a spread that is none", "seeds: [1, 2]", "spread: wide", 12, "spread", `"wide" is neither`},
		{"a capacity at a share above 1", "seeds: [1, 2]", "capacity: {share: 2}", 12, "capacity.share", "2 is not above 0"},
		{"a capacity from more than to", "seeds: [1, 2]", "capacity: {from: 2, to: 1}", 12, "capacity", ""},
		{"a capacity without steps", "seeds: [1, 2]", "capacity: {step: 1}", 12, "capacity.step", "1 is not between"},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Contains(t, good, c.old, "the plan has no")
			_, err := ParsePlan("t.yaml", []byte(strings.Replace(good, c.old, c.new, 1)))
			var at *setting.Error
			require.True(t, errors.As(err, &at), "%v is no conf.Error", err)
			assert.True(t, at.Line == c.line && at.Name == c.path && strings.Contains(err.Error(), c.contains),
				"%v (line %d, path %q), want line %d, path %q and %q", err, at.Line, at.Name, c.line, c.path, c.contains)
		})
	}
	for _, c := range []struct{ old, new, contains string }{
		{"{class: a, share: 1}", "{class: c, share: 1}", `workload.classes: number 1: "c" is neither`},
		{"share: 9", "share: -4", "workload.classes: -4, the share of b"},
		{"{class: a, share: 1}, {class: b, share: 9}", "{class: a, share: 0}", "all shares are 0"},
		{"quantum: 1000", "quantum: 0", "policy_classes[0].quantum: is 0"},
		{"default_policy_family: b", "default_policy_family: x", "default_policy_family"},
	} {
		_, err := ParsePlan("p.yaml", []byte(strings.Replace(fmt.Sprintf(classesPlan, "kv"), c.old, c.new, 1)))
		assert.ErrorContains(t, err, c.contains)
	}
}

// TestPlanTooLong: a fleet that cannot hold the longest request is refused
// before anything runs, with the line of the trace.
func TestPlanTooLong(t *testing.T) {
	dir := t.TempDir()
	trace := `{"timestamp": 0, "input_length": 100, "output_length": 5, "hash_ids": [1]}
{"timestamp": 1, "input_length": 5000, "output_length": 5, "hash_ids": [1]}
`
	require.NoError(t, os.WriteFile(filepath.Join(dir, "t.jsonl"), []byte(trace), 0o600))
	s, err := ParsePlan(filepath.Join(dir, "t.yaml"),
		[]byte("workload: {trace: t.jsonl}\nfleet: {workers: 2, kv_tokens: 4096, block_tokens: 16}\n"))
	require.NoError(t, err)
	_, err = s.Run(t.Context(), nil)
	var at *setting.Error
	if !errors.As(err, &at) || at.Name != "fleet.kv_tokens" || at.Line != 2 ||
		!strings.Contains(err.Error(), "line 2, has a request of 5000 prompt and 5 answer tokens") {
		t.Errorf("%v", err)
	}
}

// TestSweepCrosses: every arm meets every combination, and an arm's own value does not hide the sweep's.
func TestSweepCrosses(t *testing.T) {
	s, err := ParsePlan("t.yaml", []byte(good+"sweep: {workload.speed: [1, 2], fleet.kv_tokens: [4096, 8192, 16384]}\n"))
	require.NoError(t, err)
	var names []string
	for _, v := range s.Variants {
		names = append(names, v.Name())
	}
	assert.True(t, len(names) == 12 && names[0] == "one speed=1 kv_tokens=4096" && names[11] == "two speed=2 kv_tokens=16384",
		"%q", names)
	if v := s.Variants[11]; v.plan.Workload.Speed != 2 || v.fleet[0].Engine.TotalKVBlocks != 256 {
		t.Errorf("speed %v, %d blocks", v.plan.Workload.Speed, v.fleet[0].Engine.TotalKVBlocks)
	}
}

// TestStudyReport: a small study end to end, the same twice.
func TestStudyReport(t *testing.T) {
	text := good + "published: [{arm: one, metric: goodput, value: 1, source: nobody}]\nnotes: [made up]\n"
	report := func() string {
		s, err := ParsePlan("t.yaml", []byte(text))
		require.NoError(t, err)
		var far Progress
		if before := far.State(); before.Share != 0 {
			t.Errorf("before the study %+v", before)
		}
		r, err := s.Run(t.Context(), &far)
		require.NoError(t, err)
		if after := far.State(); after.Share != 1 || !strings.HasPrefix(after.Text, "4 of 4 runs, last ") {
			t.Errorf("after the study %+v", after)
		}
		var b strings.Builder
		require.NoError(t, errors.Join(r.WriteText(&b), r.WriteJSON(&b), r.WriteHTML(&b)))
		return b.String()
	}
	first := report()
	assert.Equal(t, first, report(), "the same study gave another report")
	_, goodput, _ := strings.Cut(first, `aria-label="Goodput: goodput, %"`)
	goodput, _, _ = strings.Cut(goodput, "</svg>")
	saysAndNot(t, goodput, []string{`data-series="one"`, `data-series="two"`, ">90 %<"}, nil)
	for _, want := range []string{"First is ", "Against one", "Published figures", "Note: made up", `"arms": [`, `"goodput": {`,
		`"ttft_s": {`, `"seeds": [`} {
		assert.Contains(t, first, want, "the report has no X")
	}
}

// FuzzPlan: whatever the file, the answer is a study or an error.
func FuzzPlan(f *testing.F) {
	f.Add([]byte(good))
	f.Add([]byte("a: &x [*x]"))
	f.Add([]byte("sweep: {a.b.c: [1]}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if s, err := ParsePlan("t.yaml", text); err == nil && len(s.Variants) == 0 {
			t.Error("a study without variants")
		}
	})
}
