package simulate

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-pd/tandem/internal/setting"
)

// Published is a figure that others report of an arm.
type Published struct {
	Arm    string  `yaml:"arm"`
	Metric string  `yaml:"metric"` // as in the report: goodput, ttft_s.mean, …
	Value  float64 `yaml:"value"`
	Source string  `yaml:"source"`
	// Stage is the stage that it is about, by its name ("20/s"); empty for the whole run.
	Stage string `yaml:"stage"`
	// Against makes the value a ratio: the arm's metric over that of this one.
	Against string `yaml:"against"`
}

// PublishedTable is figures of others in a CSV file with a row a stage.
type PublishedTable struct {
	File   string `yaml:"file"` // by the plan's own folder
	Source string `yaml:"source"`
	// StageColumn holds the stage's rate, ArmColumn the arm's published name.
	StageColumn string `yaml:"stage_column"`
	ArmColumn   string `yaml:"arm_column"`
	// Arms maps each of their arms to ours, Metrics which of our metrics each of their columns is.
	Arms    map[string][]string `yaml:"arms"`
	Metrics map[string]string   `yaml:"metrics"`
}

// checkPublished refuses names of the published figures that mean nothing.
func (s *Study) checkPublished(doc *document, arm func(string) bool) error {
	metric := func(name string) error {
		if knownMetric(name) {
			return nil
		}
		return doc.Errorf("published", "%q is not a metric of the report; there are %s", name, strings.Join(metricNames(), ", "))
	}
	for _, p := range s.Plan.Published {
		switch {
		case !arm(p.Arm):
			return doc.Errorf("published", "there is no arm %q", p.Arm)
		case p.Against != "" && !arm(p.Against):
			return doc.Errorf("published", "there is no arm %q to be against", p.Against)
		case p.Stage != "" && !s.hasStage(p.Stage):
			return doc.Errorf("published", "there is no stage %q", p.Stage)
		}
		if err := metric(p.Metric); err != nil {
			return err
		}
	}
	t := s.Plan.PublishedCSV
	if t == nil {
		return nil
	}
	for theirs, ours := range t.Arms {
		for _, name := range ours {
			if !arm(name) {
				return doc.Errorf("published_csv.arms", "%s is compared with %q, and there is no such arm", theirs, name)
			}
		}
	}
	for _, name := range t.Metrics {
		if err := metric(name); err != nil {
			return err
		}
	}
	return nil
}

func (s *Study) hasStage(name string) bool {
	return slices.ContainsFunc(s.Plan.Workload.Stages, func(p StagePlan) bool { return p.name() == name })
}

// published is every published figure. Without the CSV file, which is data of
// others and may be absent, a note reports that.
func (s *Study) published() ([]Published, []string, error) {
	all, t := slices.Clone(s.Plan.Published), s.Plan.PublishedCSV
	if t == nil {
		return all, nil, nil
	}
	bad := func(line int, column string, err error) error {
		where := t.File
		if line > 0 {
			where = fmt.Sprintf("%s:%d", where, line)
		}
		if column != "" {
			where += ": " + column
		}
		return &setting.Error{File: s.file, Name: "published_csv", Err: fmt.Errorf("%s: %w", where, err)}
	}
	f, err := os.Open(locate(s.file, t.File))
	if errors.Is(err, fs.ErrNotExist) {
		return all, []string{fmt.Sprintf("%s is absent, so that the figures of %s cannot be compared with ours.", t.File, t.Source)}, nil
	}
	if err != nil {
		return nil, nil, bad(0, "", err)
	}
	defer f.Close()
	rows := csv.NewReader(f)
	head, err := rows.Read()
	if err != nil {
		return nil, nil, bad(1, "", err)
	}
	at := map[string]int{}
	for i, name := range head {
		at[name] = i
	}
	columns := slices.Sorted(maps.Keys(t.Metrics))
	for _, name := range append([]string{t.StageColumn, t.ArmColumn}, columns...) {
		if _, ok := at[name]; !ok {
			return nil, nil, bad(1, "", fmt.Errorf("there is no column %q", name))
		}
	}
	for {
		row, err := rows.Read()
		if errors.Is(err, io.EOF) {
			return all, nil, nil
		}
		line, _ := rows.FieldPos(0)
		if err != nil {
			return nil, nil, bad(line, "", err)
		}
		rate, err := strconv.ParseFloat(row[at[t.StageColumn]], 64)
		if err != nil {
			return nil, nil, bad(line, t.StageColumn, err)
		}
		stage := StagePlan{Rate: rate}.name()
		if !s.hasStage(stage) {
			continue
		}
		theirs := row[at[t.ArmColumn]]
		for _, arm := range t.Arms[theirs] {
			for _, column := range columns {
				value, err := strconv.ParseFloat(row[at[column]], 64)
				if err != nil {
					return nil, nil, bad(line, column, err)
				}
				all = append(all, Published{Arm: arm, Metric: t.Metrics[column], Value: value, Source: t.Source + ": " + theirs, Stage: stage})
			}
		}
	}
}

// ours is the report's figure for a published one. Where that is a ratio, its range is the widest that the seeds of
// both arms allow. It is not ok where our runs do not show it.
func (r *Report) ours(p *Published) (s Stat, ok bool) {
	s, ok = r.figure(p.Arm, p)
	if p.Against == "" || !ok {
		return s, ok
	}
	b, ok := r.figure(p.Against, p)
	if !ok || b.Min <= 0 {
		return Stat{}, false
	}
	return Stat{Mean: s.Mean / b.Mean, Min: s.Min / b.Max, Max: s.Max / b.Min}, true
}

func (r *Report) figure(arm string, p *Published) (s Stat, ok bool) {
	a := r.armOf(arm)
	stats := a.Stats
	for _, stage := range a.Stages {
		if stage.Name == p.Stage {
			stats = stage.Stats
		}
	}
	s, ok = stats[p.Metric]
	return s, ok
}

// label returns a published figure's name in a report.
func (p *Published) label() string {
	text := p.Metric
	if p.Stage != "" {
		text += " at " + p.Stage
	}
	if p.Against != "" {
		text += " over " + p.Against
	}
	return text
}

// off is how far ours is from theirs, in percent; a dash where theirs is 0.
func off(ours Stat, theirs float64, decimals int) string {
	if theirs == 0 {
		return none
	}
	return change(ours.Mean/theirs, decimals)
}

// writePublished writes our figures next to the published ones.
func (r *Report) writePublished(b io.Writer) {
	if len(r.Published) == 0 {
		return
	}
	fmt.Fprintf(b, "\nBeside what others report:\n")
	staged := map[[2]string][]*Published{}
	var order [][2]string
	width := 0
	for i := range r.Published {
		p := &r.Published[i]
		width = max(width, len(p.Arm))
		if p.Stage == "" {
			continue
		}
		key := [2]string{p.Arm, p.Source}
		if staged[key] == nil {
			order = append(order, key)
		}
		staged[key] = append(staged[key], p)
	}
	for i := range r.Published {
		p := &r.Published[i]
		s, ok := r.ours(p)
		switch {
		case p.Stage != "":
		case !ok:
			fmt.Fprintf(b, "  %-*s %-14s ours %9s   theirs %9.3f   %s\n", width, p.Arm, p.label(), none, p.Value, p.Source)
		default:
			fmt.Fprintf(b, "  %-*s %-14s ours %9.3f [%.3f…%.3f]   theirs %9.3f   %s   %s\n",
				width, p.Arm, p.label(), s.Mean, s.Min, s.Max, p.Value, off(s, p.Value, 0), p.Source)
		}
	}
	for _, key := range order {
		fmt.Fprintf(b, "  %s next to %s; ours, theirs, difference:\n", key[0], key[1])
		r.writeStages(b, staged[key])
	}
}

// writeStages is one arm's stages, a line each.
func (r *Report) writeStages(b io.Writer, all []*Published) {
	var stages, metrics []string
	at := map[[2]string]*Published{}
	for _, p := range all {
		at[[2]string{p.Stage, p.Metric}] = p
		if !slices.Contains(stages, p.Stage) {
			stages = append(stages, p.Stage)
		}
		if !slices.Contains(metrics, p.Metric) {
			metrics = append(metrics, p.Metric)
		}
	}
	fmt.Fprintf(b, "    %-6s", "")
	for _, m := range metrics {
		fmt.Fprintf(b, " %28s", m)
	}
	fmt.Fprintln(b)
	for _, stage := range stages {
		fmt.Fprintf(b, "    %-6s", stage)
		for _, m := range metrics {
			p := at[[2]string{stage, m}]
			if p == nil {
				fmt.Fprintf(b, " %28s", "")
				continue
			}
			ours, by := none, none
			if s, ok := r.ours(p); ok {
				ours, by = fmt.Sprintf("%.2f", s.Mean), off(s, p.Value, 0)
			}
			fmt.Fprintf(b, " %10s %9.2f %7s", ours, p.Value, by)
		}
		fmt.Fprintln(b)
	}
}

// publishedJSON is every published figure next to ours, for the JSON report.
func (r *Report) publishedJSON() []map[string]any {
	all := []map[string]any{}
	for i := range r.Published {
		p := &r.Published[i]
		one := map[string]any{"arm": p.Arm, "figure": p.label(), "theirs": p.Value, "source": p.Source}
		if s, ok := r.ours(p); ok {
			one["ours"] = s
		}
		all = append(all, one)
	}
	return all
}
