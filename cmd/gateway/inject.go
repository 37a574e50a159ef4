package main

import (
	"log/slog"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/setting"
)

// inject puts the faults of a scenario between the gateway and its workers, where one was named. Its seed becomes the
// gateway's, so that a run can be repeated.
func inject(cfg *stack.GatewayConfig, r *setting.Resolved, p process, log *slog.Logger) error {
	s := cfg.Faults
	if s.Scenario == "" {
		return nil
	}
	data, err := p.readFile(s.Scenario)
	if err != nil {
		return r.Refuse("fault-scenario", err)
	}
	scenario, err := fault.ParseScenario(s.Scenario, data)
	if err != nil {
		return err
	}
	if scenario.Seed != 0 {
		cfg.Router.Seed, cfg.Flow.Seed = scenario.Seed, scenario.Seed
	}
	scenario.OnHit = func(leg http1.Leg, name string) {
		log.Info("fault injected", "fault", name, "worker", leg.Worker, "engine_request_id", leg.RequestID)
	}
	cfg.WrapTransport = func(t http1.Transport) http1.Transport { return fault.Inject(t, scenario) }
	log.Warn("faults are being injected", "scenario", s.Scenario, "rules", len(scenario.Rules))
	return nil
}
