package observe

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
)

// PoolReport is one pool in GET /workers.
type PoolReport struct {
	Model string     `json:"model"`
	Role  pools.Role `json:"role"`
	// Mode is the router mode in force, and ModeReason why mode auto chose it; absent if the settings name the mode.
	Mode       string         `json:"router_mode"`
	ModeReason string         `json:"router_mode_reason,omitempty"`
	Workers    []WorkerReport `json:"workers"`
}

// WorkerReport is one worker: its registration, its state, and what is booked on it now.
type WorkerReport struct {
	ID           string `json:"id"`
	Address      string `json:"address"`
	Engine       string `json:"engine"`
	State        string `json:"state"`
	ActiveBlocks int    `json:"active_blocks"`
	TotalBlocks  int    `json:"total_blocks"`
	CachedBlocks int    `json:"cached_blocks"`
	// SentBlocks are assumed cached in addition to CachedBlocks, from prompts sent within the router's PredictedTTL;
	// 0 if that is off.
	SentBlocks    int `json:"sent_blocks,omitempty"`
	PrefillTokens int `json:"prefill_tokens"`
	Requests      int `json:"requests"`
	// OthersRequests are the part of Requests that other gateways have booked.
	OthersRequests int               `json:"others_requests,omitempty"`
	BlockSize      int               `json:"block_size"`
	Ranks          int               `json:"data_parallel_ranks"`
	MaxNumSeqs     int               `json:"max_num_seqs"`
	ModelInput     string            `json:"model_input"`
	Adapters       []string          `json:"adapters,omitempty"`
	DeviceClass    string            `json:"device_class,omitempty"`
	Topology       map[string]string `json:"topology,omitempty"`
	Taints         []string          `json:"taints,omitempty"`
	Transfer       string            `json:"transfer_endpoint,omitempty"`
	// PrefillRate is the observed prefill speed in tokens a second, 0 while unknown.
	PrefillRate float64 `json:"prefill_tokens_per_second,omitempty"`
	// TTFT is the typical time of a call until its first token, or prefill's answer, and ITL the typical time between two
	// tokens, lately and in seconds; 0 while unknown.
	TTFT float64 `json:"ttft_seconds,omitempty"`
	ITL  float64 `json:"itl_seconds,omitempty"`
	// TokensPerSecond is tokens generated, or prompt tokens computed on a prefill worker, through this gateway over about
	// the last minute; Failed the share of its latest calls that failed by its fault.
	TokensPerSecond float64 `json:"tokens_per_second,omitempty"`
	Failed          float64 `json:"failed_share,omitempty"`
	// PrefillSpeed and DecodeSpeed are its speeds at its load over the median of the pool's other workers of its engine and
	// device: 0.15 is a seventh; 0 while unknown. Outlier is how it differs from them, or empty: see [fault.Standing].
	PrefillSpeed float64 `json:"prefill_speed,omitempty"`
	DecodeSpeed  float64 `json:"decode_speed,omitempty"`
	Outlier      string  `json:"outlier,omitempty"`
	// Ejected reports that the outlier gets no new requests while others could serve them.
	Ejected bool `json:"ejected,omitempty"`
	// Circuit is the worker's breaker for its pool's leg, absent for a lost worker.
	Circuit fault.State `json:"circuit,omitempty"`
	// LostFor is how many seconds a lost, or configured and down, worker has not responded; else absent.
	LostFor *float64 `json:"lost_seconds,omitempty"`
}

// Fleet reads the pools, their bookings and their circuits, and compares the workers of each pool.
type Fleet struct {
	rooms    handoff.Rooms
	observer *Observer
	ejected  atomic.Pointer[map[poolKey][]string]
}

// NewFleet returns the fleet of a flow's rooms. observer is the flow's.
func NewFleet(rooms handoff.Rooms, observer *Observer) *Fleet {
	return &Fleet{rooms: rooms, observer: observer}
}

// Ejected returns the outliers of a pool that get no new requests while others could serve them.
func (f *Fleet) Ejected(p *pools.Pool) []string {
	if all := f.ejected.Load(); all != nil {
		return (*all)[poolKey{p.Model, p.Role}]
	}
	return nil
}

// Report describes every pool and worker.
func (f *Fleet) Report() []PoolReport {
	now := time.Now()
	out := []PoolReport{}
	for _, p := range f.rooms.Roster.Pools() {
		mode := f.rooms.Routers.For(p.Model, p.Role).Mode(p)
		rep := PoolReport{Model: p.Model, Role: p.Role, Mode: mode.Policy, ModeReason: mode.Reason, Workers: []WorkerReport{}}
		loads := f.loads(p)
		for i := range p.Members {
			w, l := p.Members[i].Worker, loads[i] // in the pool's order
			wr := WorkerReport{
				ID: w.ID, Address: w.Address, Engine: w.Engine, State: stateOf(&p.Members[i], now), TotalBlocks: w.TotalKVBlocks,
				ActiveBlocks: l.ActiveBlocks, PrefillTokens: l.PrefillTokens, Requests: l.Requests, OthersRequests: l.Others.Requests,
				CachedBlocks: l.CachedBlocks, SentBlocks: l.RecentBlocks,
				BlockSize: w.BlockSize, Ranks: w.Ranks(), MaxNumSeqs: w.MaxNumSeqs, ModelInput: w.ModelInput, Adapters: w.Adapters,
				DeviceClass: w.DeviceClass, Topology: w.Topology, Taints: w.Taints, Transfer: w.Transfer,
			}
			leg := pools.Decode
			if p.Role == pools.Prefill {
				leg, wr.PrefillRate = pools.Prefill, f.rooms.Prefill.Rate(w.ID)
			}
			wr.Circuit = f.rooms.Breakers.State(w.ID, leg)
			if wr.State == pools.Down.String() {
				wr.PrefillRate = 0 // no longer valid
			} else {
				f.observer.worker(w.ID).figures(&wr, now)
				wr.Ejected = slices.Contains(f.Ejected(p), w.ID)
			}
			rep.Workers = append(rep.Workers, wr)
		}
		out = append(out, rep)
	}
	return addLost(out, f.rooms.Roster.View().Lost(), now)
}

// lost is the state of a registered worker that has gone without leaving.
const lost = "lost"

// addLost adds the lost workers to their pools.
func addLost(out []PoolReport, all []pools.Lost, now time.Time) []PoolReport {
	for _, l := range all {
		w, ago := l.Worker, now.Sub(l.Since).Round(time.Millisecond).Seconds()
		row := WorkerReport{
			ID: w.ID, Address: w.Address, Engine: w.Engine, State: lost, TotalBlocks: w.TotalKVBlocks, BlockSize: w.BlockSize,
			Ranks: w.Ranks(), LostFor: &ago,
		}
		if l.Configured {
			row.State = pools.Down.String()
		}
		at := slices.IndexFunc(out, func(p PoolReport) bool { return p.Model == w.Model && p.Role == w.Role })
		if at < 0 {
			at = len(out)
			out = append(out, PoolReport{Model: w.Model, Role: w.Role})
		}
		out[at].Workers = append(out[at].Workers, row)
	}
	return out
}

// probation is the state of a worker that was down and may be tried again.
const probation = "probation"

func stateOf(m *pools.Member, now time.Time) string {
	if m.Status == pools.Down && m.Eligible(now) {
		return probation
	}
	return m.Status.String()
}

// stateWords lists every result of stateOf.
func stateWords() []string {
	words := []string{probation}
	for s := pools.Up; s.String() != "unknown"; s++ {
		words = append(words, s.String())
	}
	return words
}

// loads returns the bookings of a pool's workers, in the pool's order.
func (f *Fleet) loads(p *pools.Pool) []router.WorkerLoad { return f.router(p).Loads(p) }

func (f *Fleet) router(p *pools.Pool) *router.Router { return f.rooms.Routers.For(p.Model, p.Role) }
