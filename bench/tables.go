package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"
)

// quiet is the share of the machine that others may take before the figures are uncertain.
const quiet = 0.05

// table is rows of cells, the first of them its head.
type table struct {
	title string
	rows  [][]string
	notes []string
}

// lists are the run's tables: those that it has figures for.
func (r *report) lists() []table {
	var all []table
	for _, make := range []func() (table, bool){r.goals, r.versus, r.bound, r.latencies, r.costs, r.memories} {
		if t, ok := make(); ok {
			all = append(all, t)
		}
	}
	return all
}

// latencies are TTFT by rate and arm.
func (r *report) latencies() (table, bool) {
	t := table{
		title: "Time to first token",
		rows:  [][]string{{"requests/s", "arm", "p50 ms", "p99 ms", "added p50 ms", "added p99 ms"}},
		notes: []string{"From the moment at which the request was due. Added: less the direct arm of the same round and the same legs."},
	}
	late := 0.0
	for _, rate := range r.Plan.Rates {
		for _, f := range r.Arms {
			p50, p99 := at("ttft_p50_us", rate.PerSecond), at("ttft_p99_us", rate.PerSecond)
			if _, ok := f.Of[p50]; !ok {
				continue
			}
			row := []string{number3(rate.PerSecond), f.Name, millis(f.Of[p50]), millis(f.Of[p99]), "", ""}
			if f.Measured {
				row[4], row[5] = millis(f.Of["added_"+p50]), millis(f.Of["added_"+p99])
			}
			t.rows = append(t.rows, row)
			late = max(late, f.Of[at("late_p99_us", rate.PerSecond)].Median)
		}
	}
	t.notes = append(t.notes, fmt.Sprintf("The client itself sent late by at most %s ms (p99 of its worst arm); that is in all arms alike.", number3(late/1000)))
	return t, len(t.rows) > 1
}

// costs are CPU times by arm.
func (r *report) costs() (table, bool) {
	t := table{
		title: "CPU of every arm, µs",
		rows:  [][]string{{"process", fmt.Sprintf("short at %g/s", r.Plan.AtOnce.PerSecond), "saturated", "user time of it", "requests/s then", "of a core"}},
	}
	var chunks []string
	for _, streams := range r.Plan.PacedStreams {
		name := at("chunk", r.Plan.chunksPerSecond(streams)) + "_us"
		chunks = append(chunks, name)
		t.rows[0] = append(t.rows[0], fmt.Sprintf("chunk at %.0f/s", r.Plan.chunksPerSecond(streams)))
	}
	t.rows[0] = append(t.rows[0], "idle, of a core")
	var limits []string
	for _, f := range r.Arms {
		perSecond := f.Of["saturated_per_second"].Median
		if !f.Measured {
			if perSecond > 0 {
				limits = append(limits, fmt.Sprintf("%s %.0f/s", f.Name, perSecond))
			}
			continue
		}
		row := []string{f.Name, f.cell("short_us"), f.cell("saturated_us"), f.cell("saturated_user_us"), "", ""}
		if perSecond > 0 {
			row[4], row[5] = fmt.Sprintf("%.0f", perSecond), percent(f.Of["saturated_core_share"].Median)
		}
		for _, name := range chunks {
			row = append(row, f.cell(name))
		}
		if strings.Join(row[1:], "") != "" {
			t.rows = append(t.rows, append(row, fmt.Sprintf("%.2f %%", 100*f.IdleCPU)))
		}
	}
	if came := r.chunkRates(); came != "" {
		t.notes = append(t.notes, "Chunks that came: "+came+".")
	}
	if len(limits) > 0 {
		t.notes = append(t.notes, "What client and engines do with nothing between: "+strings.Join(limits, ", ")+". A process that had less than a core's worth to do was not the limit.")
	}
	return t, len(t.rows) > 1
}

// chunkRates are how many chunks a second there really were: the slowest arm's and the fastest's.
func (r *report) chunkRates() string {
	var out []string
	for _, streams := range r.Plan.PacedStreams {
		name := at("chunk", r.Plan.chunksPerSecond(streams)) + "_per_second"
		var medians []float64
		for _, f := range r.Arms {
			if s, ok := f.Of[name]; ok {
				medians = append(medians, s.Median)
			}
		}
		if s := spreadOf(medians); len(medians) > 0 {
			out = append(out, fmt.Sprintf("%.0f–%.0f/s with %d streams", s.Min, s.Max, streams))
		}
	}
	return strings.Join(out, ", ")
}

// cell writes a figure unchanged, or nothing without one.
func (f *figures) cell(name string) string {
	s, ok := f.Of[name]
	if !ok {
		return ""
	}
	return wide(s)
}

// memories are resident sets by arm.
func (r *report) memories() (table, bool) {
	t := table{
		title: "Memory",
		rows: [][]string{{
			"process", "idle MiB", fmt.Sprintf("with %d streams MiB", r.Plan.Streams), "kB a stream", "heap", "stacks",
			fmt.Sprintf("with %d idle connections MiB", r.Plan.IdleConnections), "kB a connection", "heap", "stacks", fmt.Sprintf("saturated for %v, most MiB", r.Plan.Soak), "MiB a minute",
		}},
		notes: []string{"Resident set of processes that have done nothing else, measured once. Idle is after as many requests, on a few connections, as there are streams later; each stream has its connection, and a chunk once a second. " +
			"Each idle connection has had one request; as many went through before on a few. Heap and stacks are go_memstats_heap_inuse_bytes and go_memstats_stack_inuse_bytes of /metrics. " +
			"Growth a minute is the slope of the second half."},
	}
	for _, f := range r.Arms {
		row := []string{f.Name}
		for _, name := range []string{
			"stream_before_mib", "stream_mib", "stream_kib", "stream_heap_kib", "stream_stack_kib",
			"connection_mib", "connection_kib", "connection_heap_kib", "connection_stack_kib", "soak_max_mib", "soak_mib_a_minute",
		} {
			cell := ""
			if s, ok := f.Of[name]; ok {
				cell = number3(s.Median)
			}
			row = append(row, cell)
		}
		if strings.Join(row[1:], "") != "" {
			t.rows = append(t.rows, row)
		}
	}
	return t, len(t.rows) > 1
}

// where is the run in a sentence.
func (r *report) where() string {
	version := func(name, v string) string {
		if v == "" {
			return name + " was absent and is left out"
		}
		return name + " " + v
	}
	pinned := "all processes share the cores"
	if r.Pinned {
		pinned = "the measured process alone on one core, engines and client on the rest"
	}
	more := ""
	if r.Flags != "" {
		more = " Flags of the gateway: " + r.Flags + "."
	}
	if r.Others > quiet {
		more += fmt.Sprintf("\n**Other processes took %s of the machine meanwhile: the latencies, p99 above all, are as much theirs. Run it again when it is quiet.**", percent(r.Others))
	}
	return fmt.Sprintf("%s, tree at %s, %s, Linux %s, %d cores (%s); %s; %s with one worker process, %s with one thread and option http-no-delay. "+
		"Prompts of %d tokens and a chat template, each another; answers of %d chunks, %v apart; %d rounds, seed %d.%s",
		r.Began.Format(time.DateOnly), r.Version, r.Go, r.Kernel, r.Cores, r.CPU, pinned, version("nginx", r.Nginx), version("HAProxy", r.HAProxy),
		r.Plan.PromptTokens, r.Plan.Chunks, r.Plan.Pace, r.Plan.Rounds, r.Plan.Seed, more)
}

// page is the run as docs/performance.md has it: the figures that have goals.
func (r *report) page() string {
	t, _ := r.goals()
	t.rows = slices.DeleteFunc(t.rows, func(row []string) bool { return row[1] == "" })
	return r.markdown(t)
}

// markdown formats the run with some of its tables.
func (r *report) markdown(tables ...table) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", r.where())
	for _, t := range tables {
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
