package replay

import (
	"bytes"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Times are described by their order; between two of them a percentile lies in proportion.
func TestDistribution(t *testing.T) {
	s := Millis(time.Second)
	var times []Millis
	for i := range 101 {
		times = append(times, Millis(i)*s)
	}
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(times), func(i, j int) { times[i], times[j] = times[j], times[i] })
	assert.Equal(t, Distribution{101, 50 * s, 50 * s, 90 * s, 99 * s, 100 * s}, distribution(times))
	assert.Zero(t, distribution(nil))
	for p, want := range map[float64]Millis{0: 1000, .5: 2500, .9: 3700, .99: 3970, 1: 4000} {
		assert.Equal(t, want, Quantile([]Millis{1000, 2000, 3000, 4000}, p), p)
	}
	assert.Equal(t, Millis(7), Quantile([]Millis{7}, .99))
}

// samples is a run with something of everything.
func samples() []Sample {
	second := Millis(time.Second)
	answered := func(index int, at, ttft, e2e Millis, prompt, cached, out int, p, d string) Sample {
		s := Sample{
			Index: index, Outcome: Answered, Status: 200, Scheduled: at, TTFT: ttft, Gaps: []Millis{(e2e - ttft) / 2, (e2e - ttft) / 2},
			InputTokens: prompt, PromptTokens: prompt, CachedTokens: cached, AskedTokens: 10, OutputTokens: out, PrefillWorker: p, DecodeWorker: d,
		}
		s.End(time.Duration(e2e))
		return s
	}
	return []Sample{
		answered(0, 0, second, 10*second, 100, 0, 10, "prefill-1", "decode-10"),
		answered(1, second, 2*second, 11*second, 300, 200, 10, "prefill-2", "decode-9"),
		answered(2, 2*second, second, 10*second, 600, -1, 9, "", "decode-9"),
		{Index: 3, Outcome: "http_529", Detail: "full", Scheduled: 4 * second, E2E: second / 100, Late: second / 50, CachedTokens: -1,
			AskedTokens: 10},
		{Index: 4, Outcome: ErrorEvent, Detail: "decode </script> worker lost", Status: 200, Scheduled: 5 * second, TTFT: second,
			E2E: 15 * second, OutputTokens: 4, CachedTokens: -1},
		{Index: 5, Outcome: NotSent, Scheduled: 500 * second, CachedTokens: -1},
	}
}

func TestSummarize(t *testing.T) {
	got := Summarize(samples())
	second := Millis(time.Second)
	rate := 0.5
	want := Summary{
		Requests: 6, Answered: 3, Failures: map[string]int{"http_529": 1, ErrorEvent: 1, NotSent: 1}, Short: 1, Wall: 20 * second,
		RequestsPerSecond: 0.15, OutputTokensPerSecond: 1.65, OutputTokens: 33, PromptTokens: 400, CachedTokens: 200, HitRate: &rate, InFlight: 4,
		Workers: []WorkerCount{
			{"prefill", "prefill-1", 1, 100}, {"prefill", "prefill-2", 1, 100}, {"decode", "decode-9", 2, 19}, {"decode", "decode-10", 1, 10},
		},
	}
	if got.TTFT.Count != 3 || got.TTFT.P50 != second || got.TTFT.Max != 2*second || got.ITL.Count != 3 || got.ITL.P50 != second ||
		got.Gap.Count != 6 || got.E2E.Max != 11*second || got.Late.Count != 5 || got.Late.Max != second/50 {
		t.Errorf("%+v", got)
	}
	got.TTFT, got.ITL, got.Gap, got.E2E, got.Late = want.TTFT, want.ITL, want.Gap, want.E2E, want.Late
	assert.Equal(t, want, got)
	if got.HitRate = nil; Summarize(nil).HitRate != nil {
		t.Error("a run of nothing has a hit rate")
	}
}

func finished() *Report {
	all := samples()
	slices.Reverse(all)
	r := &Report{
		Title: "A <b>title</b>", Target: "http://127.0.0.1:8000 m", Workload: "trace.jsonl", Speed: 2, Seed: 7,
		Started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Samples: all,
	}
	r.Finish()
	return r
}

// A report has the same figures for a terminal, for programs, as a line a request, and as a page that stands alone:
// nothing in it is fetched from anywhere.
func TestReportForms(t *testing.T) {
	r := finished()
	var text, lines, page, asJSON bytes.Buffer
	require.NoError(t, errors.Join(r.WriteText(&text), r.WriteSamples(&lines), r.WriteHTML(&page), r.WriteJSON(&asJSON)))
	contains(t, text.String(), "6 requests in 20.0 s: 3 answered, 3 failed", "\nhttp_529                   1  full\n", "\nTTFT               3   1,333   1,000    –", "hit rate 50.0 % of 400 prompt tokens",
		"decode-10", "note: the generator itself sent late, by up to 20.0 ms", "reached; not sent: 1", "than were asked for: 1")
	contains(t, asJSON.String(), `"p99_ms": 1980`, `"hit_rate": 0.5`, `"max_in_flight": 4`)
	var back Report
	require.NoError(t, json.Unmarshal(asJSON.Bytes(), &back))
	assert.Equal(t, r.Summary.Failures, back.Summary.Failures)

	all := strings.Split(strings.TrimSpace(lines.String()), "\n")
	require.Len(t, all, 6)
	for i, line := range all {
		var s Sample
		require.NoError(t, json.Unmarshal([]byte(line), &s))
		want := samples()[i]
		assert.Equal(t, []any{i, want.E2E, want.Outcome, want.TTFT}, []any{s.Index, s.E2E, s.Outcome, s.TTFT}, line)
	}
	contains(t, all[0], `"ttft_ms":1000,"itl_ms":1000,"e2e_ms":10000`)

	contains(t, page.String(), "A &lt;b&gt;title&lt;/b&gt;", "prefers-color-scheme: dark", "decode-10", "http_529", "3 answered, 3 failed")
	assert.NotRegexp(t, `<script|<link|\bsrc\s*=|\bhref\s*=|@import|url\(|\bfetch\(|XMLHttpRequest|import\(|<iframe|<img|WebSocket`,
		page.String())

	empty := &Report{Title: "Nothing"}
	empty.Finish()
	text.Reset()
	require.NoError(t, errors.Join(empty.WriteText(&text), empty.WriteHTML(&page), empty.WriteJSON(&page), empty.WriteSamples(&page)))
	contains(t, text.String(), "hit rate unknown")
}

// Every plot has named axes and the limits that its values are held to; goodput is among them.
func TestReportPlots(t *testing.T) {
	r := finished()
	r.Limits = Limits{TTFT: 1500 * time.Millisecond, ITL: 25 * time.Millisecond}
	var b bytes.Buffer
	require.NoError(t, r.WriteHTML(&b))
	figures := checkPlot(t, b.String())
	for _, want := range []figure{
		{X: "time since the start, s", Y: "goodput, %", Limits: []string{"90 %"}},
		{X: "TTFT, ms (log)", Y: "share, %", Limits: []string{"limit of TTFT 1,500 ms"}},
		{X: "time since the start, s", Y: "TTFT, ms (log)", Limits: []string{"limit of TTFT 1,500 ms"}},
		{X: "ITL, ms (log)", Y: "share, %", Limits: []string{"limit of ITL 25 ms"}},
		{X: "gap, ms (log)", Y: "share, %"},
	} {
		if !slices.ContainsFunc(figures, func(f figure) bool {
			return f.X == want.X && f.Y == want.Y && slices.Equal(f.Limits, want.Limits) && f.Points > 0
		}) {
			t.Errorf("no plot of %+v in %+v", want, figures)
		}
	}
}

// Goodput over time is what the samples are.
func TestGoodputOverTime(t *testing.T) {
	r := &Report{Limits: Limits{TTFT: time.Second, ITL: 10 * time.Millisecond}}
	ms := func(n int) Millis { return Millis(n) * Millis(time.Millisecond) }
	for i := range 40 {
		s := Sample{Scheduled: ms(100 * i), Outcome: Answered, TTFT: ms(500), ITL: ms(5)}
		switch {
		case i >= 30:
			s.TTFT = ms(2000)
		case i >= 20:
			s = Sample{Scheduled: ms(100 * i), Outcome: "http_529"}
		}
		r.Samples = append(r.Samples, s)
	}
	r.Samples = append(r.Samples, Sample{Scheduled: ms(1), Outcome: Cancelled})
	over := r.goodputOverTime().Series[0]
	assert.True(t, slices.Equal(over.Y, []float64{100, 100, 0, 0, 0}) && over.X[0] == 0 && over.X[4] == 3.9,
		"over time %v, %v", over.X, over.Y)
	r.Limits = Limits{}
	assert.True(t, r.goodputOverTime().Empty(), "goodput without a limit")
}

// A distribution that leaves something out notes it.
func TestPlotsAreHonest(t *testing.T) {
	for _, n := range []int{5, 1003} {
		help := share("TTFT", "TTFT", make([]Millis, n), 0).Help
		assert.Equal(t, n > curvePoints, strings.Contains(help, "the lowest 2 % are not drawn"), "%d values: %q", n, help)
	}
}

func TestCurves(t *testing.T) {
	var times []Millis
	for i := range 1000 {
		times = append(times, Millis(i+1)*Millis(time.Millisecond))
	}
	c := cdf("TTFT", times)
	if !slices.IsSorted(c.X) || !slices.IsSorted(c.Y) || c.Y[len(c.Y)-1] != 100 || c.X[len(c.X)-1] != 1000 || len(c.X) > curvePoints {
		t.Errorf("%d points up to %v at %v", len(c.X), c.X[len(c.X)-1], c.Y[len(c.Y)-1])
	}
	assert.Equal(t, Series{Name: "t", X: []float64{5}, Y: []float64{100}}, cdf("t", []Millis{5e6, 5e6, 5e6}), "three equal times give")
	all := samples()
	all[3].Status = 529
	assert.Equal(t, []Series{
		{Name: "TTFT", X: []float64{0, 1, 2}, Y: []float64{1000, 2000, 1000}}, {Name: "refused", X: []float64{4}, Y: []float64{10}},
	}, ttftOverTime(all))
}

// Sentences that differ in numbers are one failure, others are not, and a long list ends in classes.
func TestFailuresAreGrouped(t *testing.T) {
	r := &Report{}
	add := func(n int, outcome, detail string) {
		for range n {
			r.Samples = append(r.Samples, Sample{Outcome: outcome, Detail: detail})
		}
	}
	add(3, "http_529", "full; try again in 7 s")
	add(2, "http_529", "full; try again in 12 s")
	add(4, Unreachable, "dial 127.0.0.1:1: refused")
	add(5, Answered, "")
	want := []Failure{{"http_529", "", "full; try again in 7 s (numbers differ)", 5}, {Unreachable, "", "dial 127.0.0.1:1: refused", 4}}
	assert.Equal(t, want, r.Failures())
	for i := range 26 {
		add(1, "http_400", "no "+string(rune('a'+i)))
	}
	got := r.Failures()
	if last := got[len(got)-1]; len(got) != mostFailures || last != (Failure{"http_400", "", "other reasons", 19}) {
		t.Errorf("%d: %+v", len(got), got)
	}
}

// What broke has not met a limit, nor has an answer without a token; a request that was cancelled with its run does not count.
func TestKept(t *testing.T) {
	samples := []Sample{
		{Outcome: "http_503", Status: 503, Code: "server_is_overloaded"},
		{Outcome: "http_504", Status: 504, Code: "queue_timeout"},
		{Outcome: ErrorEvent, Status: 200, Code: "queue_timeout"},
		{Outcome: "http_502", Status: 502, Code: "reset"},
		{Outcome: Answered, Status: 200},
		{Outcome: Answered, Status: 200, TTFT: 5, E2E: 9, OutputTokens: 1},
	}
	limits := Limits{TTFT: time.Second, ITL: time.Second}
	for _, c := range []struct {
		samples  []Sample
		limits   Limits
		contains string
	}{
		{samples, limits, "Goodput: 1 of 6 requests came with a TTFT of at most 1s and an ITL of at most 1s. Of the 2 answered, 1 met the limit of TTFT and 1 that of ITL."},
		{samples, Limits{TTFT: time.Second}, "Goodput: 1 of 6 requests came with a TTFT of at most 1s."},
		{samples, Limits{}, "Goodput: no limits are set."},
		{samples[:4], limits, "Goodput: 0 of 4 requests, since none was answered."},
		{nil, limits, "Goodput: no request was due."},
	} {
		assert.Equal(t, c.contains, KeptOf(c.samples, c.limits).Sentence(c.limits))
	}
	assert.Equal(t, 2, KeptOf(append(samples[4:6:6], Sample{Outcome: Cancelled}), limits).Requests)
}

// TestPercent: nearly all is not all.
func TestPercent(t *testing.T) {
	for share, want := range map[float64]string{0: "0.0 %", .0001: "under 0.1 %", .5: "50.0 %", .9996: "over 99.9 %", 1: "100.0 %"} {
		assert.Equal(t, want, Percent(share), share)
	}
}
