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
		Title: strings.TrimSpace("Simulation " + r.Name), Subtitle: strings.TrimSpace(r.About), Notes: r.notes(),
		Tables: r.tables(true), Lines: strings.Split(strings.TrimSpace(r.Advice()), "\n"),
	}
	p.Verdict, p.Lines = p.Lines[0], p.Lines[1:]
	p.Plots = append(p.Plots, r.ranked())
	for _, plots := range [][]*replay.Plot{r.sweeps(), r.staged(), r.distributions(), r.overTime()} {
		for _, drawing := range plots {
			p.Plots = append(p.Plots, drawing)
		}
	}
	return p
}

// shown are the figures that are plotted along an axis of load or size.
var shown = []struct {
	metric, title string
	axis          replay.Axis
	scale         float64
}{
	{"goodput", "Goodput", replay.Axis{Name: "goodput", Unit: "%"}, 100},
	{"ttft_s.mean", "TTFT, mean", replay.Axis{Name: "mean TTFT", Unit: "s", Log: true}, 1},
	{"ttft_s.p90", "TTFT, p90", replay.Axis{Name: "p90 of TTFT", Unit: "s", Log: true}, 1},
	{"itl_ms.mean", "ITL, mean", replay.Axis{Name: "mean ITL", Unit: "ms"}, 1},
	{"output_tokens_per_s", "Output tokens a second", replay.Axis{Name: "output", Unit: "tokens/s"}, 1},
	{"hit_rate", "Prompt tokens found cached", replay.Axis{Name: "hit rate", Unit: "%"}, 100},
}

// point is one arm's figures at one place of an axis.
type point struct {
	line  string
	x     float64
	stats Stats
}

// along plots every shown figure along an axis, a line for each name.
func (r *Report) along(title, help string, x replay.Axis, points []point) (plots []*replay.Plot) {
	for _, s := range shown {
		p := &replay.Plot{Title: s.title + " against " + title, Help: help, X: x, Y: s.axis, Limits: r.limits(s.metric), Marks: true}
		for _, at := range points {
			i := slices.IndexFunc(p.Series, func(l replay.Series) bool { return l.Name == at.line })
			if i < 0 {
				i, p.Series = len(p.Series), append(p.Series, replay.Series{Name: at.line})
			}
			if value, ok := at.stats[s.metric]; ok {
				y := s.scale * value.Mean
				if s.axis.Log {
					y = max(y, 0.001)
				}
				p.Series[i].X, p.Series[i].Y = append(p.Series[i].X, at.x), append(p.Series[i].Y, y)
			}
		}
		plots = append(plots, p)
	}
	return plots
}

// limits are the plan's, where a figure is held to one.
func (r *Report) limits(metric string) []replay.Limit {
	switch {
	case metric == "goodput":
		return []replay.Limit{{Name: replay.Number(100*enough) + " %", At: 100 * enough}}
	case slices.ContainsFunc(r.Arms, func(a ArmReport) bool { return a.slo.TTFT != r.SLO.TTFT || a.slo.ITL != r.SLO.ITL }):
		return nil // the arms are held to different ones
	case strings.HasPrefix(metric, "ttft_s") && r.SLO.TTFT > 0:
		return []replay.Limit{{Name: "limit of TTFT " + replay.Number(r.SLO.TTFT.Seconds()) + " s", At: r.SLO.TTFT.Seconds()}}
	case strings.HasPrefix(metric, "itl_ms") && r.SLO.ITL > 0:
		return []replay.Limit{{Name: "limit of ITL " + replay.Number(float64(r.SLO.ITL)/1e6) + " ms", At: float64(r.SLO.ITL) / 1e6}}
	}
	return nil
}

// mostBars is how many arms the first plot compares.
const mostBars = 16

// ranked plots what the arms are ranked by, each with its range over the seeds. Of many arms it has the best, and the
// baseline.
func (r *Report) ranked() *replay.Bars {
	p := &replay.Bars{Title: "Goodput", Axis: replay.Axis{Name: "goodput", Unit: "%"}, Limits: r.limits("goodput")}
	scale := 100.0
	if r.Capacity != nil {
		p.Title, p.Axis, p.Limits, scale = "Capacity", replay.Axis{Name: "capacity", Unit: "× the workload's speed"}, nil, 1
	}
	p.Help = "share of requests within the limits; mean and range over the seeds"
	if r.Capacity != nil {
		p.Help = "speed at which " + replay.Percent(r.Capacity.Share) + " of the requests are good; mean and range over the seeds"
	}
	if r.single() {
		p.Help += ": one seed has no range, and ranks nothing"
	}
	for _, a := range r.drawnArms(mostBars) {
		if s, ok := a.Stats[r.ranking()]; ok {
			p.Bars = append(p.Bars, replay.Bar{Name: a.Name, Value: scale * s.Mean, Min: scale * s.Min, Max: scale * s.Max})
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
	if len(r.Arms) <= replay.MostSeries {
		return ""
	}
	return fmt.Sprintf("; %d of %d arms: the best and the baseline", replay.MostSeries, len(r.Arms))
}

// sweeps plots the figures along each numeric axis of the sweep, a line an arm;
// where there are several axes, the others' values are in the line's name.
func (r *Report) sweeps() (plots []*replay.Plot) {
	if len(r.Arms) == 0 {
		return nil
	}
axes:
	for axis, value := range r.Arms[0].Point {
		var points []point
		for i := range r.Arms {
			a := &r.Arms[i]
			x, err := strconv.ParseFloat(a.Point[axis].Text, 64)
			if err != nil {
				continue axes
			}
			name := a.Arm
			for k, p := range a.Point {
				if k != axis {
					name += " " + p.Path + "=" + p.Text
				}
			}
			points = append(points, point{name, x, a.Stats})
		}
		plots = append(plots, r.along(value.Path, "", replay.Axis{Name: value.Path}, points)...)
	}
	return plots
}

// staged plots the figures over the stages of a workload, whose names begin with their rates.
func (r *Report) staged() []*replay.Plot {
	var points []point
	for _, a := range r.drawnArms(replay.MostSeries) {
		for _, stage := range a.Stages {
			var rate float64
			if _, err := fmt.Sscanf(stage.Name, "%g", &rate); err == nil && len(a.Stages) > 1 {
				points = append(points, point{a.Name, rate, stage.Stats})
			}
		}
	}
	if points == nil {
		return nil
	}
	return r.along("load", strings.TrimPrefix(r.chosen(), "; "), replay.Axis{Name: "load", Unit: "requests/s"}, points)
}

// distributions plots the shares of requests at or below a latency.
func (r *Report) distributions() (plots []*replay.Plot) {
	for _, d := range []struct {
		name, unit, metric string
		of                 func(c *Curves) []float64
	}{{"TTFT", "s", "ttft_s", func(c *Curves) []float64 { return c.TTFT }},
		{"ITL", "ms", "itl_ms", func(c *Curves) []float64 { return c.ITL }}} {
		p := &replay.Plot{
			Title: d.name + ": share of answers at or below", Help: "first seed" + r.chosen(), X: replay.Axis{Name: d.name, Unit: d.unit, Log: true},
			Y: replay.Axis{Name: "share", Unit: "%"}, Limits: r.limits(d.metric),
		}
		for i := range p.Limits {
			p.Limits[i].OnX = true
		}
		for _, a := range r.drawnArms(replay.MostSeries) {
			p.Series = append(p.Series, shareLine(a.Name, d.of(&a.Curves)))
		}
		plots = append(plots, p)
	}
	return plots
}

// shareLine draws quantiles as a share over the value. One value has one share: the highest.
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

// overTime plots the fleet's state.
func (r *Report) overTime() []*replay.Plot {
	seed := "first seed" + r.chosen()
	clock := replay.Axis{Name: "time since the start", Unit: "s"}
	plots := []*replay.Plot{
		{Title: "Requests that wait, over time", Help: seed, X: clock, Y: replay.Axis{Name: "waiting requests"}},
		{Title: "KV in use where decode runs, over time", Help: seed + ", mean over workers", X: clock,
			Y: replay.Axis{Name: "KV in use", Unit: "%"}},
		{Title: "Batch where decode runs, over time", Help: seed + ", mean over workers", X: clock,
			Y: replay.Axis{Name: "batch", Unit: "sequences"}},
	}
	for _, a := range r.drawnArms(replay.MostSeries) {
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
