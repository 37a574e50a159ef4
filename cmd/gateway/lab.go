package main

import (
	"context"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/lab/load"
	"github.com/tandem-pd/tandem/lab/replay"
	"github.com/tandem-pd/tandem/lab/simulate"
)

// labSettings is a struct of each command that simulates, by its name.
func labSettings() []any {
	return []any{new(devfleet.Settings), new(devfleet.WorkerSettings), new(load.Settings), new(simulate.Settings)}
}

func dev(ctx context.Context, args []string, p process) error {
	var s devfleet.Settings
	r, err := resolve(&s, manual{"dev", devfleet.Manual, devfleet.First}, args, p)
	if err != nil {
		return err
	}
	if err := s.Prepare(r.IsSet); err != nil {
		return r.Placed(err)
	}
	log, err := newLogger(p, r, s.Logging)
	if err != nil {
		return err
	}
	if err := inject(&s.GatewayConfig, r, p, log); err != nil {
		return err
	}
	return s.Run(ctx, p.program, p.stdout, log)
}

func worker(ctx context.Context, args []string, p process) error {
	var s devfleet.WorkerSettings
	r, err := resolve(&s, manual{"worker", devfleet.WorkerManual, devfleet.WorkerFirst}, args, p)
	if err != nil {
		return err
	}
	if err := s.Validate(); err != nil {
		return r.Placed(err)
	}
	log, err := newLogger(p, r, s.Logging)
	if err != nil {
		return err
	}
	return s.Run(ctx, p.stdin, log)
}

func putLoad(ctx context.Context, args []string, p process) error {
	var s load.Settings
	r, err := resolve(&s, manual{"load", load.Manual, load.First}, args, p)
	if err != nil {
		return err
	}
	return r.Placed(s.Run(ctx, r.IsSet, p.stdout, p.stderr))
}

func simulation(ctx context.Context, args []string, p process) error {
	var s simulate.Settings
	_, words, err := resolveWords(&s, manual{"simulate", simulate.Manual, nil}, args, p)
	if err != nil {
		return err
	}
	return s.Run(ctx, words, p.stdout, p.stderr)
}

func traces(ctx context.Context, args []string, p process) error {
	_, words, err := resolveWords(new(struct{}), manual{"traces", replay.TracesManual, nil}, args, p)
	if err != nil {
		return err
	}
	return replay.Traces(ctx, p.stdout, words...)
}

// joinLine is the command by which a simulated worker joins the servers inside.
func joinLine(p process, role, id string, inside *stack.Embedded, cfg *stack.GatewayConfig) string {
	return devfleet.JoinLine(p.program, role, id, inside, cfg, nil)
}
