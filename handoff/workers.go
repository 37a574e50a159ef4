package handoff

import (
	"time"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/pools"
)

// PoolReport is one pool as GET /workers shows it.
type PoolReport struct {
	Model   string         `json:"model"`
	Role    pools.Role     `json:"role"`
	Workers []WorkerReport `json:"workers"`
}

// WorkerReport is one worker: what it registered, whether it is in the choice,
// and what is booked on it now.
type WorkerReport struct {
	ID           string `json:"id"`
	Address      string `json:"address"`
	Engine       string `json:"engine"`
	State        string `json:"state"`
	ActiveBlocks int    `json:"active_blocks"`
	TotalBlocks  int    `json:"total_blocks"`
	CachedBlocks int    `json:"cached_blocks"`
	// SentBlocks are believed to be cached beside those, because they were sent
	// there within the router's PredictedTTL; 0 where that is off.
	SentBlocks    int               `json:"sent_blocks,omitempty"`
	PrefillTokens int               `json:"prefill_tokens"`
	Requests      int               `json:"requests"`
	BlockSize     int               `json:"block_size"`
	Ranks         int               `json:"data_parallel_ranks"`
	MaxNumSeqs    int               `json:"max_num_seqs"`
	ModelInput    string            `json:"model_input"`
	DeviceClass   string            `json:"device_class,omitempty"`
	Topology      map[string]string `json:"topology,omitempty"`
	Taints        []string          `json:"taints,omitempty"`
	Transfer      string            `json:"transfer_endpoint,omitempty"`
	// PrefillRate is the observed prefill speed in tokens a second, 0 while
	// unknown.
	PrefillRate float64 `json:"prefill_tokens_per_second,omitempty"`
	// Circuit is the worker's breaker for the leg that its pool serves.
	Circuit fault.State `json:"circuit"`
}

// Report tells of every pool and worker.
func (f *Flow) Report() []PoolReport {
	now := time.Now()
	out := []PoolReport{}
	for _, p := range f.rooms.Roster.Pools() {
		rep := PoolReport{Model: p.Model, Role: p.Role, Workers: []WorkerReport{}}
		loads := f.loads(p)
		for i, m := range p.Members {
			w, state := m.Worker, m.Status.String()
			if m.Status == pools.Down && m.Eligible(now) {
				state = "probation"
			}
			wr := WorkerReport{
				ID: w.ID, Address: w.Address, Engine: w.Engine, State: state, TotalBlocks: w.TotalKVBlocks,
				BlockSize: w.BlockSize, Ranks: w.Ranks(), MaxNumSeqs: w.MaxNumSeqs, ModelInput: w.ModelInput,
				DeviceClass: w.DeviceClass, Topology: w.Topology, Taints: w.Taints, Transfer: w.Transfer,
			}
			l := loads[i] // in the pool's order
			wr.SentBlocks = l.SentBlocks
			wr.ActiveBlocks, wr.PrefillTokens, wr.Requests, wr.CachedBlocks = l.ActiveBlocks, l.PrefillTokens, l.Requests, l.CachedBlocks
			leg := fault.Decode
			if p.Role == pools.Prefill {
				leg = fault.Prefill
				wr.PrefillRate = f.rooms.Prefill.Rate(w.ID)
			}
			wr.Circuit = f.rooms.Breakers.State(w.ID, leg)
			rep.Workers = append(rep.Workers, wr)
		}
		out = append(out, rep)
	}
	return out
}
