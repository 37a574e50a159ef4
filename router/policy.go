package router

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/kv/overlap"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router/load"
)

// Request is the input of a choice.
type Request struct {
	// ID is the gateway's own unique id of the request. A client's id would let one request book for another.
	ID      string
	Attempt int // of the request, from 0. Each has its own bookings and random numbers.
	ISL     int // prompt length in tokens, or of all inputs together
	// Inputs is how many sequences are computed for a request without generated tokens, each booked as a request; 0 for
	// any other. They hold no blocks.
	Inputs int
	// Hashes are the sequence hashes of the prompt's full blocks. A lease keeps them; read-only.
	Hashes []uint64
	// Text means that Hashes name granules of the prompt's text ([index.GranuleBlocks]), since its tokens are unknown.
	// KV events do not match them: all overlaps are predicted.
	Text bool
	// RemoteOverlap is the report of a remote index, nil for none. A router that [Router.IgnoresOverlap] ignores it.
	RemoteOverlap *overlap.Report
	Exclude       []string // ids of workers that were tried and must not be chosen
	Pin           *Pin     // the worker or rank to choose, nil for any
	// Only filters workers, nil for none. It must be deterministic.
	Only func(w *pools.Worker) bool
	// Pairs reports whether two workers can hand a prompt over, nil if any two can. It applies to pairs.
	Pairs func(p, d *pools.Worker) bool
	// StandIn lets a chosen decode worker compute the prompt itself if no eligible prefill worker can hand over to it.
	// Then no prefill worker is booked.
	StandIn  bool
	Required []string // taints that a worker must have to be chosen, a pinned one too
	Adapter  string   // the LoRA adapter that a worker must have loaded; empty for none
	// Ahead are the claims of earlier waiting requests: those ranks count as full. Read-only.
	Ahead []Claim
	// Preferred are weights of taints, > 0 for and < 0 against workers that have them: mode kv multiplies the cost by
	// exp(−tanh(sum)). They do not apply to a pinned worker. Read-only.
	Preferred map[string]float64
	Override  *Override // the request's own weights, nil for none
	// Drain numbers the queue's drain, from 1; 0 outside of one. In mode eft, what earlier requests of the drain wait
	// for counts as booked.
	Drain uint64
	OSL   int // expected output tokens, 0 unknown
	// DecodeLater books only the prefill worker of a pair, in mode eft. The decode pool keeps room, and the decode
	// worker is chosen once the prompt is computed.
	DecodeLater bool
	// Sliced allows, with DecodeLater, to compute a long prompt in slices: see [Lease.Slice].
	Sliced bool
	// Done is what slices have computed so far.
	Done Done
	// PlanOnly returns the worker to wait for in mode eft, always as a [*LaterError].
	PlanOnly bool
	// Session names the conversation, empty for none. If only load separates the workers it decides, alike in every
	// gateway, unless that worker is overloaded.
	Session string
	// Later is memory for the returned [*LaterError]; nil allocates.
	Later   *LaterError
	Explain bool // fills [Why.Terms]
	// PickOnly has [ReservePair] book nothing.
	PickOnly bool
	// Look is what [Router.Look] found for the request, nil for none.
	Look *Look
}

// Done is the part of a prompt computed in slices, on the rank of the latest slice. Events may not report it yet.
type Done struct {
	Worker string
	Rank   int
	Tokens int // from the prompt's beginning
	Slices int

	router *Router    // of the worker; nil if nothing is left
	rest   *load.Rest // reserved there
}

// End releases the worker from the rest of the prompt. A caller that gives up the prompt must call it; it may be called
// at any time.
func (d *Done) End() {
	if d.router != nil {
		d.router.mu.Lock()
		d.rest.End()
		d.router.mu.Unlock()
	}
}

// count counts the computed part as cached on its rank.
func (d *Done) count(ws []candidate, blockSize int) {
	if d.Tokens == 0 {
		return
	}
	for i := range ws {
		if w := &ws[i]; int(w.Rank) == d.Rank && w.Worker.ID == d.Worker {
			more := max(0, d.Tokens/blockSize-w.Overlap)
			w.Overlap += more
			w.Predicted += int32(more)
		}
	}
}

// query is a request as a policy sees it.
type query struct {
	*Request         // the caller's; read-only
	BlockSize int    // the pool's, in tokens
	Nth       uint64 // bookings that the pool has made so far

	rng   *rand.Rand // of this choice
	costs []float64  // the costs of all candidates, if the policy has costs; nil if not requested
	why   *Why       // nil unless explained
	late  bool       // prompts are bound late
	timed bool       // prompts are booked with the time that they should take
}

// blocks returns the blocks of the prompt, rounded up.
func (q *query) blocks() int {
	if q.Inputs > 0 {
		return 0
	}
	return blocksOf(q.ISL, q.BlockSize)
}

// blocksOf returns the blocks of some tokens, rounded up.
func blocksOf(tokens, blockSize int) int {
	if blockSize < 1 {
		return 0
	}
	return (tokens + blockSize - 1) / blockSize
}

// Pin narrows a choice to a worker, a rank or both; the zero value does not. A pinned worker must be eligible, and a
// busy one is waited for.
type Pin struct {
	Worker string // an id; empty: any
	Ranked bool   // Rank counts
	Rank   int
}

// Claim is the ranks that a waiting request could be booked on, by its pin, required taints, adapter and tried workers.
type Claim struct {
	Role     pools.Role // the pool's
	Pin      *Pin       // nil for any
	Required []string
	Adapter  string
	Exclude  []string
}

// covers reports whether s, of the pool of a role, is claimed.
func (c *Claim) covers(role pools.Role, s *slot) bool {
	return c.Role == role && (c.Pin == nil || c.Pin.admits(s)) && bears(s.worker, c.Required, c.Adapter) &&
		!slices.Contains(c.Exclude, s.worker.ID)
}

func claimed(claims []Claim, role pools.Role, s *slot) bool {
	for i := range claims {
		if claims[i].covers(role, s) {
			return true
		}
	}
	return false
}

// admits reports whether a pin leaves s in the choice.
func (p *Pin) admits(s *slot) bool {
	return (p.Worker == "" || p.Worker == s.worker.ID) && (!p.Ranked || p.Rank == int(s.rank))
}

// uncached returns the prompt tokens that a candidate would have to compute.
func (q *query) uncached(c *candidate) int { return max(0, q.ISL-c.Overlap*q.BlockSize) }

// shares returns the prompt's blocks that may be shared with other requests, for the choice: all to be booked, unless
// the request assumes no reuse.
func (q *query) shares(cfg *Config) []uint64 {
	if q.Override != nil && q.Override.AssumeReuse != nil && !*q.Override.AssumeReuse {
		return nil
	}
	return q.held(cfg)
}

// held returns the prompt's full blocks as booked in a pool that tracks active blocks: shared blocks of a worker count
// once.
func (q *query) held(cfg *Config) []uint64 {
	if !cfg.TrackActiveBlocks || q.BlockSize < 1 {
		return nil
	}
	return q.Hashes[:min(len(q.Hashes), index.Unit(q.Text).Within(q.ISL/q.BlockSize))]
}

// candidate is one (worker, rank) that may be chosen.
type candidate struct {
	Worker  *pools.Worker
	Rank    int32
	slot    int32        // its place in the view
	Overlap int          // leading blocks of the prompt it has cached, at most ISL / block size
	Load    load.Account // what is booked on it, this request not included
	// Reused is the leading blocks that booked requests hold already: they take no more room.
	Reused int
	// Spared is the leading blocks that a decode worker has cached and a transfer can skip: see [Config.RestOnly].
	Spared int
	// Host, Disk and Shared are the blocks that slower tiers add to Overlap; Shared is a store of several workers. They
	// are 0 unless the pool's cost is "credit". All four are at most ISL / block size.
	Host, Disk, Shared int32
	// Predicted is the blocks at the end of Overlap that are predicted, not reported.
	Predicted int32
	// Left is the remaining time of its prompts and of those waiting for it ahead of this one. Only mode eft uses it.
	Left time.Duration
	// Delays is how long this request and returning slices delay each other. Only mode eft uses it.
	Delays time.Duration
	Favour float64 // the sum of the weights of the preferred taints it has
}

// policy returns the index and cost of its pick, lower being better; ok is false for none. It may change only q.rng,
// q.costs and q.why, to which it adds a [Term] for each candidate if [Why.Explain] is set. It retains nothing and does
// not allocate.
type policy func(q *query, ws []candidate) (index int, cost float64, ok bool)

// Choice is the rank that was chosen, and why.
type Choice struct {
	Worker *pools.Worker
	Rank   int
	Why
}

// Why is how a choice was made.
type Why struct {
	Policy     string  `json:"policy"`     // its name
	Cost       float64 `json:"cost"`       // of the chosen, in the policy's unit
	Overlap    int     `json:"overlap"`    // blocks of the prompt the chosen has cached
	Predicted  int     `json:"predicted"`  // those of Overlap that are assumed because the prompt was sent there
	Candidates int     `json:"candidates"` // how many there were to choose from
	Explain    bool    `json:"-"`          // asks the policy for Terms
	// Terms has an element for each candidate, if requested. A booking and a [Router.Pick] keep MaxTerms: the chosen
	// one, then the lowest costs.
	Terms []Term `json:"terms,omitempty"`
}

// MaxTerms bounds the terms kept of one choice.
const MaxTerms = 64

// Term is a candidate's cost and its parts. A policy without a formula sets only CachedBlocks.
type Term struct {
	Worker        string  `json:"worker_id"`
	Rank          int     `json:"dp_rank"`
	Cost          float64 `json:"cost"`
	OverlapWeight float64 `json:"prefill_weight"` // weighs PrefillBlocks; of the cost credit, PrefillScale
	PrefillBlocks float64 `json:"prefill_blocks"` // potential: booked and own prompt tokens to compute, in blocks
	ActiveBlocks  float64 `json:"active_blocks"`  // potential: booked blocks and the request's own
	CachedBlocks  int     `json:"cached_blocks"`
	Favour        float64 `json:"preferred_taints,omitempty"` // sum of the preferred taints' weights: see [Request.Preferred]

	// Of the cost credit alone: see [Credit].
	RawPrefillBlocks float64 `json:"raw_prefill_blocks,omitempty"` // before the credit
	Credit           float64 `json:"overlap_credit,omitempty"`     // blocks credited, by all tiers
	CreditDecay      float64 `json:"credit_decay,omitempty"`       // above 0; 0 under classic
	Requests         float64 `json:"active_requests,omitempty"`    // weight of the requests in flight
	HostBlocks       int     `json:"host_blocks,omitempty"`        // cached beyond CachedBlocks, as the next two
	DiskBlocks       int     `json:"disk_blocks,omitempty"`
	SharedBlocks     int     `json:"shared_blocks,omitempty"`
}

// String formats the term as the KV router's documents log it.
func (t Term) String() string {
	if t.OverlapWeight == 0 && t.PrefillBlocks == 0 && t.ActiveBlocks == 0 {
		return fmt.Sprintf("Cost of %s: %.1f (cached_blocks: %d)", t.Worker, t.Cost, t.CachedBlocks)
	}
	if t.CreditDecay > 0 {
		return fmt.Sprintf("Formula for %s: %.1f = %.1f * max(0, %.1f - %.1f) + %.1f + %.1f (cached_blocks: %d, host %d, disk %d, shared %d)%s",
			t.Worker, t.Cost, t.OverlapWeight, t.RawPrefillBlocks, t.Credit, t.ActiveBlocks, t.Requests,
			t.CachedBlocks, t.HostBlocks, t.DiskBlocks, t.SharedBlocks, t.favour())
	}
	return fmt.Sprintf("Formula for %s: %.1f = %.1f * %.1f + %.1f (cached_blocks: %d)",
		t.Worker, t.Cost, t.OverlapWeight, t.PrefillBlocks, t.ActiveBlocks, t.CachedBlocks) + t.favour()
}

// favour formats the factor of the cost, empty for none.
func (t Term) favour() string {
	if t.Favour == 0 {
		return ""
	}
	return fmt.Sprintf(", times exp(-tanh(%.2f)) for its taints", t.Favour)
}

type maker struct {
	help string // one line
	make func(Config) policy
}

// policies by canonical name; filled by the init functions of policy_*.go, and not written later.
var policies = map[string]maker{}

// register adds a policy. Only init functions call it. It panics on a duplicate name.
func register(name, help string, make func(Config) policy) {
	if _, taken := policies[name]; taken {
		panic("router: policy " + name + " is registered twice")
	}
	policies[name] = maker{help, make}
}

func newPolicy(cfg Config) (policy, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return policies[Canonical(cfg.Mode)].make(cfg), nil
}

// Canonical returns the spelling under which a policy is registered: "-" for "_".
func Canonical(name string) string { return strings.ReplaceAll(name, "_", "-") }

func byCost(cost func(q *query, c *candidate) float64) policy {
	return func(q *query, ws []candidate) (int, float64, bool) { return q.cheapest(ws, cost) }
}

// cheapest picks the candidate of the lowest cost, ties at random, and explains it. It recomputes tied costs, which is
// faster than memory.
func (q *query) cheapest(ws []candidate, cost func(*query, *candidate) float64) (int, float64, bool) {
	q.explain(ws, cost)
	var best lowest
	for i := range ws {
		each := cost(q, &ws[i])
		if q.costs != nil {
			q.costs[i] = each
		}
		best.offer(i, each)
	}
	i := best.index
	for n := best.nth(q.rng); n > 0; {
		if i++; cost(q, &ws[i]) == best.cost {
			n--
		}
	}
	return i, best.cost, best.ties > 0
}

// lowest is the minimum of the offered costs. [lowest.nth] breaks ties at random with one draw.
type lowest struct {
	index int     // of the first of that cost
	cost  float64 // meaningless until ties is above 0
	ties  int     // offers of that cost
}

func (l *lowest) offer(index int, cost float64) {
	switch {
	case l.ties == 0 || cost < l.cost:
		l.index, l.cost, l.ties = index, cost, 1
	case cost == l.cost:
		l.ties++
	}
}

// nth draws one of the ties, from 0.
func (l *lowest) nth(rng *rand.Rand) int {
	if l.ties < 2 {
		return 0
	}
	return rng.IntN(l.ties)
}

// explain adds terms that have only a cost.
func (q *query) explain(ws []candidate, cost func(*query, *candidate) float64) {
	if !q.why.Explain {
		return
	}
	for i := range ws {
		c := &ws[i]
		q.why.Terms = append(q.why.Terms, Term{Worker: c.Worker.ID, Rank: int(c.Rank), Cost: cost(q, c), CachedBlocks: c.Overlap})
	}
}

// inFlight and free are costs: the requests in flight, and nothing.
func inFlight(_ *query, c *candidate) float64 { return float64(c.Load.Requests) }
func free(*query, *candidate) float64         { return 0 }
