package simulate

import (
	"cmp"
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
	check := func(field string, p Published) error {
		switch {
		case !arm(p.Arm):
			return doc.Errorf(field, "there is no arm %q", p.Arm)
		case p.Against != "" && !arm(p.Against):
			return doc.Errorf(field, "there is no arm %q to be against", p.Against)
		case p.Stage != "" && !s.hasStage(p.Stage):
			return doc.Errorf(field, "there is no stage %q", p.Stage)
		case !knownMetric(p.Metric):
			return doc.Errorf(field, "%q is not a metric of the report; there are %s", p.Metric, strings.Join(metricNames(), ", "))
		}
		return nil
	}
	for _, p := range s.Plan.Published {
		if err := check("published", p); err != nil {
			return err
		}
	}
	if t := s.Plan.PublishedCSV; t != nil {
		for _, arms := range t.Arms {
			for _, name := range arms {
				for _, metric := range t.Metrics {
					if err := check("published_csv", Published{Arm: name, Metric: metric}); err != nil {
						return err
					}
				}
			}
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
	f, err := os.Open(locate(s.file, t.File))
	if errors.Is(err, fs.ErrNotExist) {
		return all, []string{fmt.Sprintf("%s is absent, so that the figures of %s cannot be compared with ours.", t.File, t.Source)}, nil
	}
	bad := func(line int, err error) ([]Published, []string, error) {
		return nil, nil, &setting.Error{File: s.file, Name: "published_csv", Err: fmt.Errorf("%s:%d: %w", t.File, line, err)}
	}
	if err != nil {
		return bad(0, err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil || len(rows) == 0 {
		return bad(0, cmp.Or(err, io.ErrUnexpectedEOF))
	}
	columns := slices.Sorted(maps.Keys(t.Metrics))
	for _, name := range append([]string{t.StageColumn, t.ArmColumn}, columns...) {
		if !slices.Contains(rows[0], name) {
			return bad(1, fmt.Errorf("there is no column %q", name))
		}
	}
	for i, row := range rows[1:] {
		cell := func(column string) string { return row[slices.Index(rows[0], column)] }
		rate, err := strconv.ParseFloat(cell(t.StageColumn), 64)
		if err != nil {
			return bad(i+2, err)
		}
		stage := StagePlan{Rate: rate}.name()
		if !s.hasStage(stage) {
			continue
		}
		theirs := cell(t.ArmColumn)
		for _, arm := range t.Arms[theirs] {
			for _, column := range columns {
				value, err := strconv.ParseFloat(cell(column), 64)
				if err != nil {
					return bad(i+2, err)
				}
				all = append(all, Published{Arm: arm, Metric: t.Metrics[column], Value: value, Source: t.Source + ": " + theirs, Stage: stage})
			}
		}
	}
	return all, nil, nil
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
