package simulate

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// Stat is a metric over an arm's seeds.
type Stat struct {
	Mean float64 `json:"mean"`
	Min  float64 `json:"min"`
	Max  float64 `json:"max"`
}

// Report is what came of a study.
type Report struct {
	Name, About string
	SLO         SLO
	Arms        []ArmReport
	Baseline    int // of the arms
	Published   []Published
	Notes       []string
	Capacity    *CapacityPlan // nil where none was searched
	Skipped     int           // bad rows of the traces
}

// ArmReport is what came of one variant.
type ArmReport struct {
	Name  string // the arm and its point
	Arm   string
	Fleet string
	Point []Value
	Seeds []uint64
	// Stats are its metrics; Stages those of each stage, where it has several.
	Stats  map[string]Stat
	Stages []StageReport
	// Curves are those of the first seed.
	Curves Curves

	workers int // of the fleet
	runs    []*Measured
}

// StageReport is one stage of an arm.
type StageReport struct {
	Name  string
	Stats map[string]Stat
}

func newArmReport(v *Variant, seeds int) ArmReport {
	return ArmReport{Name: v.Name(), Arm: v.Arm, Fleet: v.title(), Point: v.Point, workers: v.workers(), runs: make([]*Measured, seeds)}
}

func (a *ArmReport) put(n int, m *Measured) { a.runs[n] = m }

// finish joins each arm's runs.
func (r *Report) finish(baseline string) {
	for i := range r.Arms {
		a := &r.Arms[i]
		var all []Metrics
		for _, m := range a.runs {
			a.Seeds = append(a.Seeds, m.Seed)
			all = append(all, m.Metrics)
		}
		a.Stats, a.Curves = stats(all), a.runs[0].Curves
		for n := range a.runs[0].Stages {
			var stage []Metrics
			for _, m := range a.runs {
				stage = append(stage, m.Stages[n].Metrics)
			}
			a.Stages = append(a.Stages, StageReport{a.runs[0].Stages[n].Name, stats(stage)})
		}
		a.runs = nil
		if a.Name == baseline || a.Arm == baseline && r.Arms[r.Baseline].Arm != baseline {
			r.Baseline = i
		}
	}
}

func stats(runs []Metrics) map[string]Stat {
	out := map[string]Stat{}
	for _, name := range metricNames() {
		s := Stat{Min: math.Inf(1), Max: math.Inf(-1)}
		for _, m := range runs {
			s.Mean += m[name] / float64(len(runs))
			s.Min, s.Max = min(s.Min, m[name]), max(s.Max, m[name])
		}
		out[name] = s
	}
	return out
}

// Delta is how an arm's metric differs from the baseline's, in percent; sure
// where no seed of the one reaches into the other's range.
func (r *Report) Delta(a *ArmReport, metric string) (percent float64, sure bool) {
	base, own := r.Arms[r.Baseline].Stats[metric], a.Stats[metric]
	if base.Mean == 0 {
		return 0, false
	}
	return 100 * (own.Mean/base.Mean - 1), own.Min > base.Max || own.Max < base.Min
}

// WriteJSON writes the report as {"arms":[{"name","seeds","goodput":{"mean",
// "min","max"},"ttft_s":{"mean","p50","p90","p99"},…}]}. Distributions hold the
// means over the seeds; "spread" has every metric's mean, least and most.
func (r *Report) WriteJSON(w io.Writer) error {
	arms := []map[string]any{}
	for i := range r.Arms {
		a := &r.Arms[i]
		out := nested(a.Stats)
		out["name"], out["fleet"], out["seeds"] = a.Name, a.Fleet, a.Seeds
		if len(a.Point) > 0 {
			out["point"] = a.Point
		}
		out["spread"] = a.Stats
		var stages []map[string]any
		for _, s := range a.Stages {
			stage := nested(s.Stats)
			stage["name"] = s.Name
			stages = append(stages, stage)
		}
		if stages != nil {
			out["stages"] = stages
		}
		arms = append(arms, out)
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(map[string]any{
		"name": r.Name, "baseline": r.Arms[r.Baseline].Name, "slo": map[string]float64{
			"ttft_s": r.SLO.TTFT.Seconds(), "itl_ms": float64(r.SLO.ITL) / 1e6, "tbt_ms": float64(r.SLO.TBT) / 1e6,
		}, "skipped_rows": r.Skipped, "arms": arms, "published": r.publishedJSON(),
	})
}

// nested turns "ttft_s.mean" into an object in an object; a metric that is no
// distribution is its own mean, least and most.
func nested(all map[string]Stat) map[string]any {
	out := map[string]any{}
	for name, s := range all {
		group, part, ok := strings.Cut(name, ".")
		if !ok {
			out[name] = s
			continue
		}
		if out[group] == nil {
			out[group] = map[string]float64{}
		}
		out[group].(map[string]float64)[part] = s.Mean
	}
	return out
}

// WriteText writes the report for a terminal.
func (r *Report) WriteText(w io.Writer) error {
	b := bufio.NewWriter(w)
	if r.About != "" {
		fmt.Fprintf(b, "%s\n\n", strings.TrimSpace(r.About))
	}
	width := 4
	for i := range r.Arms {
		width = max(width, len(r.Arms[i].Name))
	}
	fmt.Fprintf(b, "%-*s %17s %23s %19s %6s %9s %6s\n", width, "", "goodput", "TTFT, s", "ITL, ms", "hit", "output", "shed+")
	fmt.Fprintf(b, "%-*s %17s %23s %19s %6s %9s %6s\n", width, "arm", "mean [min…max]", "mean    p50    p90    p99", "mean    p99", "rate", "tokens/s", "failed")
	for i := range r.Arms {
		a := &r.Arms[i]
		m := func(name string) float64 { return a.Stats[name].Mean }
		g := a.Stats["goodput"]
		fmt.Fprintf(b, "%-*s %.3f [%.3f…%.3f] %6.2f %6.2f %6.2f %6.1f %9.2f %9.1f %6.3f %9.0f %6.0f\n", width, a.Name, g.Mean, g.Min, g.Max,
			m("ttft_s.mean"), m("ttft_s.p50"), m("ttft_s.p90"), m("ttft_s.p99"), m("itl_ms.mean"), m("itl_ms.p99"), m("hit_rate"), m("output_tokens_per_s"), m("shed")+m("failed"))
	}
	r.writeCapacities(b)
	r.writeDeltas(b)
	r.writePublished(b)
	if r.Skipped > 0 {
		fmt.Fprintf(b, "\n%d bad rows were skipped.\n", r.Skipped)
	}
	for _, n := range r.Notes {
		fmt.Fprintf(b, "\nNote: %s\n", strings.TrimSpace(n))
	}
	return b.Flush()
}

// writeDeltas writes what differs from the baseline.
func (r *Report) writeDeltas(b io.Writer) {
	if len(r.Arms) < 2 {
		return
	}
	fmt.Fprintf(b, "\nAgainst %s (~: the seeds' ranges overlap):\n", r.Arms[r.Baseline].Name)
	for i := range r.Arms {
		if i == r.Baseline {
			continue
		}
		a := &r.Arms[i]
		fmt.Fprintf(b, "  %s:", a.Name)
		for _, m := range r.compared() {
			percent, sure := r.Delta(a, m.name)
			mark := ""
			if !sure {
				mark = "~"
			}
			fmt.Fprintf(b, "  %s %s%+.0f %%", m.short, mark, percent)
		}
		fmt.Fprintln(b)
	}
}

// compared are the metrics that arms are compared by.
func (r *Report) compared() []struct{ name, short string } {
	all := []struct{ name, short string }{{"ttft_s.mean", "TTFT"}, {"ttft_s.p99", "TTFT p99"}, {"itl_ms.mean", "ITL"}, {"hit_rate", "hit rate"}, {"goodput", "goodput"}}
	if r.Capacity != nil {
		all = []struct{ name, short string }{{"capacity", "capacity"}}
	}
	return all
}

// armOf is the variant of that name, or the first of an arm of that name.
func (r *Report) armOf(name string) *ArmReport {
	i := slices.IndexFunc(r.Arms, func(a ArmReport) bool { return a.Name == name })
	if i < 0 {
		i = slices.IndexFunc(r.Arms, func(a ArmReport) bool { return a.Arm == name })
	}
	return &r.Arms[i]
}

// Best returns the arms by goodput, the best first; of equals, the one of the
// lower mean TTFT.
func (r *Report) Best() []*ArmReport {
	var arms []*ArmReport
	for i := range r.Arms {
		arms = append(arms, &r.Arms[i])
	}
	slices.SortStableFunc(arms, func(a, b *ArmReport) int {
		if d := b.Stats["goodput"].Mean - a.Stats["goodput"].Mean; math.Abs(d) > 1e-9 {
			return int(math.Copysign(1, d))
		}
		return int(math.Copysign(1, a.Stats["ttft_s.mean"].Mean-b.Stats["ttft_s.mean"].Mean))
	})
	return arms
}
