package simulate

import (
	"time"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router/planner"
)

// PlannerPlan is the planner's settings. Times that are 0 are the planner's own.
type PlannerPlan struct {
	// Mode is off, advise or act.
	Mode string `yaml:"mode"`
	// ITL is the target of the time between tokens; the goodput limit where it is 0.
	ITL time.Duration `yaml:"itl_target"`
	// Utilization is the share of a worker to plan with.
	Utilization float64       `yaml:"utilization"`
	Hold        time.Duration `yaml:"hold"`
	HoldShort   time.Duration `yaml:"hold_short"`
	Cooldown    time.Duration `yaml:"cooldown"`
	Reverse     time.Duration `yaml:"reverse"`
	Drain       time.Duration `yaml:"drain"`
	// Switch is how long an engine takes to change its role, once it is idle. It loses its cache then; at 0 the role is
	// the requests' and the cache stays.
	Switch time.Duration `yaml:"switch"`
}

// planEvery is the time between two decisions.
const planEvery = 5 * time.Second

// planning is a run's planner: the gateway's core over the first gateway's books.
type planning struct {
	run     *run
	core    *planner.Core
	roster  *pools.Core
	soft    bool
	arrived float64 // prompt tokens to compute
	latest  planner.Decision
	moved   int
}

// newPlanning returns a run's planner, nil for none.
func newPlanning(r *run, roster *pools.Core) *planning {
	p := r.cfg.Planner
	if p.Mode == "" || p.Mode == "off" {
		return nil
	}
	return &planning{run: r, roster: roster, soft: p.Switch == 0, core: planner.NewCore(planner.Config{
		Acts: p.Mode == "act", Utilization: p.Utilization, ITL: p.ITL,
		HoldShort: p.HoldShort, Hold: p.Hold, Cooldown: p.Cooldown, Reverse: p.Reverse, Drain: p.Drain,
	})}
}

// step takes a decision and carries it out.
func (p *planning) step() {
	r := p.run
	in := &planner.Inputs{Prefill: p.pool(r.fleet.Prefill), Decode: p.pool(r.fleet.Decode), Arrived: p.arrived}
	for _, g := range r.gateways {
		q := g.queue.Stats(r.at(r.now))
		in.Waiting += q.Waiting
		in.WaitingUncached += q.WaitingUncachedTokens
		in.WaitingTokens += q.WaitingTokens
	}
	p.latest = p.core.Step(r.at(r.now), in)
	if m := p.latest.Move; m != nil {
		p.do(p.latest.Do, m)
	}
	r.agenda.add(event{at: r.now + int64(planEvery), what: replan})
}

// pool reads the workers of a pool.
func (p *planning) pool(of *pools.Pool) planner.Pool {
	r, g := p.run, p.run.gateways[0]
	loads := g.routers.For(Model, of.Role).Loads(of)
	out := make(planner.Pool, len(of.Members))
	for i := range out {
		w, l := of.Members[i].Worker, &loads[i]
		m := r.machines[r.byWorker[w.ID]]
		out[i] = planner.Worker{
			TokensPerSecond: m.rate.PerSecond(),
			Worker:          w, Status: of.Members[i].Status, Since: r.epoch, Answers: m.answers, Requests: l.Requests, Blocks: l.ActiveBlocks,
			PrefillTokens: l.PrefillTokens, CachedBlocks: l.CachedBlocks, Tokens: m.tokens, Gaps: time.Duration(m.gaps),
		}
	}
	return out
}

// do carries out what the core wants done with the worker of a move.
func (p *planning) do(what planner.Action, m *planner.Move) {
	r := p.run
	i := r.byWorker[m.Worker]
	switch what {
	case planner.Cordon:
		p.assign(i, m.From, true)
	case planner.Switch:
		r.agenda.add(event{at: r.now + int64(r.cfg.Planner.Switch), what: switched, who: i, turn: uint32(m.ID)})
	case planner.Admit:
		p.assign(i, m.To, false)
		p.moved++
	case planner.Restore:
		p.assign(i, m.From, false)
	}
	for _, g := range r.gateways {
		g.drain()
	}
}

// switched ends the change of an engine's role.
func (p *planning) switched(i int32, move uint32) {
	m := p.latest.Move
	if m == nil || uint32(m.ID) != move {
		return
	}
	if !p.soft {
		p.run.machines[i].core.ClearCache()
	}
	p.do(p.core.Switched(m.ID, planner.Done, p.run.at(p.run.now)), m)
}

// assign puts a machine into a role and has every gateway follow its KV events where those count.
func (p *planning) assign(i int32, role pools.Role, hold bool) {
	r, m := p.run, p.run.machines[i]
	was := m.worker.Role
	p.roster.Assign(m.worker.ID, m.worker.Incarnation, role, hold)
	view := p.roster.View()
	r.fleet = view.Fleet(Model)
	now, _ := view.Lookup(m.worker.ID)
	if m.worker = now.Worker; m.worker.Role == was {
		return
	}
	for _, g := range r.gateways {
		if to := &g.indexed[i]; to.index != nil {
			to.index.Clear(to.owner)
		}
		g.indexed[i] = g.follows(m.worker)
		g.outliers.moved(m.worker, was)
	}
	if role != pools.Decode {
		r.apply(i, m.core.Snapshot())
	}
}
