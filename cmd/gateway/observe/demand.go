package observe

import (
	"cmp"
	"sync"
	"time"

	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/queue"
	"github.com/tandem-pd/tandem/router"
	"github.com/tandem-pd/tandem/router/planner"
)

// demand computes desired_workers: how many workers of each pool the present load needs. It observes the arrival of
// uncached prompt tokens, and reads the rest on request.
type demand struct {
	utilization float64

	mu       sync.Mutex                   // guards all below
	uncached map[string]float64           // prompt tokens to compute, by model
	arrivals map[string]*planner.Arrivals // their rate
	scalers  map[poolKey]*planner.Scaler
}

type poolKey struct {
	model string
	role  pools.Role
}

func newDemand(cfg Config) *demand {
	return &demand{
		utilization: cmp.Or(cfg.Utilization, planner.DefaultUtilization),
		uncached:    map[string]float64{}, arrivals: map[string]*planner.Arrivals{}, scalers: map[poolKey]*planner.Scaler{},
	}
}

// queued counts a prompt's tokens to compute, once per request.
func (d *demand) queued(r *handoff.Record, uncached int) {
	if r.Attempts > 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.uncached[r.Call.Request.Model] += float64(uncached)
}

// Desired returns how many workers a model's load needs in a role.
func (o *Observer) Desired(f *Fleet, model string, role pools.Role, q queue.Stats, now time.Time) int {
	p := f.rooms.Roster.Snapshot(model, role)
	return o.demand.workers(f, p, f.loads(p), q, now)
}

// workers returns how many workers the pool's load needs now.
func (d *demand) workers(fleet *Fleet, p *pools.Pool, loads []router.WorkerLoad, q queue.Stats, now time.Time) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	key := poolKey{p.Model, p.Role}
	if d.scalers[key] == nil {
		d.scalers[key] = &planner.Scaler{}
	}
	return d.scalers[key].Read(d.load(fleet, p, loads, q, now), d.utilization, now)
}

// load sums up a pool's load through this gateway. The caller holds mu. A capacity is the mean over workers that have
// one. Waiting requests will generate on the decode pool or, without one, on role both.
func (d *demand) load(fleet *Fleet, p *pools.Pool, loads []router.WorkerLoad, q queue.Stats, now time.Time) planner.Load {
	var l planner.Load
	var blocks, seqs, rate planner.Mean
	size := 1
	for i, m := range p.Members {
		if m.Status != pools.Draining {
			l.Present++
		}
		w := m.Worker
		size = max(1, w.BlockSize)
		if p.Role == pools.Prefill {
			l.BacklogTokens += float64(loads[i].PrefillTokens - loads[i].Others.PrefillTokens)
			rate.Add(fleet.rooms.Prefill.Rate(w.ID))
			continue
		}
		l.Blocks += float64(loads[i].ActiveBlocks - loads[i].Others.ActiveBlocks)
		l.Requests += float64(loads[i].Requests - loads[i].Others.Requests)
		blocks.Add(float64(w.TotalKVBlocks * w.Ranks()))
		seqs.Add(float64(w.MaxNumSeqs * w.Ranks()))
	}
	if p.Role == pools.Prefill {
		l.TokensPerSecond = rate.Value()
		l.BacklogTokens += float64(q.WaitingUncachedTokens)
		if d.arrivals[p.Model] == nil {
			d.arrivals[p.Model] = &planner.Arrivals{}
		}
		l.ArrivalTokens = d.arrivals[p.Model].Read(d.uncached[p.Model], now)
		return l
	}
	l.WorkerBlocks, l.WorkerSeqs = blocks.Value(), seqs.Value()
	if p.Role == pools.Decode || len(fleet.rooms.Roster.Snapshot(p.Model, pools.Decode).Members) == 0 {
		l.Requests += float64(q.Waiting)
		l.Blocks += float64(q.WaitingTokens)/float64(size) + float64(q.Waiting) // each rounds up
	}
	return l
}
