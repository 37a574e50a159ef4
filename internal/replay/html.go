package replay

import (
	_ "embed" // the page and what it is made of
	"fmt"
	"html/template"
	"io"
	"maps"
	"slices"
	"time"
)

var (
	//go:embed report.html.tmpl
	pageText string
	//go:embed uplot/uPlot.iife.min.js
	uplotJS string
	//go:embed uplot/uPlot.min.css
	uplotCSS string
	//go:embed uplot/LICENSE
	uplotLicense string
)

var page = template.Must(template.New("report").Funcs(template.FuncMap{"short": short}).Parse(pageText))

// pageData is what the page shows.
type pageData struct {
	*Report
	Verdict, Rates string
	Lines          []line
	Failures       []failureCount
	Workers        []workerBar
	Plots          map[string]curve
	JS             template.JS
	CSS            template.CSS
	License        string
}

type failureCount struct {
	Class  string
	Count  int
	Detail string // of the first of them
}

// workerBar is a worker and the length of its bar, in percent of the longest of
// its role.
type workerBar struct {
	WorkerCount
	Percent float64
}

// WriteHTML writes the report as one page that needs nothing else: style,
// script and data are inside.
func (r *Report) WriteHTML(w io.Writer) error {
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
	data := pageData{
		Report: r, Verdict: r.verdict(), Rates: r.rates(), Lines: s.lines(), Failures: r.failures(), Workers: s.bars(),
		Plots: map[string]curve{
			"ttft_cdf": cdf(ttft), "itl_cdf": cdf(itl), "gap_cdf": cdf(gap),
			"ttft_time": ttftOverTime(r.Samples), "in_flight": inFlightOverTime(r.Samples, s.Wall), "tokens": tokensOverTime(r.Samples, s.Wall),
		},
		JS: template.JS(uplotJS), CSS: template.CSS(uplotCSS), License: uplotLicense,
	}
	if err := page.Execute(w, data); err != nil {
		return fmt.Errorf("replay: the HTML report: %w", err)
	}
	return nil
}

// Begun is when the run began, for people.
func (r *Report) Begun() string { return r.Started.UTC().Format(time.RFC3339) }

func (r *Report) failures() []failureCount {
	first := map[string]string{}
	for i := range r.Samples {
		s := &r.Samples[i]
		if first[s.Outcome] == "" {
			first[s.Outcome] = s.Detail
		}
	}
	var all []failureCount
	for _, class := range slices.Sorted(maps.Keys(r.Summary.Failures)) {
		all = append(all, failureCount{class, r.Summary.Failures[class], first[class]})
	}
	return all
}

func (s *Summary) bars() []workerBar {
	most := map[string]int{}
	for _, w := range s.Workers {
		most[w.Role] = max(most[w.Role], w.Requests)
	}
	bars := make([]workerBar, len(s.Workers))
	for i, w := range s.Workers {
		bars[i] = workerBar{w, 100 * float64(w.Requests) / float64(most[w.Role])}
	}
	return bars
}
