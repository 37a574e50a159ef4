package simulate

import (
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/lab/replay"
)

// written is a report in all its forms: for a terminal with the advice and single blanks, and as a page.
func written(t *testing.T, r *Report) (text, page string) {
	t.Helper()
	var a, b, c strings.Builder
	require.NoError(t, errors.Join(r.WriteText(&a), r.WriteHTML(&b), r.WriteJSON(&c)))
	a.WriteString("\n" + r.Advice())
	html := b.String()[strings.Index(b.String(), "<h1>"):]
	for _, form := range []string{a.String(), html, c.String()} {
		assert.Empty(t, regexp.MustCompile(`NaN|\bInf\b|\+Inf|-0(\.0)? %|%!`).FindString(form), "in\n%s", form)
	}
	return regexp.MustCompile(`(\S) +`).ReplaceAllString(a.String(), "$1 "), html
}

// saysAndNot checks what a text holds.
func saysAndNot(t *testing.T, text string, contains, not []string) {
	t.Helper()
	for _, want := range contains {
		assert.Contains(t, text, want, "no X")
	}
	for _, never := range not {
		assert.NotContains(t, text, never, "in")
	}
}

// base is a plan that each case degenerates.
const base = `name: t
workload: {input_tokens: 200, output_tokens: 20, stages: [{rate: 20, requests: 30}]}
fleet: {workers: 2, kv_tokens: 4096, context_length: 2048}
slo: {ttft: 2s, itl: 50ms}
seeds: [1, 2, 3, 4, 5]
arms:
  - {name: one, set: {router.mode: round-robin}}
  - {name: two, set: {router.mode: kv}}
`

// TestAdviceFollowsRuns: whatever comes of a study, its sentences and
// tables state nothing that its figures do not show.
func TestAdviceFollowsRuns(t *testing.T) {
	for _, c := range []struct {
		name          string
		replace       []string // pairs
		contains, not []string
	}{
		{"one seed", []string{"seeds: [1, 2, 3, 4, 5]", "seeds: [7]"},
			[]string{"One seed ranks no arm", "Goodput of this one run: one "}, []string{"Take ", "First is", "Next is", "every seed"}},
		{"one request", []string{"requests: 30", "requests: 1"},
			[]string{"the ranges overlap, so that the difference is noise"}, []string{"Take "}},
		{"answers of one token have no ITL", []string{"output_tokens: 20", "output_tokens: 1"},
			[]string{"mean TTFT"}, []string{"mean ITL", "ITL ~+0"}},
		{"limits that nothing meets", []string{"ttft: 2s", "ttft: 1ns"},
			[]string{"No arm answers a request within the limits"}, []string{"Take ", "First is", "lacks"}},
		{"one arm", []string{"  - {name: two, set: {router.mode: kv}}\n", ""},
			[]string{"one (2 both; mode round-robin): 100.0 % of its requests are good (100.0 % to 100.0 %)",
				"in brackets the least and the most of 5 seeds"}, []string{"Take ", "First is", "Against", "Next is"}},
		{"no limits", []string{"slo: {ttft: 2s, itl: 50ms}", ""},
			[]string{"are answered, since the plan sets no slo"}, []string{"are good"}},
		{"a sweep of loads", []string{"baseline", "", "seeds: [1, 2, 3, 4, 5]", "seeds: [1, 2, 3, 4, 5]\nsweep: {workload.speed: [1, 50]}"},
			[]string{"At workload.speed=1: ", "At workload.speed=50: ", "Against one with the same workload and limits"},
			[]string{"Against one speed=1 ("}},
		{"a sweep of limits", []string{"seeds: [1, 2, 3, 4, 5]", "seeds: [1, 2, 3, 4, 5]\nsweep: {slo.ttft: [1ns, 1h]}"},
			[]string{"At slo.ttft=1ns: No arm answers a request within the limits", "At slo.ttft=1h: "}, nil},
		{"arms with loads of their own", []string{"{router.mode: kv}", "{router.mode: kv, workload.speed: 3}"},
			[]string{"With the workload and limits of one: ", "With the workload and limits of two: "},
			[]string{"Take ", "Next is", "points of goodput"}},
		{"nobody else's figure to compare with",
			[]string{"seeds: [1, 2, 3, 4, 5]", "seeds: [1]\npublished: [{arm: one, metric: ttft_s.p99, value: 3, source: x}, {arm: two, metric: goodput, value: 0, source: y}]"},
			[]string{"one ttft_s.p99 – – 3.000 – x"}, []string{"-100 %"}},
		{"a capacity below the search", []string{"ttft: 2s", "ttft: 1ns", "seeds: [1, 2, 3, 4, 5]",
			"seeds: [1]\ncapacity: {from: 1, to: 2, step: 2}"},
			[]string{"not even at 1 times the workload's speed"}, []string{"Take ", "First is"}},
		{"a capacity above the search", []string{"seeds: [1, 2, 3, 4, 5]", "seeds: [1, 2]\ncapacity: {from: 1, to: 2, step: 2}"},
			[]string{"or more: that is as far as the search went", "at 2.00 times the workload's speed"}, []string{"Take ", "points of goodput"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			text, page := written(t, reported(t, strings.NewReplacer(c.replace...).Replace(base), ""))
			saysAndNot(t, text, c.contains, c.not)
			saysAndNot(t, page, nil, []string{"lacks", "would tell"})
		})
	}
}

// TestSeedsThatChangeNothing: runs that are all the same are one run.
func TestSeedsThatChangeNothing(t *testing.T) {
	stat := func(x float64) Stat { return Stat{x, x, x} }
	seeds := []uint64{1, 2, 3, 4, 5}
	r := &Report{Arms: []ArmReport{
		{Name: "one", Arm: "one", Fleet: "2 both", Seeds: seeds, Stats: Stats{"goodput": stat(.5), "requests": stat(500), "hit_rate": stat(0)}},
		{Name: "two", Arm: "two", Fleet: "2 both", Seeds: seeds, Stats: Stats{"goodput": stat(.8), "requests": stat(500), "hit_rate": stat(.2)}},
	}}
	text, _ := written(t, r)
	saysAndNot(t, text, []string{"First is two", "5 seeds, which change nothing", "workload.shuffle", "\ntwo – – – – – – ~+60.0 %\n"},
		[]string{"Take ", "every seed", "~+0"})
	for i := range r.Arms {
		r.Arms[i].Stats["ttft_s.mean"] = Stat{1, .9, 1.1}
	}
	text, _ = written(t, r)
	saysAndNot(t, text, []string{"Take two", "every seed of the first beats every seed of it", " +60.0 %\n"},
		[]string{"which change nothing"})
}

// TestEverythingShed: arms that answered nothing have no latencies, win nothing and draw no curve.
func TestEverythingShed(t *testing.T) {
	refused := make([]replay.Sample, 300)
	for i := range refused {
		refused[i] = replay.Sample{Index: i, Outcome: shed, E2E: 1}
	}
	out := &Outcome{Samples: refused, StageOf: make([]int32, len(refused)), Stages: []Span{{0, time.Second}}}
	slo := SLO{TTFT: time.Second, ITL: time.Second}
	r := &Report{Name: "t", SLO: slo}
	for _, name := range []string{"one", "two"} {
		m := &Measured{Seed: 1, Metrics: measured(&slo, out, -1, -1), Curves: shares(out)}
		r.Arms = append(r.Arms, ArmReport{Name: name, Arm: name, Fleet: "2 both", slo: slo, runs: []*Measured{m}})
	}
	r.finish("one")
	text, page := written(t, r)
	saysAndNot(t, text, []string{"No arm answers a request within the limits",
		"answered requests only: one answered 0 of 300, two answered 0 of 300.", "\ntwo – – – – – – –\n"},
		[]string{"Take ", "First is", " 0.00 ", "lacks"})
	saysAndNot(t, page, []string{"<td class=\"n\">300</td>"}, []string{"0.00</td>"})
	if a := r.Arms[0]; a.Curves.TTFT != nil || a.Stats["shed"].Mean != 300 {
		t.Errorf("%+v", a)
	}
	for _, p := range r.distributions() {
		if d := p.Series[0]; len(d.X) > 0 {
			t.Errorf("%s draws %v of no answer", p.Title, d)
		}
	}
}

// TestUnevenWorkersCount: workers that got nothing count as uneven.
func TestUnevenWorkersCount(t *testing.T) {
	m := Metrics{}
	m.imbalance("decode", []replay.WorkerCount{{Role: "decode", ID: "a", Tokens: 100}}, 4)
	m.imbalance("prefill", nil, 4)
	if _, ok := m["prefill_imbalance"]; ok || m["decode_imbalance"] != 4 {
		t.Errorf("%v, want 4 for one of four that does all", m)
	}
	s, err := ParsePlan("t.yaml", []byte(base))
	require.NoError(t, err)
	v := s.Variants[0]
	if v.serving("decode") != 2 || v.serving("prefill") != 2 {
		t.Errorf("%d and %d workers serve", v.serving("prefill"), v.serving("decode"))
	}
}
