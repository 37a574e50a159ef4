package replay

import (
	"fmt"
	"io"
	"slices"
	"time"
)

// WriteHTML writes the report as one page that needs nothing else.
func (r *Report) WriteHTML(w io.Writer) error {
	p := r.Page()
	return p.Write(w)
}

// Page is the report with its plots.
func (r *Report) Page() Page {
	var ttft, itl, gap []Millis
	for i := range r.Samples {
		p := &r.Samples[i]
		if p.Outcome != Answered || p.TTFT == 0 {
			continue
		}
		ttft = append(ttft, p.TTFT)
		if p.OutputTokens > 1 {
			itl = append(itl, p.ITL)
		}
		gap = append(gap, p.Gaps...)
	}
	p := Page{
		Title:    r.Title,
		Subtitle: fmt.Sprintf("%s · %s · speed %v · seed %d · %s", r.Target, r.Workload, r.Speed, r.Seed, r.Begun()),
		Notes:    r.Notes, Tables: r.tables(),
	}
	lines := r.headlines()
	p.Verdict, p.Lines = lines[0], lines[1:]
	l := r.Limits
	p.Plots = []Drawing{
		r.goodputOverTime(),
		share("TTFT: share of answers at or below", "TTFT", ttft, l.TTFT),
		&Plot{
			Title: "TTFT over time", Help: "a dot a request; a refusal is at the time that it took", X: clock, Y: Axis{Name: "TTFT", Unit: "ms", Log: true}, Dots: true,
			Limits: limit("limit of TTFT", l.TTFT, false), Series: ttftOverTime(r.Samples),
		},
		share("ITL: share of answers at or below", "ITL", itl, l.ITL),
		share("Gaps between chunks: share at or below", "gap", gap, 0),
	}
	return p
}

// clock is the axis of a run's time.
var clock = Axis{Name: "time since the start", Unit: "s"}

// share plots a distribution, with the limit that its values are held to.
func share(title, name string, times []Millis, held time.Duration) *Plot {
	help := ""
	if c := len(times); c > curvePoints {
		help = fmt.Sprintf("of %s values; the lowest %d %% are not drawn", Number(float64(c)), leftOut)
	}
	return &Plot{
		Title: title, Help: help, X: Axis{Name: name, Unit: "ms", Log: true}, Y: Axis{Name: "share", Unit: "%"}, Steps: true,
		Limits: limit("limit of "+name, held, true), Series: []Series{cdf(name, times)},
	}
}

// limit is a limit of a latency in milliseconds; none where it is not set.
func limit(name string, at time.Duration, onX bool) []Limit {
	if at <= 0 {
		return nil
	}
	ms := float64(at) / 1e6
	return []Limit{{Name: name + " " + Number(ms) + " ms", At: ms, OnX: onX}}
}

// Begun is when the run began, for people.
func (r *Report) Begun() string { return r.Started.UTC().Format(time.RFC3339) }

// tables are the figures of every form for people.
func (r *Report) tables() []Table {
	all := []Table{r.latencies(), r.failures(), r.Summary.shares()}
	return slices.DeleteFunc(all, func(t Table) bool { return len(t.Rows) == 0 })
}

func (r *Report) latencies() Table {
	t := Table{Head: []string{"milliseconds", "#values", "#mean", "#p50", "#p90", "#p99", "#max", "?"}}
	for _, l := range r.Summary.lines() {
		t.Rows = append(t.Rows, slices.Concat([]string{l.Name}, l.Cells(), []string{l.Help}))
	}
	return t
}

func (r *Report) failures() Table {
	t := Table{Head: []string{"!not answered", "code", "#requests", "?reason as reported"}}
	for _, f := range r.Failures() {
		t.Rows = append(t.Rows, []string{f.Outcome, f.Code, Number(float64(f.Requests)), f.Detail})
	}
	return t
}

// shares is each worker's part.
func (s *Summary) shares() Table {
	t := Table{Head: []string{"worker", "role", "#requests", "#tokens computed"}}
	for _, w := range s.Workers {
		t.Rows = append(t.Rows, []string{w.ID, w.Role, Number(float64(w.Requests)), Number(float64(w.Tokens))})
	}
	return t
}
