package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/settings"
	"github.com/tandem-pd/tandem/internal/simulate"
)

// simulateSettings is what can be set beside the plan.
type simulateSettings struct {
	JSON   string `setting:"json"`
	HTML   string `setting:"html"`
	Seeds  int    `setting:"seeds"`
	Advise bool   `setting:"advise"`
}

func simulateGroup() settings.Group {
	return settings.Group{Title: "Study", Settings: []settings.Setting{
		{Name: "json", Kind: settings.String, Default: "", Help: "File for every arm's figures as JSON."},
		{Name: "html", Kind: settings.String, Default: "", Help: "File for the report with plots, which needs nothing beside it."},
		{
			Name: "seeds", Kind: settings.Int, Default: "0", Min: "0", Max: "1000",
			Help: "Run each arm with so many seeds, 1 and up, in place of the plan's. More take longer and tell luck from difference; one run is no result.",
		},
		{Name: "advise", Kind: settings.Bool, Default: "false", Help: "Say in a few sentences which arm to take, and why."},
	}}
}

// simulation runs a plan and reports.
func simulation(ctx context.Context, args []string, p process) error {
	var s simulateSettings
	set := settings.NewSet(simulateGroup()).Beside(besides()...)
	_, words, err := resolveWords(set, "gateway simulate FILE.yaml [FLAGS]: run a fleet that you do not have, under virtual time.\n"+
		"The plan names a trace or a made-up load, workers, and the arms to compare; queue, router, bookings and the engines' scheduler are the\n"+
		"production code. bench/recipes/first.yaml is a plan to begin with, docs/simulate.md has the plan's settings. A short plan:\n\n"+
		"  fleet: {workers: 8, fit: qwen3-32b-h200-tp2}\n"+
		"  slo: {ttft: 2s, itl: 25ms}\n"+
		"  arms:\n"+
		"    - {name: round-robin, set: {router.mode: round-robin}}\n"+
		"    - {name: kv, set: {router.mode: kv}}\n\n"+
		"Without a workload, as here, it replays the built-in trace; gateway traces lists others.", args, p, &s)
	if err != nil {
		return err
	}
	if len(words) != 1 {
		return usageError{errors.New("it takes one plan: gateway simulate FILE.yaml; bench/recipes/first.yaml is one, and --help shows a short one")}
	}
	text, err := p.readFile(words[0])
	if err != nil {
		return usageError{err}
	}
	study, err := simulate.ParsePlan(words[0], text)
	if err != nil {
		return usageError{err}
	}
	if s.Seeds > 0 {
		study.UseSeeds(s.Seeds)
	}
	files, err := openOutputs(s.JSON, s.HTML)
	if err != nil {
		return err
	}
	defer files.close()
	report, err := study.Run(ctx, meter(p.stderr))
	if err != nil {
		var plan *simulate.PlanError
		if errors.As(err, &plan) {
			return usageError{err}
		}
		return err
	}
	if err := report.WriteText(p.stdout); err != nil {
		return err
	}
	if s.Advise {
		fmt.Fprintf(p.stdout, "\n%s", report.Advice())
	}
	return files.write(report.WriteJSON, report.WriteHTML)
}

// meter shows how far a study is: on a terminal on one line, elsewhere now and
// then a line.
func meter(out io.Writer) simulate.Progress {
	began, last := time.Now(), time.Time{}
	return func(done, all int, what string) {
		now := time.Now()
		left := time.Duration(float64(now.Sub(began)) / float64(done) * float64(all-done)).Round(time.Second)
		line := fmt.Sprintf("%d of %d runs, about %v left, last %s", done, all, left, what)
		switch {
		case isTerminal(out):
			fmt.Fprintf(out, "\r\x1b[K%s", line)
			if done == all {
				fmt.Fprint(out, "\r\x1b[K")
			}
		case now.Sub(last) > 5*time.Second && done < all:
			last = now
			fmt.Fprintln(out, line)
		}
	}
}

// outputs are the files of a report, opened before the work that fills them.
type outputs []*os.File

// openOutputs creates the files; an empty name is none.
func openOutputs(names ...string) (outputs, error) {
	var files outputs
	for _, name := range names {
		if name == "" {
			files = append(files, nil)
			continue
		}
		f, err := os.Create(name)
		if err != nil {
			files.close()
			return nil, usageError{err}
		}
		files = append(files, f)
	}
	return files, nil
}

// write fills each file by the func in its place.
func (o outputs) write(each ...func(io.Writer) error) error {
	var errs []error
	for i, f := range o {
		if f != nil {
			errs = append(errs, each[i](f), f.Close())
			o[i] = nil
		}
	}
	return errors.Join(errs...)
}

func (o outputs) close() {
	for _, f := range o {
		if f != nil {
			_ = f.Close()
		}
	}
}
