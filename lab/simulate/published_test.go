package simulate

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/setting"
)

// staged is a plan of two stages whose figures others have published.
const staged = `name: t
workload:
  input_tokens: 100
  output_tokens: 10
  stages: [{rate: 50, requests: 5, warm: true}, {rate: 3, requests: 20}, {rate: 12.5, requests: 20}]
fleet: {workers: 2, kv_tokens: 4096, context_length: 2048}
seeds: [1, 2]
arms:
  - {name: one, set: {router.mode: round-robin}}
  - {name: two, set: {router.mode: kv}}
published:
  - {arm: two, against: one, metric: ttft_s.mean, value: 2, source: a ratio}
  - {arm: two, metric: requests, stage: 3/s, value: 40, source: a stage}
published_csv:
  file: theirs.csv
  source: measured
  stage_column: qps
  arm_column: who
  arms: {them: [one, two]}
  metrics: {n: requests, tok: output_tokens_per_s}
`

const theirs = "qps,who,n,tok\n3.0,them,10,100\n12.5,them,80,200\n12.5,others,1,1\n99,them,1,1\n"

func study(t *testing.T, plan, csv string) (*Report, error) {
	t.Helper()
	dir := t.TempDir()
	if csv != "" {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "theirs.csv"), []byte(csv), 0o600))
	}
	s, err := ParsePlan(filepath.Join(dir, "t.yaml"), []byte(plan))
	if err != nil {
		return nil, err
	}
	return s.Run(t.Context(), nil)
}

// reported is the report of a plan that is right.
func reported(t *testing.T, plan, csv string) *Report {
	t.Helper()
	r, err := study(t, plan, csv)
	require.NoError(t, err)
	return r
}

func TestPublishedBesideOurs(t *testing.T) {
	r := reported(t, staged, theirs)
	require.Len(t, r.Published, 2+2*2*2, "published figures")
	// A ratio is that of the means, within the range that the seeds allow.
	got, ok := r.ours(&r.Published[0])
	one, two := r.Arms[0].Stats["ttft_s.mean"], r.Arms[1].Stats["ttft_s.mean"]
	if !ok || got.Mean != two.Mean/one.Mean || got.Min > got.Mean || got.Max < got.Mean || got.Min != two.Min/one.Max {
		t.Errorf("the ratio is %+v, of %+v and %+v", got, two, one)
	}
	// A stage's figure is its own, not the run's: 20 requests of 40.
	if got, _ := r.ours(&r.Published[1]); got.Mean != 20 {
		t.Errorf("the stage has %v requests", got.Mean)
	}
	text, _ := written(t, r)
	saysAndNot(t, text, []string{"ttft_s.mean over one",
		"two requests at 12.5/s 20.000 20.000 … 20.000 80.000 -75 % measured: them"}, nil)
	var out strings.Builder
	require.NoError(t, r.WriteJSON(&out))
	var back struct {
		Published []struct {
			Arm, Figure, Source string
			Ours                Stat
			Theirs              float64
		}
	}
	if err := json.Unmarshal([]byte(out.String()), &back); err != nil || len(back.Published) != 10 ||
		back.Published[1].Figure != "requests at 3/s" {
		t.Errorf("%v: %+v", err, back)
	}
}

func TestPublishedErrors(t *testing.T) {
	absent := reported(t, staged, "")
	assert.Len(t, absent.Published, 2)
	assert.Contains(t, absent.Notes[0], "theirs.csv is absent")
	for _, c := range []struct{ name, old, new, csv, contains string }{
		{"no arm to be against", "against: one", "against: three", theirs, `published: there is no arm "three"`},
		{"no stage", "stage: 3/s", "stage: 4/s", theirs, `published: there is no stage "4/s"`},
		{"no arm to compare", "them: [one, two]", "them: [one, three]", theirs, `published_csv: there is no arm "three"`},
		{"no metric", "n: requests", "n: fun", theirs, `"fun" is not a metric`},
		{"no column", "n: requests", "m: requests", theirs, `theirs.csv:1: there is no column "m"`},
		{"a word for a rate", "", "", "qps,who,n,tok\nfast,them,1,1\n", "theirs.csv:2: "},
		{"a word for a figure", "", "", "qps,who,n,tok\n3,them,1,1\n3,them,many,1\n", "theirs.csv:3: "},
		{"a short row", "", "", "qps,who,n,tok\n3,them,1\n", "theirs.csv:0: record on line 2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := study(t, strings.Replace(staged, c.old, c.new, 1), c.csv)
			var at *setting.Error
			assert.True(t, errors.As(err, &at) && strings.Contains(err.Error(), c.contains),
				"%v, want a conf.Error with %q", err, c.contains)
		})
	}
}

// TestCapacity: what the search finds is what runs at fixed speeds show, and arms
// that differ in the SLO alone are searched apart.
func TestCapacity(t *testing.T) {
	plan := `name: t
workload:
  input_tokens: 2000
  output_tokens: 20
  stages: [{rate: 4, requests: 200}]
fleet: {workers: 2, kv_tokens: 40000}
router: {queue_threshold: -1}
slo: {itl: 1s}
seeds: [1, 2]
arms: [{name: one, set: {router.mode: round-robin}}]
`
	searched := reported(t, plan+"capacity: {from: .25, to: 16, step: 1.05}\nsweep: {slo.ttft: [200ms, 500ms, 1h]}\n", "")
	capacity := func(i int) Stat { return searched.Arms[i].Stats["capacity"] }
	if !(capacity(0).Min > .25 && capacity(0).Max < capacity(1).Min && capacity(1).Max < 16) {
		t.Fatalf("capacities %+v, %+v: want the tighter limit's to be the smaller one", capacity(0), capacity(1))
	}
	if top := (CapacityPlan{From: .25, To: 16, Step: 1.05}).filled(); math.Abs(capacity(2).Mean-top.speed(top.steps()-1)) > 1e-9 {
		t.Errorf("a limit that none misses gives %v, and the search goes to %v", capacity(2).Mean, top.speed(top.steps()-1))
	}
	fixed := reported(t, strings.Replace(plan, "itl: 1s", "ttft: 500ms, itl: 1s", 1)+
		"sweep: {workload.speed: ["+format(capacity(1).Min*.9)+", "+format(capacity(1).Max*1.1)+"]}\n", "")
	if below, above := fixed.Arms[0].Stats["goodput"], fixed.Arms[1].Stats["goodput"]; below.Mean < .9 || above.Mean >= .9 {
		t.Errorf("goodput %v at 0.9 of the capacity, %v at 1.1 of it", below, above)
	}
	text, _ := written(t, searched)
	saysAndNot(t, text, []string{"or more: that is as far as the search went"}, nil)
}

func format(x any) string {
	b, _ := json.Marshal(x)
	return string(b)
}

// TestShuffle: only requests of the same time change places, and a seed always gives the same order.
func TestShuffle(t *testing.T) {
	dir := t.TempDir()
	var rows strings.Builder
	for i := range 60 {
		row, _ := json.Marshal(map[string]any{"timestamp": i / 20 * 1000, "input_length": 64 + i, "output_length": 5, "hash_ids": []int{i}})
		rows.Write(append(row, '\n'))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "t.jsonl"), []byte(rows.String()), 0o600))
	order := func(shuffle string, seed uint64) []int {
		s, err := ParsePlan(filepath.Join(dir, "t.yaml"),
			[]byte("workload: {trace: t.jsonl, shuffle: "+shuffle+"}\nfleet: {workers: 2, kv_tokens: 4096}\n"))
		require.NoError(t, err)
		traces, err := s.read()
		require.NoError(t, err)
		stage := s.Variants[0].stages(traces, seed)[0]
		var all []int
		for i, r := range stage.Requests {
			all = append(all, r.Index)
			assert.Equal(t, i/20, r.Index/20, "request %d came to place %d", r.Index, i)
			assert.Equal(t, stage.Chains.of[i][0], NewChains(stage.Requests[i:i+1], 64).of[0][0],
				"request %d has another's hashes", r.Index)
		}
		return all
	}
	one, again, two, file := format(order("true", 1)), format(order("true", 1)), format(order("true", 2)), format(order("false", 1))
	assert.True(t, one == again && one != two && one != file, "%s\n%s\n%s\n%s", one, again, two, file)
}
