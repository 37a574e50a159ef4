package simulate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/internal/terminal"
	"github.com/tandem-pd/tandem/lab/replay"
)

// Settings are the settings outside the plan.
type Settings struct {
	JSON  string `flag:"json" group:"Simulation" help:"File for every arm's figures as JSON."`
	HTML  string `flag:"html" group:"Simulation" help:"File for the report with plots."`
	Seeds int    `flag:"seeds" default:"0" range:"0..1000" group:"Simulation" help:"Seeds to run each arm with, in place of the plan's. More distinguish luck from difference."`
}

// Manual is the text of --help before the settings.
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
		return &setting.Error{File: "FILE.yaml",
			Err: errors.New("it takes one plan: gateway simulate FILE.yaml; bench/recipes/first.yaml is one, and --help shows a short one")}
	}
	text, err := os.ReadFile(plans[0])
	if err != nil {
		return &setting.Error{File: plans[0], Err: err}
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
	var far Progress
	stop := terminal.Show(stderr, far.State)
	report, err := study.Run(ctx, &far)
	stop()
	if err != nil {
		return err
	}
	if err := report.WriteText(stdout); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "\n%s", report.Advice())
	return files.Write(report.WriteJSON, report.WriteHTML)
}
