package main

import (
	"fmt"
	"io"
	"math"
	"strings"
	"time"
)

// quiet is the share of the machine that others may take before the figures
// are uncertain.
const quiet = 0.05

// table is rows of cells, the first of them its head.
type table struct {
	title string
	rows  [][]string
	notes []string
}

// lists are the run's tables.
func (r *report) lists() []table {
	all := []table{r.latencies(), r.costs(), r.memories()}
	if r.Others > quiet {
		all[0].notes = append(all[0].notes, fmt.Sprintf("**Other processes took %s of the machine meanwhile: the latencies, p99 above all, are as much theirs. Run it again when it is quiet.**", percent(r.Others)))
	}
	return append(all, r.ratios()...)
}

// latencies are TTFT by rate and arm.
func (r *report) latencies() table {
	t := table{
		title: "Time to first token",
		rows:  [][]string{{"requests/s", "arm", "p50 ms", "p99 ms", "added p50 ms", "added p99 ms"}},
		notes: []string{"From the moment at which the request was due. Added: less the direct arm of the same round and the same legs. Medians of the rounds, the least and the most in brackets."},
	}
	late := 0.0
	for _, rate := range r.Plan.Rates {
		for _, f := range r.Arms {
			s := f.step(rate.PerSecond)
			row := []string{number3(rate.PerSecond), f.Name, millis(s.P50), millis(s.P99), "", ""}
			if s.AddedP50 != nil {
				row[4], row[5] = millis(*s.AddedP50), millis(*s.AddedP99)
			}
			t.rows = append(t.rows, row)
			late = max(late, s.LateP99.Median)
		}
	}
	t.notes = append(t.notes, fmt.Sprintf("The client itself sent late by at most %s ms (p99 of its worst arm); that is in all arms alike.", number3(late/1000)))
	return t
}

// costs are CPU times by arm.
func (r *report) costs() table {
	p := r.Plan
	t := table{
		title: "CPU",
		rows:  [][]string{{"process", fmt.Sprintf("µs a request at %g/s", p.AtOnce.PerSecond), "saturated", "requests/s then", "of a core", "µs a lone chunk"}},
		notes: []string{
			fmt.Sprintf("Time on a core of the measured process alone, by the kernel's schedstat, less what it takes idle. Requests are those of answers whose %d chunks come in one piece; saturated: %d connections that ask again at once.",
				p.Chunks, p.Connections),
			fmt.Sprintf("A lone chunk: the difference between answers of %d and of %d chunks, %v apart, at %g requests/s.", p.LongChunks, p.Chunks, p.Pace, p.Slope.PerSecond),
		},
	}
	for _, rate := range p.Rates {
		t.rows[0] = append(t.rows[0], fmt.Sprintf("with %d of them at %g/s", p.Chunks, rate.PerSecond))
	}
	t.rows[0] = append(t.rows[0], "idle, of a core")
	var limits []string
	for _, f := range r.Arms {
		if !f.Measured {
			limits = append(limits, fmt.Sprintf("%s %.0f/s", f.Name, f.Saturation.PerSecond.Median))
			continue
		}
		row := []string{
			f.Name, wide(f.CPUAtOnce), wide(f.Saturation.CPUPerRequest), fmt.Sprintf("%.0f", f.Saturation.PerSecond.Median),
			percent(f.Saturation.Busy.Median), wide(f.CPUPerChunk),
		}
		for _, rate := range p.Rates {
			row = append(row, wide(*f.step(rate.PerSecond).CPUPerRequest))
		}
		t.rows = append(t.rows, append(row, fmt.Sprintf("%.2f %%", 100*f.IdleCPU)))
	}
	t.notes = append(t.notes, "What client and engines do with nothing between: "+strings.Join(limits, ", ")+". A process that had less than a core's worth to do was not the limit.")
	return t
}

// memories are resident sets by arm.
func (r *report) memories() table {
	t := table{
		title: "Memory",
		rows:  [][]string{{"process", "idle MB", fmt.Sprintf("with %d streams MB", r.Plan.Streams), "kB a stream"}},
		notes: []string{"Resident set of a process that has done nothing else; idle is after a hundred requests. Each stream has its connection, and says something once a second."},
	}
	for _, f := range r.Arms {
		if f.Memory != nil {
			t.rows = append(t.rows, []string{
				f.Name, number3(float64(f.Memory.Idle) / (1 << 20)), number3(float64(f.Memory.Open) / (1 << 20)),
				number3(float64(f.Memory.PerStream) / (1 << 10)),
			})
		}
	}
	return t
}

// ratios compare the gateway with nginx; none where there is no nginx.
func (r *report) ratios() []table {
	nginx := r.find("nginx_one_leg")
	if nginx == nil {
		return nil
	}
	p := r.Plan
	columns := []struct {
		name   string
		figure func(*figures) float64
	}{
		{fmt.Sprintf("CPU a request at %g/s", p.AtOnce.PerSecond), func(f *figures) float64 { return f.CPUAtOnce.Median }},
		{"saturated", func(f *figures) float64 { return f.Saturation.CPUPerRequest.Median }},
		{"CPU a lone chunk", func(f *figures) float64 { return f.CPUPerChunk.Median }},
	}
	for _, rate := range p.Rates {
		columns = append(columns, struct {
			name   string
			figure func(*figures) float64
		}{fmt.Sprintf("added TTFT p50 at %g/s", rate.PerSecond), func(f *figures) float64 { return f.step(rate.PerSecond).AddedP50.Median }})
	}
	t := table{
		title: "Compared with nginx",
		rows:  [][]string{{"process"}},
		notes: []string{"How many times what nginx takes in the same run. A request of two legs is two exchanges with workers where nginx has one."},
	}
	for _, c := range columns {
		t.rows[0] = append(t.rows[0], c.name)
	}
	for _, f := range r.Arms {
		if !f.Measured || f == nginx {
			continue
		}
		row := []string{f.Name}
		for _, c := range columns {
			row = append(row, fmt.Sprintf("%.1f×", c.figure(f)/c.figure(nginx)))
		}
		t.rows = append(t.rows, row)
	}
	return []table{t}
}

// where is the run in a sentence.
func (r *report) where() string {
	nginx := "nginx was absent and is left out (on Debian: `apt-get install --no-install-recommends nginx-light`)"
	if r.Nginx != "" {
		nginx = "nginx " + r.Nginx + " with one worker process"
	}
	pinned := "all processes share the cores"
	if r.Pinned {
		pinned = "the measured process alone on one core, engines and client on the rest"
	}
	return fmt.Sprintf("%s, %s at %s, %s, Linux %s, %d cores (%s); %s; %s. Prompts of %d tokens and a chat template, each another; answers of %d chunks, %v apart; %d rounds, seed %d.",
		r.Began.Format(time.DateOnly), "tree", r.Version, r.Go, r.Kernel, r.Cores, r.CPU, pinned, nginx,
		r.Plan.PromptTokens, r.Plan.Chunks, r.Plan.Pace, r.Plan.Rounds, r.Plan.Seed)
}

// tables is the run in Markdown.
func (r *report) tables() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", r.where())
	for _, t := range r.lists() {
		fmt.Fprintf(&b, "\n### %s\n\n", t.title)
		for i, row := range t.rows {
			fmt.Fprintf(&b, "| %s |\n", strings.Join(row, " | "))
			if i == 0 {
				fmt.Fprintf(&b, "|%s\n", strings.Repeat("---|", len(row)))
			}
		}
		fmt.Fprintf(&b, "\n%s\n", strings.Join(t.notes, "\n"))
	}
	return b.String()
}

// writeText writes the run for a terminal.
func (r *report) writeText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", r.where())
	for _, t := range r.lists() {
		widths := make([]int, len(t.rows[0]))
		for _, row := range t.rows {
			for i, cell := range row {
				widths[i] = max(widths[i], len([]rune(cell)))
			}
		}
		fmt.Fprintf(&b, "\n%s\n", t.title)
		for _, row := range t.rows {
			for i, cell := range row {
				fmt.Fprintf(&b, "  %s%s", cell, strings.Repeat(" ", widths[i]-len([]rune(cell))))
			}
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "  %s\n", strings.Join(t.notes, "\n  "))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// millis writes a spread of microseconds in milliseconds.
func millis(s spread) string {
	return fmt.Sprintf("%s (%s–%s)", number3(s.Median/1000), number3(s.Min/1000), number3(s.Max/1000))
}

// wide writes a spread as it is.
func wide(s spread) string {
	return fmt.Sprintf("%s (%s–%s)", number3(s.Median), number3(s.Min), number3(s.Max))
}

func percent(share float64) string { return fmt.Sprintf("%.0f %%", 100*share) }

// number3 writes three figures at least, and never an exponent.
func number3(x float64) string {
	switch a := math.Abs(x); {
	case a >= 99.95:
		return fmt.Sprintf("%.0f", x)
	case a >= 9.995:
		return fmt.Sprintf("%.1f", x)
	case a >= 0.9995:
		return fmt.Sprintf("%.2f", x)
	case x == 0:
		return "0"
	default:
		return fmt.Sprintf("%.3f", x)
	}
}
