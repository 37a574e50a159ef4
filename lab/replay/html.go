package replay

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"
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
	share := func(title string, c curve) Plot { return c.plot(title, Plot{X: "ms", Y: "%", LogX: true, Steps: true}) }
	p.Plots = []Plot{
		share("TTFT: share of answers at or below", cdf(ttft)),
		ttftOverTime(r.Samples).plot("TTFT over time", Plot{X: "s", Y: "ms", Dots: true}),
		share("ITL: share of answers at or below", cdf(itl)),
		share("Gaps between chunks: share at or below", cdf(gap)),
		inFlightOverTime(r.Samples, s.Wall).plot("Requests in flight over time", Plot{X: "s", Y: "requests", Fill: true}),
		tokensOverTime(r.Samples, s.Wall).plot("Output tokens a second over time", Plot{X: "s", Y: "tok/s", Fill: true}),
	}
	return p
}

// plot is a curve as a plot of one line.
func (c curve) plot(title string, p Plot) Plot {
	p.Title, p.Series = title, []Series{{Name: p.Y, X: c.X, Y: c.Y[0]}}
	return p
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
		t.Rows = append(t.Rows, []string{f.Outcome, f.Code, strconv.Itoa(f.Requests), f.Detail})
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
			w.ID, w.Role, strconv.Itoa(w.Requests), strconv.FormatFloat(100*float64(w.Requests)/float64(max(1, most[w.Role])), 'f', 1, 64), strconv.FormatInt(w.Tokens, 10),
		})
	}
	return t
}
