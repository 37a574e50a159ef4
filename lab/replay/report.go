package replay

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"time"
)

// Report is a run: its settings and its results.
type Report struct {
	// Title heads the report.
	Title string `json:"title"`
	// Target is the system under load, Workload the load.
	Target   string    `json:"target"`
	Workload string    `json:"workload"`
	Speed    float64   `json:"speed"`
	Seed     uint64    `json:"seed"`
	Started  time.Time `json:"started"`
	// Notes are caveats about the numbers.
	Notes   []string `json:"notes,omitempty"`
	Summary Summary  `json:"summary"`
	// Kept counts the requests by the limits that they met.
	Kept    Kept     `json:"kept"`
	Samples []Sample `json:"-"`
	// Limits are drawn in the plots, and goodput is by them.
	Limits Limits `json:"-"`
}

// WriteJSON writes all but the samples as a JSON object.
func (r *Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// WriteSamples writes a JSON line a request, in the workload's order.
func (r *Report) WriteSamples(w io.Writer) error {
	b := bufio.NewWriter(w)
	e := json.NewEncoder(b)
	for i := range r.Samples {
		if err := e.Encode(&r.Samples[i]); err != nil {
			return err
		}
	}
	return b.Flush()
}

// line is a row of the table of latencies.
type line struct {
	Name string
	Distribution
	Help string
}

func (s *Summary) lines() []line {
	all := []line{
		{"TTFT", s.TTFT, "first token, from the scheduled send time"},
		{"queue", s.Queue, "part of TTFT that the gateway's queue took"},
		{"prefill", s.Prefill, "part of TTFT that the prefill worker took"},
		{"ITL", s.ITL, "(E2E − TTFT)/(tokens − 1), a value a request"},
		{"gap", s.Gap, "between chunks, all of all requests"},
		{"E2E", s.E2E, "whole answer, from the scheduled send time"},
		{"late", s.Late, "how late the generator itself sent"},
	}
	return slices.DeleteFunc(all, func(l line) bool { return l.Count == 0 && (l.Name == "queue" || l.Name == "prefill") })
}

// Cells are the columns of a distribution in a report: how many values there are, mean, p50, p90, p99 and max in
// milliseconds. What so few values do not show is a dash: a percentile with no value beyond it, anything of none.
func (d *Distribution) Cells() []string {
	cells := []string{Number(float64(d.Count))}
	for _, c := range []struct {
		value Millis
		least int // values
	}{{d.Mean, 1}, {d.P50, 1}, {d.P90, LeastForP90}, {d.P99, LeastForP99}, {d.Max, 1}} {
		cell := "–"
		if d.Count >= c.least {
			cell = short(c.value)
		}
		cells = append(cells, cell)
	}
	return cells
}

// WriteText writes the report for a terminal.
func (r *Report) WriteText(w io.Writer) error {
	b := bufio.NewWriter(w)
	for _, line := range r.headlines() {
		fmt.Fprintln(b, line)
	}
	for _, t := range r.tables() {
		fmt.Fprintln(b)
		t.WriteText(b)
	}
	if len(r.Notes) > 0 {
		fmt.Fprintln(b)
	}
	for _, n := range r.Notes {
		fmt.Fprintf(b, "note: %s\n", n)
	}
	return b.Flush()
}

// headlines are the run in sentences: goodput, the limit and what to try, what was answered, the rates.
func (r *Report) headlines() []string {
	all := []string{r.Kept.Sentence(r.Limits), r.cause().Sentence(), r.verdict(), r.rates()}
	return slices.DeleteFunc(all, func(line string) bool { return line == "" })
}

// verdict is what became of the requests, in a sentence.
func (r *Report) verdict() string {
	s := &r.Summary
	text := fmt.Sprintf("%s requests in %.1f s: %s answered", Number(float64(s.Requests)), time.Duration(s.Wall).Seconds(),
		Number(float64(s.Answered)))
	if s.Refused > 0 {
		text += fmt.Sprintf(", %d refused", s.Refused)
	}
	text += fmt.Sprintf(", %d failed", s.Failed()-s.Refused-s.Failures[Cancelled])
	if n := s.Failures[Cancelled]; n > 0 {
		text += fmt.Sprintf(", %d cancelled at the end of the run", n)
	}
	return text
}

// Failure is requests that were not answered, of one class and with one sentence.
type Failure struct {
	Outcome  string
	Code     string // as the endpoint named it
	Detail   string
	Requests int
}

// String is the failure without its count.
func (f Failure) String() string {
	text := f.Outcome
	if f.Code != "" {
		text += " " + f.Code
	}
	if f.Detail != "" {
		text += ": " + f.Detail
	}
	return text
}

// mostFailures bounds the list of failures.
const mostFailures = 10

// numbers are the parts of a sentence that differ from request to request.
var numbers = regexp.MustCompile(`[0-9]+`)

// Failures are the requests that were not answered, by what was reported of them, the most frequent first. Sentences
// that differ in their numbers alone are shown by the first of them. Past mostFailures a class is counted whole.
func (r *Report) Failures() []Failure {
	count, first, differ := map[Failure]int{}, map[Failure]string{}, map[Failure]bool{}
	for i := range r.Samples {
		s := &r.Samples[i]
		if s.Outcome == Answered {
			continue
		}
		like := Failure{Outcome: s.Outcome, Code: s.Code, Detail: numbers.ReplaceAllLiteralString(s.Detail, "N")}
		if count[like]++; count[like] == 1 {
			first[like] = s.Detail
		}
		differ[like] = differ[like] || first[like] != s.Detail
	}
	all := sortedFailures(count)
	for i := range all {
		like := all[i]
		like.Requests = 0
		all[i].Detail = first[like]
		if differ[like] {
			all[i].Detail += " (numbers differ)"
		}
	}
	if len(all) <= mostFailures {
		return all
	}
	rest := map[Failure]int{}
	for _, f := range all[mostFailures-1:] {
		rest[Failure{Outcome: f.Outcome, Detail: "other reasons"}] += f.Requests
	}
	return append(all[:mostFailures-1:mostFailures-1], sortedFailures(rest)...)
}

func sortedFailures(count map[Failure]int) []Failure {
	var all []Failure
	for f, n := range count {
		f.Requests = n
		all = append(all, f)
	}
	slices.SortFunc(all, func(a, b Failure) int {
		return cmp.Or(b.Requests-a.Requests, cmp.Compare(a.String(), b.String()))
	})
	return all
}

// rates is the run's rates in a line.
func (r *Report) rates() string {
	s := &r.Summary
	hits := "hit rate unknown"
	if s.HitRate != nil {
		hits = fmt.Sprintf("hit rate %.1f %% of %s prompt tokens", 100**s.HitRate, Number(float64(s.PromptTokens)))
	}
	return fmt.Sprintf("%.2f answers/s, %s output tok/s, %s, %d in flight at most", s.RequestsPerSecond,
		Number(math.Round(s.OutputTokensPerSecond)), hits, s.InFlight)
}

// short writes milliseconds with three figures or more.
func short(m Millis) string {
	switch ms := m.Float(); {
	case ms == 0:
		return "0"
	case ms < 1:
		return fmt.Sprintf("%.3f", ms)
	case ms < 10:
		return fmt.Sprintf("%.2f", ms)
	case ms < 100:
		return fmt.Sprintf("%.1f", ms)
	default:
		return Number(math.Round(ms))
	}
}

// lateLimit is the lateness of the generator beyond which its figures are not only about the target.
const lateLimit = Millis(10 * time.Millisecond)

// Finish sorts the samples, summarises them and adds the notes that follow.
func (r *Report) Finish() {
	slices.SortFunc(r.Samples, func(a, b Sample) int { return cmp.Compare(a.Index, b.Index) })
	r.Summary, r.Kept = Summarize(r.Samples), KeptOf(r.Samples, r.Limits)
	s := &r.Summary
	if s.Late.P99 > lateLimit {
		late := short(s.Late.P99) + " ms at p99"
		if s.Late.Count < LeastForP99 {
			late = "up to " + short(s.Late.Max) + " ms"
		}
		r.Notes = append(r.Notes, "the generator itself sent late, by "+late+", as one that lacks CPU does: the latencies hold its delay too")
	}
	if n := s.Failures[NotSent]; n > 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("the bound on requests in flight was reached; not sent: %d", n))
	}
	if s.Short > 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("answers with fewer tokens than were asked for: %d", s.Short))
	}
}
