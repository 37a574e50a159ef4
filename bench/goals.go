package main

import (
	"fmt"
	"strings"
	"time"
)

// row is a figure of the tables.
type row struct {
	label  string
	figure string  // its name in figures.Of
	per    float64 // how many of the figure's unit are one of the table's
	unit   string  // the table's
	goal   goal
	nginx  string // nginx's figure to compare with; empty for the same
	bare   string // the bare minimum's; empty for the same
}

// goal is the two-leg gateway's target; zero is none.
type goal struct {
	times float64 // relative to nginx in the same round
	most  float64 // in the row's unit
	above float64 // at most so much more than nginx, in the row's unit
}

// text writes the goal.
func (g goal) text(unit string) string {
	switch {
	case g.times > 0:
		return fmt.Sprintf("≤ %g × nginx", g.times)
	case g.above > 0:
		return fmt.Sprintf("≤ nginx + %g %s", g.above, unit)
	case g.most > 0:
		return fmt.Sprintf("≤ %g %s", g.most, unit)
	}
	return ""
}

// reached reports whether the gateway's figure does, both in the row's unit; ok
// is false where nginx is needed and missing.
func (g goal) reached(gateway, nginx, times float64) (reached, ok bool) {
	switch {
	case g.times > 0:
		return times <= g.times, times > 0
	case g.above > 0:
		return gateway <= nginx+g.above, nginx > 0
	}
	return gateway <= g.most, true
}

// compared is the nginx figure of a row.
func (w row) compared() string {
	if w.nginx != "" {
		return w.nginx
	}
	return w.figure
}

// bound is the bare minimum's figure of a row.
func (w row) bound() string {
	if w.bare != "" {
		return w.bare
	}
	return w.figure
}

// rows are the figures that have goals, and those next to them.
func (r *report) rows() []row {
	p := r.Plan
	all := []row{
		{label: "short request, saturated", figure: "saturated_us", goal: goal{times: 2.7}},
		{label: "of it user time", figure: "saturated_user_us", goal: goal{most: 30}},
		{label: fmt.Sprintf("short request at %g/s", p.AtOnce.PerSecond), figure: "short_us", goal: goal{times: 2.4}},
		{label: "of it user time", figure: "short_user_us"},
	}
	for _, streams := range p.PacedStreams {
		rate := p.chunksPerSecond(streams)
		all = append(all,
			row{label: fmt.Sprintf("lone chunk, %d streams, %.0f/s in all", streams, rate), figure: at("chunk", rate) + "_us", goal: goal{times: 1.2}},
			row{label: "of it user time", figure: at("chunk", rate) + "_user_us"})
	}
	all = append(all, r.promptRows()...)
	for _, rate := range p.Rates {
		p50 := row{label: fmt.Sprintf("added TTFT p50 at %g/s", rate.PerSecond), figure: "added_" + at("ttft_p50_us", rate.PerSecond), per: 1000, unit: "ms"}
		p99 := row{label: fmt.Sprintf("added TTFT p99 at %g/s", rate.PerSecond), figure: "added_" + at("ttft_p99_us", rate.PerSecond), per: 1000, unit: "ms"}
		if rate.PerSecond == 200 {
			p50.goal, p99.goal = goal{most: 0.3}, goal{above: 0.5}
		}
		all = append(all, p50, p99)
	}
	all = append(all,
		row{label: fmt.Sprintf("an open stream, of %d", p.Streams), figure: "stream_kib", unit: "kB", goal: goal{most: 20}},
		row{label: "of it goroutines' stacks", figure: "stream_stack_kib", unit: "kB"},
		row{label: "of it heap", figure: "stream_heap_kib", unit: "kB"},
		row{label: fmt.Sprintf("an idle connection, of %d", p.IdleConnections), figure: "connection_kib", unit: "kB", goal: goal{most: 6}},
		row{label: "of it goroutines' stacks", figure: "connection_stack_kib", unit: "kB"},
		row{label: "of it heap", figure: "connection_heap_kib", unit: "kB"},
		row{label: fmt.Sprintf("memory, most of %v saturated", p.Soak), figure: "soak_max_mib", unit: "MiB", goal: goal{most: 64}},
	)
	if p.Soak >= time.Minute { // a heap that still settles grows fast for seconds
		all = append(all, row{label: "its growth a minute, second half", figure: "soak_mib_a_minute", unit: "MiB"})
	}
	for i := range all {
		if all[i].unit == "" {
			all[i].unit = "µs"
		}
		if all[i].per == 0 {
			all[i].per = 1
		}
	}
	return all
}

// promptRows are the long prompts' figures.
func (r *report) promptRows() []row {
	goals := map[string]goal{
		"prompt_40kB_new": {times: 6}, "prompt_40kB_seen": {times: 2.5}, "prompt_400kB_new": {most: 6}, "prompt_400kB_seen": {most: 1},
		"prompt_400kB_new_no_tokenizer": {most: 1}, "prompt_400kB_seen_no_tokenizer": {most: 0.6},
	}
	labels := map[string]string{
		"new": "new", "seen": "seen, and one more message",
		"new_no_tokenizer": "new, no tokenizer", "seen_no_tokenizer": "seen, no tokenizer",
	}
	var all []row
	for _, step := range r.Plan.Prompts {
		for i, k := range promptKinds() {
			w := row{
				label:  fmt.Sprintf("prompt of %d kB, %s", step.Bytes/1000, labels[k.name]),
				figure: k.key(step) + "_us", goal: goals[k.key(step)], nginx: promptKinds()[0].key(step) + "_us",
				bare: strings.Replace(k.key(step), "_seen", "_new", 1) + "_us",
			}
			if step.Bytes >= 100_000 {
				w.per, w.unit = 1000, "ms"
			}
			all = append(all, w)
			if i == 0 {
				all = append(all, row{label: "of it user time", figure: k.key(step) + "_user_us", per: w.per, unit: w.unit})
			}
		}
	}
	return all
}

// goals is the table of targets, with nginx and HAProxy of the same run.
func (r *report) goals() (table, bool) {
	gateway, nginx, haproxy, bare := r.find(gateway2Key), r.find(nginxKey), r.find(haproxyKey), r.find(bareKey)
	t := table{
		title: "Goals",
		rows:  [][]string{{"what", "goal", "reached", "gateway, two legs", "× nginx", "nginx, one leg", "HAProxy, one leg", "bare minimum, two legs"}},
		notes: []string{
			"Medians of the rounds, the least and the most in brackets. CPU time is that of the measured process by the kernel's schedstat, less what it takes idle. " +
				"User time is the share that the clock tick samples, 250 times a second.",
			fmt.Sprintf("Short: a prompt of %d tokens and an answer whose %d chunks come in one piece; saturated by %d connections that send again at once. "+
				"A lone chunk: of streams that were open before. nginx and HAProxy see a long prompt as bytes: new and seen are one figure. "+
				"To a long chat the bare minimum adds as many token ids as the gateway does.", r.Plan.PromptTokens, r.Plan.Chunks, r.Plan.Connections),
		},
	}
	if gateway == nil {
		return t, false
	}
	for _, w := range r.rows() {
		s, ok := gateway.Of[w.figure]
		if !ok {
			continue
		}
		cells := []string{w.label, w.goal.text(w.unit), "", w.cell(s), "", "", "", ""}
		var theirs, times spread
		if nginx != nil {
			if theirs, ok = nginx.Of[w.compared()]; ok {
				cells[5] = w.cell(theirs)
				if theirs.Min > 0 {
					times = spreadOf(ratios(gateway.Rounds[w.figure], nginx.Rounds[w.compared()]))
					cells[4] = wide(times)
				}
			}
		}
		if haproxy != nil {
			if theirs, ok := haproxy.Of[w.compared()]; ok {
				cells[6] = w.cell(theirs)
			}
		}
		if bare != nil && len(bare.Rounds[w.bound()]) > 0 {
			cells[7] = w.cell(bare.Of[w.bound()])
		}
		if cells[1] != "" {
			reached, ok := w.goal.reached(s.Median/w.per, theirs.Median/w.per, times.Median)
			cells[2] = map[[2]bool]string{{true, true}: "yes", {false, true}: "**no**"}[[2]bool{reached, ok}]
		}
		t.rows = append(t.rows, cells)
	}
	t.notes = append(t.notes, r.Missing...)
	return t, len(t.rows) > 1
}

// bound compares the gateway with the bare minimum.
func (r *report) bound() (table, bool) {
	t := table{
		title: "The bound",
		rows:  [][]string{{"what", "gateway, two legs", "bare minimum, goroutines", "gateway above it", "bare minimum, epoll", "gateway above it"}},
		notes: []string{"The bare minimum is a Go program that reads the request, forwards it to prefill, reads the answer, forwards to decode and relays what comes: " +
			"it parses nothing but a Content-Length and a body's end, and decides, logs and counts nothing. Once with a goroutine for each client, once as one thread with raw system calls on epoll. " +
			"To both legs of a long chat it adds as many token ids as the gateway does, of a model with a tokenizer; the gateway also reads them once more, as engines repeat them. To the bare minimum a prompt is never seen before."},
	}
	gateway := r.find(gateway2Key)
	if gateway == nil {
		return t, false
	}
	for _, w := range r.rows() {
		cells, bare := []string{w.label, ""}, false
		ours, ok := gateway.Of[w.figure]
		if !ok {
			continue
		}
		cells[1] = w.cell(ours)
		for _, key := range []string{bareKey, bareEpollKey} {
			f := r.find(key)
			if f == nil || len(f.Rounds[w.bound()]) == 0 {
				cells = append(cells, "", "")
				continue
			}
			bare = true
			over := spreadOf(differences(gateway.Rounds[w.figure], f.Rounds[w.bound()]))
			cells = append(cells, w.cell(f.Of[w.bound()]), w.cell(over))
		}
		if bare {
			t.rows = append(t.rows, cells)
		}
	}
	return t, len(t.rows) > 1
}

// versus compares the two gateways of a run.
func (r *report) versus() (table, bool) {
	a, b := r.find(gateway2Key), r.find(againstKey)
	if a == nil || b == nil {
		return table{}, false
	}
	t := table{
		title: "The two gateways",
		rows:  [][]string{{"what", "gateway", "against", "gateway / against"}},
		notes: []string{fmt.Sprintf("Two legs, in turns. Ratios are of the same round: below 1 the gateway takes less. Against: %s.", r.Against)},
	}
	for _, w := range r.rows() {
		ours, ok := a.Of[w.figure]
		theirs, both := b.Of[w.figure]
		if !ok || !both {
			continue
		}
		times := ""
		if theirs.Min > 0 {
			times = wide(spreadOf(ratios(a.Rounds[w.figure], b.Rounds[w.figure])))
		}
		t.rows = append(t.rows, []string{w.label, w.cell(ours), w.cell(theirs), times})
	}
	return t, len(t.rows) > 1
}

// cell writes a figure in the row's unit.
func (w row) cell(s spread) string {
	s = spread{s.Median / w.per, s.Min / w.per, s.Max / w.per}
	if s.Min == s.Max {
		return number3(s.Median) + " " + w.unit
	}
	return wide(s) + " " + w.unit
}
