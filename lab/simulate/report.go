package simulate

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-pd/tandem/lab/replay"
	"github.com/tandem-pd/tandem/router"
)

// Stat is a metric over those of an arm's seeds that show it.
type Stat struct {
	Mean float64 `json:"mean"`
	Min  float64 `json:"min"`
	Max  float64 `json:"max"`
}

// Report is the result of a study.
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

// ArmReport is the result of one variant.
type ArmReport struct {
	Name  string // the arm and its point
	Arm   string
	Fleet string
	Point []Value
	Seeds []uint64
	// Stats are its metrics, without those that no seed shows; Stages those of each stage, where it has several.
	Stats   Stats
	Stages  []StageReport
	Classes []StageReport // by policy class, where there are any
	// Curves are those of the first seed.
	Curves Curves
	// GivenUp is why a run of it was stopped; nil if none was.
	GivenUp *GivenUp
	// Mode is the router's where prompts are computed, and Chosen what mode auto was there at the end of the first
	// seed's run.
	Mode   string
	Chosen router.Mode

	workers int    // of the fleet
	legs    [2]int // its prefill workers, and those that decode
	asked   string // its workload and limits: arms that share them can be ranked
	under   string // these, the workers, and what else no router changes
	slo     SLO
	runs    []*Measured
}

// StageReport is one stage of an arm, or one policy class.
type StageReport struct {
	Name  string
	Stats Stats
}

// Stats are metrics by name.
type Stats map[string]Stat

// text is a metric's mean with so many decimals, a dash where there is none.
func (s Stats) text(name string, decimals int) string {
	x, ok := s[name]
	if !ok {
		return none
	}
	if decimals == 0 {
		return replay.Number(math.Round(x.Mean))
	}
	return strconv.FormatFloat(x.Mean, 'f', decimals, 64)
}

// share is a metric's mean in percent, a dash where there is none.
func (s Stats) share(name string) string {
	x, ok := s[name]
	if !ok {
		return none
	}
	return replay.Percent(x.Mean)
}

// none replaces an absent figure.
const none = "–"

func newArmReport(v *Variant, seeds int) ArmReport {
	return ArmReport{
		Name: v.Name(), Arm: v.Arm, Fleet: v.title(), Point: v.Point, workers: v.workers(), legs: v.legs(), asked: v.asked(), under: v.under(),
		Mode: v.mode(), slo: v.plan.SLO, runs: make([]*Measured, seeds),
	}
}

func (a *ArmReport) put(n int, m *Measured) { a.runs[n] = m }

// finish joins each arm's runs.
func (r *Report) finish(baseline string) {
	defer r.noteUnanswered()
	for i := range r.Arms {
		a := &r.Arms[i]
		var all []Metrics
		for _, m := range a.runs {
			a.Seeds = append(a.Seeds, m.Seed)
			all = append(all, m.Metrics)
			if m.GivenUp != nil && a.GivenUp == nil {
				a.GivenUp = m.GivenUp
				r.Notes = append(slices.Clip(r.Notes), a.Name+": "+m.GivenUp.String()+".")
			}
		}
		a.Stats, a.Curves, a.Chosen = stats(all), a.runs[0].Curves, a.runs[0].Chosen
		a.Stages = a.parts(func(m *Measured) []StageMeasured { return m.Stages })
		a.Classes = a.parts(func(m *Measured) []StageMeasured { return m.Classes })
		a.runs = nil
		if a.Name == baseline || a.Arm == baseline && r.Arms[r.Baseline].Arm != baseline {
			r.Baseline = i
		}
	}
}

// parts joins the runs' parts.
func (a *ArmReport) parts(of func(m *Measured) []StageMeasured) (all []StageReport) {
	for n, part := range of(a.runs[0]) {
		var each []Metrics
		for _, m := range a.runs {
			each = append(each, of(m)[n].Metrics)
		}
		all = append(all, StageReport{part.Name, stats(each)})
	}
	return all
}

// noteUnanswered notes arms that left requests unanswered: their latencies are those of the lucky ones.
func (r *Report) noteUnanswered() {
	var all []string
	for i := range r.Arms {
		if a := &r.Arms[i]; a.Stats.unanswered() > 0 {
			asked := a.Stats["requests"].Mean
			all = append(all, fmt.Sprintf("%s answered %s of %s", a.Name, count(asked-a.Stats.unanswered()), count(asked)))
		}
	}
	const most = 5
	if n := len(all); n > most {
		all = append(all[:most], fmt.Sprintf("and %d more arms not all", n-most))
	}
	if len(all) > 0 {
		r.Notes = append(slices.Clip(r.Notes), "Latencies are those of answered requests only: "+strings.Join(all, ", ")+".")
	}
}

// count is a mean of counts, with a decimal where it is not whole.
func count(mean float64) string { return replay.Number(math.Round(mean*10) / 10) }

func stats(runs []Metrics) Stats {
	out := Stats{}
	for _, name := range metricNames() {
		s, n := Stat{Min: math.Inf(1), Max: math.Inf(-1)}, 0.0
		for _, m := range runs {
			if x, ok := m[name]; ok {
				s.Mean, s.Min, s.Max, n = s.Mean+x, min(s.Min, x), max(s.Max, x), n+1
			}
		}
		if n > 0 {
			s.Mean /= n
			out[name] = s
		}
	}
	return out
}

// leastRuns is how many runs of each of two arms distinguish them if their ranges do not overlap: of two arms that are
// alike that happens to 2 in 70 with four runs each, and to 2 in 20 with three.
const leastRuns = 4

// distinct is how many of an arm's runs count: one where the seeds change
// nothing, as with a trace that is not shuffled and a policy that draws nothing.
func (a *ArmReport) distinct() int {
	for _, s := range a.Stats {
		if s.Min != s.Max {
			return len(a.Seeds)
		}
	}
	return min(1, len(a.Seeds))
}

// differ reports whether the runs of two arms tell their metric apart: enough runs, and no overlap of their ranges.
func differ(a, b *ArmReport, metric string) bool {
	x, y := a.Stats[metric], b.Stats[metric]
	return min(a.distinct(), b.distinct()) >= leastRuns && (x.Min > y.Max || x.Max < y.Min)
}

// base is the arm that another is compared with: the baseline's first variant
// with the same workload and limits, nil where there is none.
func (r *Report) base(a *ArmReport) *ArmReport {
	for i := range r.Arms {
		if b := &r.Arms[i]; b.Arm == r.Arms[r.Baseline].Arm && b.asked == a.asked {
			return b
		}
	}
	return nil
}

// Delta is how an arm's metric differs from its base's, as "+12 %". A "~" is before it if the runs do not distinguish
// the two; a dash without both figures.
func (r *Report) Delta(a *ArmReport, metric string, decimals int) string {
	b := r.base(a)
	if b == nil {
		return none
	}
	base, ok := b.Stats[metric]
	own, has := a.Stats[metric]
	if !ok || !has || base.Mean == 0 {
		return none
	}
	mark := "~"
	if differ(a, b, metric) {
		mark = ""
	}
	return mark + change(own.Mean/base.Mean, decimals)
}

// change is a ratio as the percentage by which it differs from 1.
func change(ratio float64, decimals int) string {
	text := fmt.Sprintf("%+.*f", decimals, 100*(ratio-1))
	if strings.Trim(text, "-0.") == "" {
		text = "+" + text[1:] // no minus before nothing
	}
	return text + " %"
}

// tilde explains the mark of Delta.
func (r *Report) tilde() string {
	return fmt.Sprintf("~: the runs do not tell them apart, since their ranges overlap or fewer than %d differ", leastRuns)
}

// WriteJSON writes the report as {"arms":[{"name","seeds","goodput":{"mean",
// "min","max"},"ttft_s":{"mean","p50","p90","p99"},…}]}. Distributions hold the
// means over the seeds; "spread" has every metric's mean, least and most.
func (r *Report) WriteJSON(w io.Writer) error {
	arms := []map[string]any{}
	for i := range r.Arms {
		a := &r.Arms[i]
		out := nested(a.Stats)
		out["name"], out["fleet"], out["seeds"], out["mode"], out["chosen"] = a.Name, a.Fleet, a.Seeds, a.Mode, a.Chosen.Policy
		if a.GivenUp != nil {
			out["given_up"] = a.GivenUp.String()
		}
		if len(a.Point) > 0 {
			out["point"] = a.Point
		}
		out["spread"] = a.Stats
		for key, parts := range map[string][]StageReport{"stages": a.Stages, "classes": a.Classes} {
			var all []map[string]any
			for _, s := range parts {
				part := nested(s.Stats)
				part["name"] = s.Name
				all = append(all, part)
			}
			if all != nil {
				out[key] = all
			}
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
func nested(all Stats) map[string]any {
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
	for i, t := range r.tables(false) {
		if i > 0 {
			fmt.Fprintln(b)
		}
		t.WriteText(b)
	}
	for _, n := range r.notes() {
		fmt.Fprintf(b, "\nNote: %s\n", strings.TrimSpace(n))
	}
	return b.Flush()
}

// notes are the plan's and those of the runs.
func (r *Report) notes() []string {
	if r.Skipped == 0 {
		return r.Notes
	}
	return append(slices.Clone(r.Notes), fmt.Sprintf("%d bad rows of the trace were skipped.", r.Skipped))
}

// unanswered is how many requests a run were shed or failed.
func (s Stats) unanswered() float64 { return s["shed"].Mean + s["failed"].Mean }

// baseline describes the arm that the others are compared with.
func (r *Report) baseline() string {
	base := &r.Arms[r.Baseline]
	for i := range r.Arms {
		if r.Arms[i].asked != base.asked {
			return base.Arm + " with the same workload and limits"
		}
	}
	return base.Name
}

// armOf is the variant of that name, or the first of an arm of that name.
func (r *Report) armOf(name string) *ArmReport {
	i := slices.IndexFunc(r.Arms, func(a ArmReport) bool { return a.Name == name })
	if i < 0 {
		i = slices.IndexFunc(r.Arms, func(a ArmReport) bool { return a.Arm == name })
	}
	return &r.Arms[i]
}
