package stack

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/tandem-pd/tandem/router/planner"
)

// planEvery is the time between two plans.
const planEvery = 5 * time.Second

// ModelPlan is one model's part of GET /plan.
type ModelPlan struct {
	Model string `json:"model"`
	planner.Decision
}

// advisor plans every model, and moves nothing.
type advisor struct {
	gateway *Gateway
	cores   map[string]*planner.Core // of the models with workers
	latest  atomic.Pointer[[]ModelPlan]
}

// Run plans every few seconds until ctx ends. Each plan whose reasons are new is a line of the log, with its inputs.
func (a *advisor) Run(ctx context.Context) error {
	ticks := time.NewTicker(planEvery)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-ticks.C:
			a.step(now)
		}
	}
}

func (a *advisor) step(now time.Time) {
	g, before := a.gateway, map[string]ModelPlan{}
	for _, p := range a.plans() {
		before[p.Model] = p
	}
	cores, all, waiting := map[string]*planner.Core{}, []ModelPlan{}, g.Flow.Waiting()
	for _, model := range g.Roster.Models() {
		core := a.cores[model]
		if core == nil {
			core = planner.NewCore(planner.Config{Utilization: g.cfg.Observe.Utilization})
		}
		cores[model] = core
		in := g.Fleet.Inputs(model, waiting[model])
		in.Partial = len(g.member.Peers()) > 0
		p := ModelPlan{model, core.Step(now, in)}
		if was, known := before[model]; known && p.Changed(&was.Decision) {
			g.log.Info("worker plan changed", "model", model, slog.Any("pools", p.Pools))
		}
		all = append(all, p)
	}
	a.cores = cores
	a.latest.Store(&all)
}

func (a *advisor) plans() []ModelPlan {
	if all := a.latest.Load(); all != nil {
		return *all
	}
	return []ModelPlan{}
}

// Plan is the answer of GET /plan.
func (g *Gateway) Plan() any {
	return map[string][]ModelPlan{"models": g.advisor.plans()}
}
