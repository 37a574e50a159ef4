package simulate

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-pd/tandem/lab/plot"
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
	p.Plots = append(p.Plots, r.ranked())
	for _, plots := range [][]*plot.Plot{r.sweeps(), r.staged(), r.distributions(), {r.pareto()}, r.overTime()} {
		for _, drawing := range plots {
			p.Plots = append(p.Plots, drawing)
		}
	}
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
				a.Name, w.ID, w.Role, plot.Number(float64(w.Requests)), strconv.FormatFloat(100*ratio(float64(w.Tokens), float64(most[w.Role])), 'f', 1, 64), plot.Number(float64(w.Tokens)),
			})
		}
	}
	return t
}

// shownFigure is a figure that is plotted along an axis of load or size.
type shownFigure struct {
	metric, title string
	axis          plot.Axis
	scale         float64
}

// point adds the figure at x to a line, if there is one.
func (f *shownFigure) point(line *plot.Series, x float64, stats Stats) {
	if s, ok := stats[f.metric]; ok {
		line.X, line.Y = append(line.X, x), append(line.Y, positive(f.scale*s.Mean, f.axis.Log))
	}
}

var shown = []shownFigure{
	{"goodput", "Goodput", plot.Axis{Name: "goodput", Unit: "%"}, 100},
	{"ttft_s.mean", "TTFT, mean", plot.Axis{Name: "mean TTFT", Unit: "s", Log: true}, 1},
	{"ttft_s.p90", "TTFT, p90", plot.Axis{Name: "p90 of TTFT", Unit: "s", Log: true}, 1},
	{"itl_ms.mean", "ITL, mean", plot.Axis{Name: "mean ITL", Unit: "ms"}, 1},
	{"output_tokens_per_s", "Output tokens a second", plot.Axis{Name: "output", Unit: "tokens/s"}, 1},
	{"hit_rate", "Prompt tokens found cached", plot.Axis{Name: "hit rate", Unit: "%"}, 100},
}

// limits are the plan's, where a figure is held to one.
func (r *Report) limits(metric string) []plot.Limit {
	switch {
	case metric == "goodput":
		return []plot.Limit{{Name: plot.Number(100*enough) + " %", At: 100 * enough}}
	case slices.ContainsFunc(r.Arms, func(a ArmReport) bool { return a.slo.TTFT != r.SLO.TTFT || a.slo.ITL != r.SLO.ITL }):
		return nil // the arms are held to different ones
	case strings.HasPrefix(metric, "ttft_s") && r.SLO.TTFT > 0:
		return []plot.Limit{{Name: "limit of TTFT " + plot.Number(r.SLO.TTFT.Seconds()) + " s", At: r.SLO.TTFT.Seconds()}}
	case strings.HasPrefix(metric, "itl_ms") && r.SLO.ITL > 0:
		return []plot.Limit{{Name: "limit of ITL " + plot.Number(float64(r.SLO.ITL)/1e6) + " ms", At: float64(r.SLO.ITL) / 1e6}}
	}
	return nil
}

// upright is limits of the values along x.
func upright(limits []plot.Limit) []plot.Limit {
	for i := range limits {
		limits[i].OnX = true
	}
	return limits
}

// mostBars is how many arms the first plot compares.
const mostBars = 16

// ranked plots what the arms are ranked by, each with its range over the seeds. Of many arms it has the best, and the
// baseline.
func (r *Report) ranked() *plot.Bars {
	p := &plot.Bars{Title: "Goodput", Axis: plot.Axis{Name: "goodput", Unit: "%"}, Limits: r.limits("goodput")}
	scale := 100.0
	if r.Capacity != nil {
		p.Title, p.Axis, p.Limits, scale = "Capacity", plot.Axis{Name: "capacity", Unit: "× the workload's speed"}, nil, 1
	}
	p.Help = "share of requests within the limits; mean and range over the seeds"
	if r.Capacity != nil {
		p.Help = "speed at which " + percent(r.Capacity.Share) + " of the requests are good; mean and range over the seeds"
	}
	if r.single() {
		p.Help += ": one seed has no range, and ranks nothing"
	}
	for _, a := range r.drawnArms(mostBars) {
		if s, ok := a.Stats[r.ranking()]; ok {
			p.Bars = append(p.Bars, plot.Bar{Name: a.Name, Value: scale * s.Mean, Min: scale * s.Min, Max: scale * s.Max})
		}
	}
	if n := len(r.Arms); n > mostBars {
		p.Help += fmt.Sprintf("; %d of %d arms, the table has all", mostBars, n)
	}
	return p
}

// drawnArms are the arms that plots have room for, in the report's order: of more than most, the baseline and the best.
func (r *Report) drawnArms(most int) []*ArmReport {
	all := make([]*ArmReport, len(r.Arms))
	for i := range r.Arms {
		all[i] = &r.Arms[i]
	}
	if len(all) <= most {
		return all
	}
	chosen := r.best(all)
	if base := &r.Arms[r.Baseline]; !slices.Contains(chosen[:most], base) {
		chosen[most-1] = base
	}
	chosen = chosen[:most]
	return slices.DeleteFunc(all, func(a *ArmReport) bool { return !slices.Contains(chosen, a) })
}

// chosen names the arms that a plot draws; empty for all.
func (r *Report) chosen() string {
	if len(r.Arms) <= plot.MostSeries {
		return ""
	}
	return fmt.Sprintf("; %d of %d arms: the best and the baseline", plot.MostSeries, len(r.Arms))
}

// sweeps plots the figures along each numeric axis of the sweep, a line an arm;
// where there are several axes, the others' values are in the line's name.
func (r *Report) sweeps() []*plot.Plot {
	if len(r.Arms) == 0 || len(r.Arms[0].Point) == 0 {
		return nil
	}
	var plots []*plot.Plot
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
			p := &plot.Plot{Title: s.title + " against " + value.Path, X: plot.Axis{Name: value.Path}, Y: s.axis, Limits: r.limits(s.metric), Marks: true}
			for _, name := range order {
				line := plot.Series{Name: name}
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

// staged plots the figures over the stages of a workload, whose names begin with their rates.
func (r *Report) staged() []*plot.Plot {
	if len(r.Arms) == 0 || len(r.Arms[0].Stages) < 2 {
		return nil
	}
	var plots []*plot.Plot
	for _, s := range shown {
		p := &plot.Plot{Title: s.title + " against load", Help: strings.TrimPrefix(r.chosen(), "; "), X: plot.Axis{Name: "load", Unit: "requests/s"}, Y: s.axis, Limits: r.limits(s.metric), Marks: true}
		for _, a := range r.drawnArms(plot.MostSeries) {
			line := plot.Series{Name: a.Name}
			for _, stage := range a.Stages {
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
func (r *Report) distributions() []*plot.Plot {
	seed := "first seed" + r.chosen()
	share := plot.Axis{Name: "share", Unit: "%"}
	ttft := &plot.Plot{Title: "TTFT: share of answers at or below", Help: seed, X: plot.Axis{Name: "TTFT", Unit: "s", Log: true}, Y: share, Limits: upright(r.limits("ttft_s"))}
	itl := &plot.Plot{Title: "ITL: share of answers at or below", Help: seed, X: plot.Axis{Name: "ITL", Unit: "ms", Log: true}, Y: share, Limits: upright(r.limits("itl_ms"))}
	for _, a := range r.drawnArms(plot.MostSeries) {
		ttft.Series = append(ttft.Series, shareLine(a.Name, a.Curves.TTFT))
		itl.Series = append(itl.Series, shareLine(a.Name, a.Curves.ITL))
	}
	return []*plot.Plot{ttft, itl}
}

// shareLine draws quantiles as a share over the value. One value has one share: the highest.
func shareLine(name string, quantiles []float64) plot.Series {
	at := map[float64]float64{}
	for share, x := range quantiles {
		at[max(x, 0.001)] = float64(share)
	}
	line := plot.Series{Name: name}
	for _, x := range slices.Sorted(maps.Keys(at)) {
		line.X, line.Y = append(line.X, x), append(line.Y, at[x])
	}
	return line
}

// pareto plots one user's speed against the fleet's throughput.
func (r *Report) pareto() *plot.Plot {
	p := &plot.Plot{
		Title: "Throughput against interactivity", Help: "up and to the right is better" + r.chosen(),
		X: plot.Axis{Name: "speed of one answer (1/ITL)", Unit: "tokens/s"}, Y: plot.Axis{Name: "output of the fleet", Unit: "tokens/s"}, Dots: true, Marks: true,
	}
	for _, a := range r.drawnArms(plot.MostSeries) {
		line := plot.Series{Name: a.Name}
		points := []Stats{a.Stats}
		for _, s := range a.Stages {
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
func (r *Report) overTime() []*plot.Plot {
	seed := "first seed" + r.chosen()
	clock := plot.Axis{Name: "time since the start", Unit: "s"}
	plots := []*plot.Plot{
		{Title: "Requests that wait, over time", Help: seed, X: clock, Y: plot.Axis{Name: "waiting requests"}},
		{Title: "KV in use where decode runs, over time", Help: seed + ", mean over workers", X: clock, Y: plot.Axis{Name: "KV in use", Unit: "%"}},
		{Title: "Batch where decode runs, over time", Help: seed + ", mean over workers", X: clock, Y: plot.Axis{Name: "batch", Unit: "sequences"}},
	}
	for _, a := range r.drawnArms(plot.MostSeries) {
		use := make([]float64, len(a.Curves.KVUse))
		for k, x := range a.Curves.KVUse {
			use[k] = 100 * x
		}
		for k, y := range [][]float64{a.Curves.Queued, use, a.Curves.Batch} {
			plots[k].Series = append(plots[k].Series, plot.Series{Name: a.Name, X: a.Curves.At, Y: y})
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
