package observe

import (
	"time"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/queue"
	"github.com/tandem-pd/tandem/router/planner"
)

// Inputs returns what a model is planned by: all gateways' bookings, and the arrivals and speeds that this one has seen.
func (f *Fleet) Inputs(model string, q queue.Stats) *planner.Inputs {
	d := f.observer.demand
	d.mu.Lock()
	arrived := d.uncached[model]
	d.mu.Unlock()
	of := f.rooms.Roster.Fleet(model)
	return &planner.Inputs{
		Prefill: f.planned(of.Prefill), Decode: f.planned(of.Decode), Arrived: arrived,
		Waiting: q.Waiting, WaitingUncached: q.WaitingUncachedTokens, WaitingTokens: q.WaitingTokens,
	}
}

func (f *Fleet) planned(p *pools.Pool) planner.Pool {
	out, loads := make(planner.Pool, len(p.Members)), f.loads(p)
	for i := range out {
		m, l := &p.Members[i], &loads[i]
		since, answers := f.observer.worker(m.Worker.ID).age()
		out[i] = planner.Worker{
			Worker: m.Worker, Status: m.Status, Since: since, Answers: answers, Requests: l.Requests, Blocks: l.ActiveBlocks,
			PrefillTokens: l.PrefillTokens, CachedBlocks: l.CachedBlocks, TokensPerSecond: f.rooms.Prefill.Rate(m.Worker.ID),
		}
	}
	return out
}

// age returns when the worker's process got its first call, and how many it has answered.
func (w *observed) age() (since time.Time, answers int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.since, w.answers
}
