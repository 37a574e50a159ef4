package main

import (
	"context"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/lab/replay"
	"github.com/tandem-pd/tandem/lab/simulate"
)

var labSettings = []any{new(devfleet.Settings), new(devfleet.WorkerSettings), new(replay.LoadSettings), new(simulate.Settings)}

// labCommands returns the commands that simulate and measure, by name.
func labCommands() map[string]command {
	return map[string]command{
		"dev": {
			name: "dev", help: "run a whole fleet on this machine: NATS, etcd, simulated workers, the gateway", run: dev,
			of: new(devfleet.Settings), text: devfleet.Manual, most: devfleet.First,
		},
		"worker": {
			name: "worker", help: "run one simulated worker", run: worker,
			of: new(devfleet.WorkerSettings), text: devfleet.WorkerManual, most: devfleet.WorkerFirst,
		},
		"load": {
			name: "load", help: "put load on an endpoint, from a trace or made up, and measure how it serves", run: putLoad,
			of: new(replay.LoadSettings), text: replay.LoadManual, most: replay.LoadFirst,
		},
		"simulate": {
			name: "simulate", help: "run a fleet that you do not have under virtual time, and compare policies on it", run: simulation,
			of: new(simulate.Settings), text: simulate.Manual,
		},
		"traces": {
			name: "traces", help: "list published traces for load and simulate, and fetch one", run: traces,
			of: new(struct{}), text: replay.TracesManual,
		},
	}
}

func dev(ctx context.Context, args []string, p process) error {
	var s devfleet.Settings
	r, err := resolve(&s, "dev", args, p)
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
	if err := readClasses(&s.Flow.Queue, r, p); err != nil {
		return err
	}
	if err := inject(&s.GatewayConfig, r, p, log); err != nil {
		return err
	}
	s.InForce = stack.Settings(r)
	return s.Run(ctx, p.program, p.stdout, log)
}

func worker(ctx context.Context, args []string, p process) error {
	var s devfleet.WorkerSettings
	r, err := resolve(&s, "worker", args, p)
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
	var s replay.LoadSettings
	r, err := resolve(&s, "load", args, p)
	if err != nil {
		return err
	}
	return r.Placed(s.Run(ctx, r.IsSet, p.stdout, p.stderr))
}

func simulation(ctx context.Context, args []string, p process) error {
	var s simulate.Settings
	_, words, err := resolveWords(&s, "simulate", args, p)
	if err != nil {
		return err
	}
	return s.Run(ctx, words, p.stdout, p.stderr)
}

func traces(ctx context.Context, args []string, p process) error {
	_, words, err := resolveWords(new(struct{}), "traces", args, p)
	if err != nil {
		return err
	}
	return replay.Traces(ctx, p.stdout, p.stderr, words...)
}

// joinLine returns the command that starts a simulated worker for the embedded servers.
func joinLine(p process, role, id string, inside *stack.Embedded, cfg *stack.GatewayConfig) string {
	return devfleet.JoinLine(p.program, role, id, inside, cfg, nil)
}
