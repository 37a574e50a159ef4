package simulate

import (
	"fmt"

	"github.com/tandem-pd/tandem/lab/replay"
)

// tables are the report's for people; the page has room for wide ones.
func (r *Report) tables(wide bool) []replay.Table {
	all := []replay.Table{r.figures(wide)}
	if len(r.Arms) > 1 {
		all = append(all, r.differences())
	}
	if len(r.Published) > 0 {
		all = append(all, r.besides())
	}
	return all
}

// column is a figure of every arm, or of one of its classes.
type column struct {
	head string
	cell func(a *ArmReport, s Stats) string
}

// meanOf is a column of a metric's means.
func meanOf(head, metric string, decimals int) column {
	return column{head, func(_ *ArmReport, s Stats) string { return s.text(metric, decimals) }}
}

// spread is a column of a metric's range over the seeds.
func spread(metric string, format func(float64) string) column {
	return column{"?over seeds", func(_ *ArmReport, s Stats) string {
		if x, ok := s[metric]; ok {
			return format(x.Min) + " … " + format(x.Max)
		}
		return none
	}}
}

// figures is every arm, and each of its policy classes, with the spread over the seeds.
func (r *Report) figures(wide bool) replay.Table {
	t := replay.Table{Title: "Arms, mean over seeds", Head: []string{"arm"}}
	var columns []column
	if wide {
		columns = append(columns, column{"?fleet", func(a *ArmReport, _ Stats) string { return a.Fleet }})
	}
	if r.Capacity != nil {
		t.Title += "; capacity is the highest speed at which " + replay.Percent(r.Capacity.Share) +
			" of the requests are good, the other figures are at the highest speed tried that is good enough, or at the lowest"
		columns = append(columns, meanOf("#capacity, × speed", "capacity", 2),
			spread("capacity", func(x float64) string { return fmt.Sprintf("%.2f", x) }),
			column{"?", func(a *ArmReport, _ Stats) string { return r.bounds(a) }})
	}
	columns = append(columns, column{"#goodput", func(_ *ArmReport, s Stats) string { return s.share("goodput") }}, spread("goodput", replay.Percent),
		meanOf("#TTFT, s", "ttft_s.mean", 2), meanOf("#p50", "ttft_s.p50", 2), meanOf("#p90", "ttft_s.p90", 2), meanOf("#p99", "ttft_s.p99", 1),
		meanOf("#ITL, ms", "itl_ms.mean", 2), meanOf("#p99", "itl_ms.p99", 1), meanOf("#hit rate", "hit_rate", 3),
		meanOf("#tokens/s", "output_tokens_per_s", 0))
	for _, name := range []string{"shed", "failed"} {
		columns = append(columns, column{"#" + name, func(_ *ArmReport, s Stats) string { return count(s[name].Mean) }})
	}
	if wide {
		columns = append(columns, meanOf("#prefill max/mean", "prefill_imbalance", 2), meanOf("#decode max/mean", "decode_imbalance", 2))
	}
	for _, c := range columns {
		t.Head = append(t.Head, c.head)
	}
	for i := range r.Arms {
		a := &r.Arms[i]
		for k, part := range append([]StageReport{{a.Name, a.Stats}}, a.Classes...) {
			row := []string{part.Name}
			if k > 0 {
				row[0] = "  " + part.Name
			}
			for _, c := range columns {
				row = append(row, c.cell(a, part.Stats))
			}
			t.Rows = append(t.Rows, row)
		}
	}
	return t
}

// differences is every arm against the baseline.
func (r *Report) differences() replay.Table {
	t := replay.Table{
		Title: "Against " + r.baseline() + " (" + r.tilde() + ")",
		Head:  []string{"arm", "#TTFT", "#TTFT p99", "#ITL", "#ITL p99", "#hit rate", "#tokens/s", "#goodput"},
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

// besides is our figures next to the published ones.
func (r *Report) besides() replay.Table {
	t := replay.Table{Title: "Published figures", Head: []string{"arm", "figure", "#ours", "?over seeds", "#theirs", "#difference", "?source"}}
	for i := range r.Published {
		p := &r.Published[i]
		row := []string{p.Arm, p.label(), none, none, fmt.Sprintf("%.3f", p.Value), none, p.Source}
		if s, ok := r.ours(p); ok {
			row[2], row[3] = fmt.Sprintf("%.3f", s.Mean), fmt.Sprintf("%.3f … %.3f", s.Min, s.Max)
			if p.Value != 0 {
				row[5] = change(s.Mean/p.Value, 0)
			}
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}
