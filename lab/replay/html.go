package replay

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/tandem-pd/tandem/lab/plot"
)

// WriteHTML writes the report as one page that needs nothing else.
func (r *Report) WriteHTML(w io.Writer) error {
	p := r.Page()
	return p.Write(w)
}

// Page is the report with its plots.
func (r *Report) Page() Page {
	s := &r.Summary
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
		Verdict:  r.verdict(), Lines: slices.Concat([]string{r.rates()}, r.Lines), Notes: r.Notes,
		Tables: []Table{r.latencies()},
	}
	for _, t := range []Table{r.failures(), s.shares()} {
		if len(t.Rows) > 0 {
			p.Tables = append(p.Tables, t)
		}
	}
	l := r.Limits
	p.Plots = []Drawing{
		r.goodputOverTime(), r.goodputByLimits(),
		share("TTFT: share of answers at or below", "TTFT", ttft, l.TTFT),
		&plot.Plot{
			Title: "TTFT over time", Help: "a dot a request", X: clock, Y: plot.Axis{Name: "TTFT", Unit: "ms", Log: true}, Dots: true,
			Limits: limit("limit of TTFT", l.TTFT, false), Series: one("TTFT", ttftOverTime(r.Samples)),
		},
		share("ITL: share of answers at or below", "ITL", itl, l.ITL),
		share("Gaps between chunks: share at or below", "gap", gap, 0),
		overTime("Requests in flight over time", plot.Axis{Name: "requests in flight"}, inFlightOverTime(r.Samples, s.Wall)),
		overTime("Output tokens over time", plot.Axis{Name: "output", Unit: "tokens/s"}, tokensOverTime(r.Samples, s.Wall)),
	}
	return p
}

// clock is the axis of a run's time.
var clock = plot.Axis{Name: "time since the start", Unit: "s"}

// share plots a distribution, with the limit that its values are held to.
func share(title, name string, times []Millis, held time.Duration) *plot.Plot {
	help := ""
	if c := len(times); c > curvePoints {
		help = fmt.Sprintf("of %s values; the lowest %d %% are not drawn", plot.Number(float64(c)), leftOut)
	}
	return &plot.Plot{
		Title: title, Help: help, X: plot.Axis{Name: name, Unit: "ms", Log: true}, Y: plot.Axis{Name: "share", Unit: "%"}, Steps: true,
		Limits: limit("limit of "+name, held, true), Series: one(name, cdf(times)),
	}
}

// overTime plots a run's state over time.
func overTime(title string, y plot.Axis, c curve) *plot.Plot {
	return &plot.Plot{Title: title, X: clock, Y: y, Fill: true, Series: one(y.Name, c)}
}

// one is a curve as the only series of a plot.
func one(name string, c curve) []plot.Series {
	return []plot.Series{{Name: name, X: c.X, Y: c.Y[0]}}
}

// limit is a limit of a latency in milliseconds; none where it is not set.
func limit(name string, at time.Duration, onX bool) []plot.Limit {
	if at <= 0 {
		return nil
	}
	ms := float64(at) / 1e6
	return []plot.Limit{{Name: name + " " + plot.Number(ms) + " ms", At: ms, OnX: onX}}
}

// Begun is when the run began, for people.
func (r *Report) Begun() string { return r.Started.UTC().Format(time.RFC3339) }

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
		t.Rows = append(t.Rows, []string{f.Outcome, f.Code, plot.Number(float64(f.Requests)), f.Detail})
	}
	return t
}

// shares is each worker's part, with a bar in percent of the longest of its role.
func (s *Summary) shares() Table {
	most := map[string]int{}
	for _, w := range s.Workers {
		most[w.Role] = max(most[w.Role], w.Requests)
	}
	t := Table{Head: []string{"worker", "role", "#requests", "|", "#tokens computed"}}
	for _, w := range s.Workers {
		t.Rows = append(t.Rows, []string{
			w.ID, w.Role, plot.Number(float64(w.Requests)), strconv.FormatFloat(100*float64(w.Requests)/float64(max(1, most[w.Role])), 'f', 1, 64), plot.Number(float64(w.Tokens)),
		})
	}
	return t
}
