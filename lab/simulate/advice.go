package simulate

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/lab/replay"
)

// enough is the goodput that a fleet is usually held to.
const enough = 0.9

// Advice recommends an arm in a few sentences, with its figures, as far as they support it. Only arms with the same
// workload and limits are ranked: a sweep of loads has a paragraph a load.
func (r *Report) Advice() string {
	var b strings.Builder
	groups := map[string][]*ArmReport{}
	var order []string
	for i := range r.Arms {
		a := &r.Arms[i]
		if groups[a.asked] == nil {
			order = append(order, a.asked)
		}
		groups[a.asked] = append(groups[a.asked], a)
	}
	for _, asked := range order {
		arms := groups[asked]
		if len(order) > 1 {
			fmt.Fprintf(&b, "%s: ", arms[0].load())
		}
		r.advise(&b, arms)
	}
	return b.String()
}

// load names what distinguishes an arm's workload and limits from others'.
func (a *ArmReport) load() string {
	var parts []string
	for _, p := range a.Point {
		if strings.HasPrefix(p.Path, "workload.") || strings.HasPrefix(p.Path, "slo.") {
			parts = append(parts, p.Path+"="+p.Text)
		}
	}
	if len(parts) == 0 {
		return "With the workload and limits of " + a.Name
	}
	return "At " + strings.Join(parts, ", ")
}

// ranking is the metric that arms are ranked by.
func (r *Report) ranking() string {
	if r.Capacity != nil {
		return "capacity"
	}
	return "goodput"
}

// best is the arms by their rank, the first first; of equals, the one of the
// lower mean TTFT, where capacities have not given each a load of its own.
func (r *Report) best(arms []*ArmReport) []*ArmReport {
	name := r.ranking()
	ttft := func(a *ArmReport) float64 {
		if s, ok := a.Stats["ttft_s.mean"]; ok && r.Capacity == nil {
			return s.Mean
		}
		return math.Inf(1)
	}
	arms = slices.Clone(arms)
	slices.SortStableFunc(arms, func(a, b *ArmReport) int {
		if d := b.Stats[name].Mean - a.Stats[name].Mean; math.Abs(d) > 1e-9 {
			return cmp.Compare(d, 0)
		}
		return cmp.Compare(ttft(a), ttft(b))
	})
	return arms
}

// advise writes of arms that can be ranked.
func (r *Report) advise(b *strings.Builder, arms []*ArmReport) {
	best := r.best(arms)
	top := best[0]
	rank, ok := top.Stats[r.ranking()]
	switch {
	case !ok:
		fmt.Fprintf(b, "No arm had a request to answer.\n")
		return
	case r.Capacity == nil && !slices.ContainsFunc(arms, func(a *ArmReport) bool { return a.GivenUp == nil }):
		fmt.Fprintf(b, "No fleet here can keep up with this load: it takes more workers, or less load. Of %s, %v.\n", top.Name, top.GivenUp)
		return
	case rank.Mean == 0 && r.Capacity != nil:
		fmt.Fprintf(b, "No arm has %s of its requests good, not even at %g times the workload's speed.\n",
			replay.Percent(r.Capacity.Share), r.Capacity.From)
		return
	case rank.Mean == 0:
		fmt.Fprintf(b, "No arm answers a request within the limits, so that goodput ranks none.\n")
		if len(arms) == 1 {
			adviseMissed(b, top)
		}
		return
	}
	if r.single() && len(best) > 1 {
		r.adviseNothing(b, arms)
		return
	}
	take := "%s (%s)"
	if len(best) > 1 {
		take = "First is %s (%s)"
		if differ(top, best[1], r.ranking()) {
			take = "Take %s (%s)"
		}
	}
	fmt.Fprintf(b, take+": ", top.Name, top.named())
	if r.Capacity != nil {
		bounds := r.bounds(top)
		if bounds != "" {
			bounds = ", " + bounds
		}
		fmt.Fprintf(b, "%s of the requests are good at %.2f times the workload's speed (%s)%s.\n",
			replay.Percent(r.Capacity.Share), rank.Mean, top.over(fmt.Sprintf("%.2f", rank.Min), fmt.Sprintf("%.2f", rank.Max)), bounds)
		r.adviseNext(b, best)
		return
	}
	good := "good"
	if len(top.slo.Words()) == 0 {
		good = "answered, since the plan sets no slo"
	}
	fmt.Fprintf(b, "%s of its requests are %s%s%s; %s.\n", replay.Percent(rank.Mean), good,
		top.between(replay.Percent(rank.Min), replay.Percent(rank.Max)), top.latencies(), top.ranges())
	r.adviseNext(b, best)
	adviseSize(b, best)
	adviseMissed(b, top)
}

// cause is what limits the arm, by the means over its seeds.
func (a *ArmReport) cause() *replay.Cause {
	s := a.Stats
	mean := func(name string, unit time.Duration) time.Duration {
		return time.Duration(s[name].Mean * float64(unit))
	}
	all := s["requests"].Mean
	answered := all - s.unanswered()
	c := &replay.Cause{
		Limits: a.slo, Refused: int(s["shed"].Mean), Queue: mean("queue_s.mean", time.Second), Prefill: mean("prefill_s.mean", time.Second),
		TTFT: mean("ttft_s.mean", time.Second), ITL: mean("itl_ms.mean", time.Millisecond), Workers: a.legs,
	}
	c.Kept = replay.Kept{
		Requests: int(all), Answered: int(answered), TTFT: int(s["within_ttft"].Mean * all), ITL: int(s["within_itl"].Mean * all),
		Good: int(s["goodput"].Mean * all),
	}
	if a.legs[0] > 0 && s["duration_s"].Mean > 0 {
		c.Busy = s["prefill_s.mean"].Mean * answered / s["duration_s"].Mean / float64(a.legs[0])
	}
	return c
}

// single reports whether the arms ran with one seed each: their difference may be luck.
func (r *Report) single() bool {
	return !slices.ContainsFunc(r.Arms, func(a ArmReport) bool { return len(a.Seeds) > 1 })
}

// adviseNothing lists what one run of each arm gave, in the plan's order, and ranks none.
func (r *Report) adviseNothing(b *strings.Builder, arms []*ArmReport) {
	var parts []string
	for _, a := range arms {
		value := a.Stats.share("goodput")
		if r.Capacity != nil {
			value = "× " + a.Stats.text("capacity", 2)
		}
		parts = append(parts, a.Name+" "+value)
	}
	fmt.Fprintf(b, "One seed ranks no arm: what sets them apart may be luck, and --seeds 5 shows whether it is.\n%s of this one run: %s.\n",
		strings.ToUpper(r.ranking()[:1])+r.ranking()[1:], strings.Join(parts, ", "))
}

// named is an arm's workers and mode in words, with what mode auto chose.
func (a *ArmReport) named() string {
	text := a.Fleet + "; mode " + a.Mode
	if a.Mode == automatic && a.Chosen.Policy != "" {
		text += ", which chose " + a.Chosen.Policy + ": " + a.Chosen.Reason
	}
	return text
}

// between is a range in brackets; nothing where the runs are all alike.
func (a *ArmReport) between(least, most string) string {
	if a.distinct() == 1 {
		return ""
	}
	return " (" + least + " to " + most + ")"
}

// ranges explains such brackets.
func (a *ArmReport) ranges() string {
	if a.distinct() == 1 {
		return a.seeds()
	}
	return "in brackets the least and the most of " + a.seeds()
}

// over is a range and how many seeds it is over.
func (a *ArmReport) over(least, most string) string {
	if a.distinct() == 1 {
		return a.seeds()
	}
	return least + " to " + most + " over " + a.seeds()
}

// latencies lists an arm's latencies in words; absent ones are left out.
func (a *ArmReport) latencies() (text string) {
	for _, l := range []struct {
		name, metric, unit string
		decimals           int
	}{{"mean TTFT", "ttft_s.mean", "s", 2}, {"p99", "ttft_s.p99", "s", 1}, {"mean ITL", "itl_ms.mean", "ms", 1}} {
		if value := a.Stats.text(l.metric, l.decimals); value != none {
			s := a.Stats[l.metric]
			text += fmt.Sprintf(", %s %s %s", l.name, value, l.unit) + a.between(fmt.Sprintf("%.*f", l.decimals, s.Min),
				fmt.Sprintf("%.*f", l.decimals, s.Max))
		}
	}
	return text
}

// seeds is how many an arm has, in words.
func (a *ArmReport) seeds() string {
	switch n := len(a.Seeds); {
	case n == 1:
		return "1 seed"
	case a.distinct() == 1:
		return fmt.Sprintf("%d seeds, which change nothing", n)
	default:
		return fmt.Sprintf("%d seeds", n)
	}
}

// adviseNext reports how sure the first place is, the mode on the first arm's workers, and the split of as many.
func (r *Report) adviseNext(b *strings.Builder, best []*ArmReport) {
	top := best[0]
	for _, c := range []struct {
		what  string
		other func(a *ArmReport) bool
	}{
		{"Next is", func(a *ArmReport) bool { return a != top }},
		{"Of other modes on these workers the best is", func(a *ArmReport) bool { return a.under == top.under && a.Mode != top.Mode }},
		{fmt.Sprintf("Of other splits of %d workers the best is", top.workers),
			func(a *ArmReport) bool { return a.workers == top.workers && a.Fleet != top.Fleet }},
	} {
		if i := slices.IndexFunc(best, c.other); i > 1 || i == 1 && c.what == "Next is" {
			fmt.Fprintf(b, "%s %s\n", c.what, r.after(top, best[i]))
		}
	}
}

// after describes an arm ranked after another, with its figure and whether the runs distinguish the two.
func (r *Report) after(first, a *ArmReport) string {
	name := r.ranking()
	rank := a.Stats[name]
	text := a.Stats.share(name) + a.between(replay.Percent(rank.Min), replay.Percent(rank.Max))
	if r.Capacity != nil {
		text = a.Stats.text(name, 2) + a.between(fmt.Sprintf("%.2f", rank.Min), fmt.Sprintf("%.2f", rank.Max))
	}
	sure := "every seed of the first beats every seed of it."
	switch few := min(first.distinct(), a.distinct()); {
	case first.Stats[name].Min <= rank.Max:
		sure = "the ranges overlap, so that the difference is noise; choose by what else matters to you."
	case few < leastRuns && len(first.Seeds) >= leastRuns:
		sure = "the seeds change nothing in one of the two, so this may be luck; a trace has a spread with workload.shuffle."
	case few < leastRuns:
		sure = fmt.Sprintf("with fewer than %d seeds that may be luck; --seeds 5 tells.", leastRuns)
	}
	return a.Name + " with " + text + ": " + sure
}

// adviseSize names the smallest fleet that is enough, where fleets differ.
func adviseSize(b *strings.Builder, best []*ArmReport) {
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
		fmt.Fprintf(b, "No fleet here reaches %s in every run; the largest has %d workers.\n", replay.Percent(enough), most)
	default:
		fmt.Fprintf(b, "The smallest fleet here that reaches %s in every run has %d workers: %s, over %s.\n", replay.Percent(enough),
			smallest.workers, smallest.Name, smallest.seeds())
	}
}

// adviseMissed reports which limits an arm's answers miss, if they miss many.
func adviseMissed(b *strings.Builder, a *ArmReport) {
	s := a.Stats
	answered := 0.0
	if all := s["requests"].Mean; all > 0 {
		answered = 1 - a.Stats.unanswered()/all
	}
	missed := func(metric string) string { return replay.Percent(max(0, 1-s[metric].Mean/answered)) }
	var parts []string
	if a.slo.TTFT > 0 {
		parts = append(parts, missed("within_ttft")+" miss the limit of TTFT")
	}
	if a.slo.ITL > 0 || a.slo.TBT > 0 {
		parts = append(parts, missed("within_itl")+" miss that of the time between tokens")
	}
	if s["goodput"].Mean < enough && answered > 0 && len(parts) > 0 {
		fmt.Fprintf(b, "Of its answers %s. %s\n", strings.Join(parts, " and "), a.cause().Sentence())
	}
	if a.GivenUp != nil {
		fmt.Fprintf(b, "It is no fleet for this load: %v.\n", a.GivenUp)
		return
	}
	if n := a.Stats.unanswered(); n > 0 {
		fmt.Fprintf(b, "%s requests a run are shed or fail; they count as missed.\n", count(n))
	}
}
