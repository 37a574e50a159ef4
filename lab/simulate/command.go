package simulate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/tandem-pd/tandem/internal/conf"
	"github.com/tandem-pd/tandem/lab/replay"
)

// Settings are the settings outside the plan.
type Settings struct {
	JSON   string `flag:"json" group:"Simulation" help:"File for every arm's figures as JSON."`
	HTML   string `flag:"html" group:"Simulation" help:"File for the report with plots, which needs no other file."`
	Seeds  int    `flag:"seeds" default:"0" range:"0..1000" group:"Simulation" help:"Run each arm with this many seeds, 1 and up, in place of the plan's. More take longer and distinguish luck from difference; one run is no result."`
	Advise bool   `flag:"advise" default:"false" group:"Simulation" help:"On: print in a few sentences which arm to take, and why."`
}

// Manual is what --help says before the settings.
const Manual = "gateway simulate FILE.yaml [FLAGS]: run a fleet that you do not have, under virtual time.\n" +
	"The plan names a trace or a made-up load, workers, and the arms to compare; queue, router, bookings and the engines' scheduler are the\n" +
	"production code. bench/recipes/first.yaml is a plan to begin with, docs/simulate.md has the plan's settings. A short plan:\n\n" +
	"  fleet: {workers: 8, fit: qwen3-32b-h200-tp2}\n" +
	"  slo: {ttft: 2s, itl: 25ms}\n" +
	"  arms:\n" +
	"    - {name: round-robin, set: {router.mode: round-robin}}\n" +
	"    - {name: kv, set: {router.mode: kv}}\n\n" +
	"Without a workload, as here, it replays the built-in trace; gateway traces lists others."

// Run runs the plans that a command line names, which must be one, and reports.
func (s *Settings) Run(ctx context.Context, plans []string, stdout, stderr io.Writer) error {
	if len(plans) != 1 {
		return &conf.Error{File: "FILE.yaml", Err: errors.New("it takes one plan: gateway simulate FILE.yaml; bench/recipes/first.yaml is one, and --help shows a short one")}
	}
	text, err := os.ReadFile(plans[0])
	if err != nil {
		return &conf.Error{File: plans[0], Err: err}
	}
	study, err := ParsePlan(plans[0], text)
	if err != nil {
		return err
	}
	if s.Seeds > 0 {
		study.UseSeeds(s.Seeds)
	}
	files, err := replay.OpenFiles(s.JSON, s.HTML)
	if err != nil {
		return err
	}
	defer files.Close()
	report, err := study.Run(ctx, meter(stderr))
	if err != nil {
		return err
	}
	if err := report.WriteText(stdout); err != nil {
		return err
	}
	if s.Advise {
		fmt.Fprintf(stdout, "\n%s", report.Advice())
	}
	return files.Write(report.WriteJSON, report.WriteHTML)
}

// meter shows how far a study is: on a terminal on one line, elsewhere now and
// then a line.
func meter(out io.Writer) Progress {
	began, last := time.Now(), time.Time{}
	return func(done, all int, what string) {
		now := time.Now()
		left := time.Duration(float64(now.Sub(began)) / float64(done) * float64(all-done)).Round(time.Second)
		line := fmt.Sprintf("%d of %d runs, about %v left, last %s", done, all, left, what)
		switch {
		case replay.IsTerminal(out):
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
