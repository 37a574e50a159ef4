package simulate

import (
	"fmt"
	"math"
	"strings"
)

// enough is the goodput that a fleet is usually held to.
const enough = 0.9

// Advice says in a few sentences which arm to take, with the figures behind it.
func (r *Report) Advice() string {
	var b strings.Builder
	best := r.Best()
	top := best[0]
	g := top.Stats["goodput"]
	fmt.Fprintf(&b, "Take %s (%s): %s of its requests meet the limits (%s to %s over %d seeds), mean TTFT %.2f s, p99 %.1f s, mean ITL %.1f ms.\n",
		top.Name, top.Fleet, percent(g.Mean), percent(g.Min), percent(g.Max), len(top.Seeds),
		top.Stats["ttft_s.mean"].Mean, top.Stats["ttft_s.p99"].Mean, top.Stats["itl_ms.mean"].Mean)
	r.adviseNext(&b, best)
	if base := &r.Arms[r.Baseline]; base.Name != top.Name {
		ttft, _ := r.Delta(top, "ttft_s.mean")
		itl, _ := r.Delta(top, "itl_ms.mean")
		fmt.Fprintf(&b, "Against %s that is %+.1f points of goodput, %+.0f %% mean TTFT and %+.0f %% mean ITL, at a hit rate of %s in place of %s.\n", base.Name,
			100*(g.Mean-base.Stats["goodput"].Mean), ttft, itl, percent(top.Stats["hit_rate"].Mean), percent(base.Stats["hit_rate"].Mean))
	}
	r.adviseSize(&b, best)
	adviseLimit(&b, top)
	return b.String()
}

// adviseNext says how sure the first place is.
func (r *Report) adviseNext(b *strings.Builder, best []*ArmReport) {
	if len(best) < 2 {
		return
	}
	first, second := best[0].Stats["goodput"], best[1].Stats["goodput"]
	if first.Min > second.Max {
		fmt.Fprintf(b, "Next is %s with %s: every seed of the first beats every seed of it.\n", best[1].Name, percent(second.Mean))
		return
	}
	fmt.Fprintf(b, "Next is %s with %s; the seeds' ranges overlap, so call it a tie and choose by what else matters to you.\n", best[1].Name, percent(second.Mean))
}

// adviseSize names the smallest fleet that is enough, where fleets differ.
func (r *Report) adviseSize(b *strings.Builder, best []*ArmReport) {
	least, most := math.MaxInt, 0
	var smallest *ArmReport
	for _, a := range best { // the best first, so that of equal sizes the best is taken
		least, most = min(least, a.workers), max(most, a.workers)
		if a.Stats["goodput"].Min >= enough && (smallest == nil || a.workers < smallest.workers) {
			smallest = a
		}
	}
	switch {
	case least == most:
	case smallest == nil:
		fmt.Fprintf(b, "No fleet here reaches %s; the largest has %d workers.\n", percent(enough), most)
	default:
		fmt.Fprintf(b, "The smallest fleet of which every seed reaches %s has %d workers: %s.\n", percent(enough), smallest.workers, smallest.Name)
	}
}

// adviseLimit says what an arm lacks.
func adviseLimit(b *strings.Builder, a *ArmReport) {
	ttft, itl := a.Stats["within_ttft"].Mean, a.Stats["within_itl"].Mean
	switch {
	case a.Stats["goodput"].Mean >= enough:
	case ttft < itl:
		fmt.Fprintf(b, "It lacks prefill: %s come within the TTFT limit and %s within that of ITL. More prefill workers, or fewer requests, would tell.\n", percent(ttft), percent(itl))
	default:
		fmt.Fprintf(b, "It lacks decode: %s come within the TTFT limit and %s within that of ITL. More decode workers, or prefill apart from decode, would tell.\n", percent(ttft), percent(itl))
	}
	if use := a.Stats["kv_use"].Mean; use > 0.85 {
		fmt.Fprintf(b, "Decode's KV is %s full on average: memory, not speed, is next to give out.\n", percent(use))
	}
	if n := a.Stats["shed"].Mean + a.Stats["failed"].Mean; n > 0 {
		fmt.Fprintf(b, "%.0f requests a run are shed or fail; they count as missed.\n", n)
	}
}

func percent(share float64) string { return fmt.Sprintf("%.1f %%", 100*share) }
