package simulate

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-pd/tandem/lab/replay"
)

// WriteHTML writes the report as one page that needs nothing else.
func (r *Report) WriteHTML(w io.Writer) error {
	p := r.Page()
	return p.Write(w)
}

// Page is the report with its plots.
func (r *Report) Page() replay.Page {
	p := replay.Page{
		Title: strings.TrimSpace("Simulation " + r.Name), Subtitle: strings.TrimSpace(r.About), Notes: r.Notes,
		Lines: strings.Split(strings.TrimSpace(r.Advice()), "\n"),
	}
	if r.Skipped > 0 {
		p.Notes = append(slices.Clone(p.Notes), fmt.Sprintf("%d bad rows of the trace were skipped.", r.Skipped))
	}
	p.Verdict, p.Lines = p.Lines[0], p.Lines[1:]
	p.Tables = []replay.Table{r.figures()}
	if len(r.Arms) > 1 {
		p.Tables = append(p.Tables, r.differences())
	}
	if len(r.Published) > 0 {
		p.Tables = append(p.Tables, r.nextToPublished())
	}
	p.Appendix = []replay.Table{r.shares()}
	p.Plots = append(r.sweeps(), r.staged()...)
	p.Plots = append(p.Plots, r.distributions()...)
	p.Plots = append(p.Plots, r.pareto())
	p.Plots = append(p.Plots, r.overTime()...)
	return p
}

// figures is every arm with its spread over the seeds.
func (r *Report) figures() replay.Table {
	t := replay.Table{
		Title: "Arms, mean over seeds",
		Head: []string{"arm", "?fleet", "#goodput", "?over seeds", "#TTFT mean, s", "#p50", "#p90", "#p99", "#ITL mean, ms", "#p99", "#hit rate",
			"#tokens/s", "#shed", "#failed", "#prefill max/mean", "#decode max/mean"},
	}
	if r.Capacity != nil {
		t.Title += "; the other figures are at the highest speed tried that is good enough, or at the lowest"
		t.Head = slices.Insert(t.Head, 2, "#capacity, × speed", "?over seeds")
	}
	for i := range r.Arms {
		a := &r.Arms[i]
		m := a.Stats.text
		g, over := a.Stats["goodput"], none
		if _, ok := a.Stats["goodput"]; ok {
			over = percent(g.Min) + " … " + percent(g.Max)
		}
		row := []string{
			a.Name, a.Fleet, a.Stats.share("goodput"), over, m("ttft_s.mean", 2), m("ttft_s.p50", 2), m("ttft_s.p90", 2), m("ttft_s.p99", 1),
			m("itl_ms.mean", 2), m("itl_ms.p99", 1), m("hit_rate", 3), m("output_tokens_per_s", 0), count(a.Stats["shed"].Mean), count(a.Stats["failed"].Mean),
			m("prefill_imbalance", 2), m("decode_imbalance", 2),
		}
		if r.Capacity != nil {
			row = slices.Insert(row, 2, m("capacity", 2), fmt.Sprintf("%.2f … %.2f%s", a.Stats["capacity"].Min, a.Stats["capacity"].Max, r.bounds(a)))
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// differences is every arm against the baseline.
func (r *Report) differences() replay.Table {
	t := replay.Table{
		Title: "Against " + r.baseline() + " (" + r.tilde() + ")",
		Head:  []string{"arm", "#TTFT mean", "#TTFT p99", "#ITL mean", "#ITL p99", "#hit rate", "#tokens/s", "#goodput"},
	}
	names := []string{"ttft_s.mean", "ttft_s.p99", "itl_ms.mean", "itl_ms.p99", "hit_rate", "output_tokens_per_s", "goodput"}
	if r.Capacity != nil { // each arm's latencies are of a load of its own
		t.Head, names = []string{"arm", "#capacity"}, []string{"capacity"}
	}
	for i := range r.Arms {
		a := &r.Arms[i]
		if a == r.base(a) {
			continue
		}
		row := []string{a.Name}
		for _, name := range names {
			row = append(row, r.Delta(a, name, 1))
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// nextToPublished lists our figures next to the published ones.
func (r *Report) nextToPublished() replay.Table {
	t := replay.Table{Title: "Compared with published figures", Head: []string{"arm", "figure", "#ours", "?over seeds", "#theirs", "#difference", "?source"}}
	for i := range r.Published {
		p := &r.Published[i]
		row := []string{p.Arm, p.label(), none, none, fmt.Sprintf("%.3f", p.Value), none, p.Source}
		if s, ok := r.ours(p); ok {
			row[2], row[3], row[5] = fmt.Sprintf("%.3f", s.Mean), fmt.Sprintf("%.3f … %.3f", s.Min, s.Max), off(s, p.Value, 1)
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// shares is each worker's part in the first seed's run.
func (r *Report) shares() replay.Table {
	t := replay.Table{Title: "Workers, first seed", Head: []string{"arm", "worker", "role", "#requests", "|", "#tokens computed"}}
	for i := range r.Arms {
		a := &r.Arms[i]
		if len(a.Curves.Workers) > 64 {
			continue
		}
		most := map[string]int64{}
		for _, w := range a.Curves.Workers {
			most[w.Role] = max(most[w.Role], w.Tokens)
		}
		for _, w := range a.Curves.Workers {
			t.Rows = append(t.Rows, []string{
				a.Name, w.ID, w.Role, strconv.Itoa(w.Requests), strconv.FormatFloat(100*ratio(float64(w.Tokens), float64(most[w.Role])), 'f', 1, 64), strconv.FormatInt(w.Tokens, 10),
			})
		}
	}
	return t
}

// shownFigure is a figure that is plotted along an axis of load or size.
type shownFigure struct {
	metric, title, unit string
	scale, level        float64
	log                 bool
}

// point adds the figure at x to a line, if there is one.
func (f *shownFigure) point(line *replay.Series, x float64, stats Stats) {
	if s, ok := stats[f.metric]; ok {
		line.X, line.Y = append(line.X, x), append(line.Y, positive(f.scale*s.Mean, f.log))
	}
}

var shown = []shownFigure{
	{"goodput", "Goodput (the level is 90 %)", "%", 100, 90, false},
	{"ttft_s.mean", "TTFT, mean", "s", 1, 0, true},
	{"ttft_s.p90", "TTFT, p90", "s", 1, 0, true},
	{"itl_ms.mean", "ITL, mean", "ms", 1, 0, false},
	{"output_tokens_per_s", "Output tokens a second", "tok/s", 1, 0, false},
	{"hit_rate", "Prompt tokens found cached", "%", 100, 0, false},
}

// sweeps plots the figures along each numeric axis of the sweep, a line an arm;
// where there are several axes, the others' values are in the line's name.
func (r *Report) sweeps() []replay.Plot {
	if len(r.Arms) == 0 || len(r.Arms[0].Point) == 0 {
		return nil
	}
	var plots []replay.Plot
	for axis, value := range r.Arms[0].Point {
		lines := map[string][]*ArmReport{}
		var order []string
		numeric := true
		for i := range r.Arms {
			a := &r.Arms[i]
			_, err := strconv.ParseFloat(a.Point[axis].Text, 64)
			numeric = numeric && err == nil
			name := a.Arm
			for k, p := range a.Point {
				if k != axis {
					name += " " + p.Path + "=" + p.Text
				}
			}
			if lines[name] == nil {
				order = append(order, name)
			}
			lines[name] = append(lines[name], a)
		}
		if !numeric {
			continue
		}
		for _, s := range shown {
			p := replay.Plot{Title: s.title + " against " + value.Path, X: value.Path, Y: s.unit, LogY: s.log, Level: s.level, Marks: true}
			for _, name := range order {
				line := replay.Series{Name: name}
				for _, a := range lines[name] {
					x, _ := strconv.ParseFloat(a.Point[axis].Text, 64)
					s.point(&line, x, a.Stats)
				}
				p.Series = append(p.Series, line)
			}
			plots = append(plots, p)
		}
	}
	return plots
}

// staged plots the figures over the stages of a workload, whose names begin
// with their rates.
func (r *Report) staged() []replay.Plot {
	if len(r.Arms) == 0 || len(r.Arms[0].Stages) < 2 {
		return nil
	}
	var plots []replay.Plot
	for _, s := range shown {
		p := replay.Plot{Title: s.title + " against load", X: "requests/s", Y: s.unit, LogY: s.log, Level: s.level, Marks: true}
		for i := range r.Arms {
			line := replay.Series{Name: r.Arms[i].Name}
			for _, stage := range r.Arms[i].Stages {
				var rate float64
				if _, err := fmt.Sscanf(stage.Name, "%g", &rate); err != nil {
					continue
				}
				s.point(&line, rate, stage.Stats)
			}
			p.Series = append(p.Series, line)
		}
		plots = append(plots, p)
	}
	return plots
}

// distributions plots the shares of requests at or below a latency.
func (r *Report) distributions() []replay.Plot {
	ttft := replay.Plot{Title: "TTFT: share of answers at or below", Help: "first seed", X: "s", Y: "%", LogX: true}
	itl := replay.Plot{Title: "ITL: share of answers at or below", Help: "first seed", X: "ms", Y: "%", LogX: true}
	for i := range r.Arms {
		ttft.Series = append(ttft.Series, shareLine(r.Arms[i].Name, r.Arms[i].Curves.TTFT))
		itl.Series = append(itl.Series, shareLine(r.Arms[i].Name, r.Arms[i].Curves.ITL))
	}
	return []replay.Plot{ttft, itl}
}

// shareLine draws quantiles as a share over the value. One value has one share:
// the highest.
func shareLine(name string, quantiles []float64) replay.Series {
	at := map[float64]float64{}
	for share, x := range quantiles {
		at[max(x, 0.001)] = float64(share)
	}
	line := replay.Series{Name: name}
	for _, x := range slices.Sorted(maps.Keys(at)) {
		line.X, line.Y = append(line.X, x), append(line.Y, at[x])
	}
	return line
}

// pareto is what one user gets against what all get together.
func (r *Report) pareto() replay.Plot {
	p := replay.Plot{Title: "Throughput against interactivity", Help: "up and to the right is better", X: "tok/s a user (1/ITL)", Y: "tok/s", Dots: true, Marks: true}
	for i := range r.Arms {
		line := replay.Series{Name: r.Arms[i].Name}
		points := []Stats{r.Arms[i].Stats}
		for _, s := range r.Arms[i].Stages {
			points = append(points, s.Stats)
		}
		for _, s := range points {
			itl, tokens := s["itl_ms.mean"], s["output_tokens_per_s"]
			if itl.Mean > 0 && tokens.Mean > 0 {
				line.X, line.Y = append(line.X, 1000/itl.Mean), append(line.Y, tokens.Mean)
			}
		}
		p.Series = append(p.Series, line)
	}
	return p
}

// overTime plots the fleet's state.
func (r *Report) overTime() []replay.Plot {
	plots := []replay.Plot{
		{Title: "Requests that wait, over time", Help: "first seed", X: "s", Y: "requests"},
		{Title: "KV in use where decode runs, over time", Help: "first seed, mean over workers", X: "s", Y: "%"},
		{Title: "Batch where decode runs, over time", Help: "first seed, mean over workers", X: "s", Y: "sequences"},
	}
	for i := range r.Arms {
		a := &r.Arms[i]
		use := make([]float64, len(a.Curves.KVUse))
		for k, x := range a.Curves.KVUse {
			use[k] = 100 * x
		}
		for k, y := range [][]float64{a.Curves.Queued, use, a.Curves.Batch} {
			plots[k].Series = append(plots[k].Series, replay.Series{Name: a.Name, X: a.Curves.At, Y: y})
		}
	}
	return plots
}

// positive keeps a logarithm's axis above zero.
func positive(x float64, log bool) float64 {
	if log {
		return max(x, 0.001)
	}
	return x
}
