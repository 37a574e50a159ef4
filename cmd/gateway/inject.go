package main

import (
	"errors"
	"log/slog"

	"github.com/tandem-pd/tandem/cmd/gateway/settings"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/upstream"
)

// inject injects the faults of a scenario into calls to workers, if one is named and allowed.
func inject(cfg *stack.GatewayConfig, r *settings.Resolved, p process, log *slog.Logger) error {
	s := cfg.Faults
	if s.Scenario == "" {
		return nil
	}
	if !s.AllowFaults {
		return r.Refuse("fault-scenario", errors.New("faults are not allowed here; --allow-faults allows them"))
	}
	data, err := p.readFile(s.Scenario)
	if err != nil {
		return r.Refuse("fault-scenario", err)
	}
	scenario, err := fault.ParseScenario(s.Scenario, data)
	if err != nil {
		return usageError{err}
	}
	scenario.OnHit = func(leg upstream.Leg, name string) {
		log.Info("fault injected", "fault", name, "worker", leg.Worker, "engine_request_id", leg.RequestID)
	}
	cfg.WrapTransport = func(t upstream.Transport) upstream.Transport { return fault.Inject(t, scenario) }
	log.Warn("faults are being injected", "scenario", s.Scenario, "rules", len(scenario.Rules))
	return nil
}
