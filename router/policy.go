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

// Request is what a choice is made for.
type Request struct {
	// ID is the gateway's own id of the request, unique among those it serves at
	// one time. A client's id is not: it would let one request book for another.
	ID      string
	Attempt int // of the attempts at the request, from 0. Each has its own bookings and its own luck.
	ISL     int // the length of the prompt in tokens
	// Hashes are the sequence hashes of the prompt's full blocks. A lease keeps them; they must not be written to.
	Hashes []uint64
	// Text means that Hashes name granules of the prompt's text ([index.GranuleBlocks]), because its tokens are not known.
	// No KV event names them: overlaps are predicted for every worker, also for one that publishes events.
	Text bool
	// RemoteOverlap is what a remote index reported of the prompt, nil where none was
	// asked. A router that [Router.IgnoresOverlap] ignores it.
	RemoteOverlap *overlap.Report
	Exclude       []string // workers, by id, that must not be chosen: those already tried
	Pin           *Pin     // the worker, or rank, that must be chosen, nil for any
	// Only is what a worker must meet to be chosen, nil for any. It must always say the same of one worker.
	Only func(w *pools.Worker) bool
	// Pairs reports whether two workers can hand a prompt over, nil where any two can. It counts in a choice of a pair.
	Pairs func(p, d *pools.Worker) bool
	// StandIn has a decode worker to which no prefill worker that can be chosen hands over compute the prompt itself, where it is
	// the one that its policy chooses: no prefill worker is booked then.
	StandIn  bool
	Required []string // taints that a worker must have to be chosen, a pinned one too
	Adapter  string   // the LoRA adapter that a worker must have loaded, likewise; empty for none
	// Ahead is what earlier requests wait for: the ranks that they claim are full for
	// this one. It must not be written to.
	Ahead []Claim
	// Preferred are weights of taints, > 0 for workers that have them and < 0 against: the cost of mode kv is
	// multiplied by exp(−tanh(their sum)). They do not count where the worker is pinned. It must not be written to.
	Preferred map[string]float64
	Override  *Override // the request's own weights, nil for none
	// Drain numbers the drain of the queue in which the request is asked for, from 1; 0 outside of one. In mode eft what the
	// requests asked before it in the same drain wait for counts as booked.
	Drain uint64
	OSL   int // how many tokens of output to expect, 0 unknown
	// DecodeLater asks for the prefill worker of a pair alone, in mode eft: the decode pool keeps room for the prompt, and the
	// decode worker is chosen once it is computed.
	DecodeLater bool
	// Sliced allows, with DecodeLater, that a long prompt is computed in slices: see [Lease.Slice].
	Sliced bool
	// Done is what slices have computed of the prompt so far.
	Done Done
	// PlanOnly asks in mode eft for which worker the request would wait: the answer is always a [*LaterError].
	PlanOnly bool
	// Session names the conversation that the request belongs to, empty for none. Where nothing but load tells the workers
	// apart it decides, the same way in every gateway, unless that worker has too much to do.
	Session string
	// Later is memory for the [*LaterError] that answers the request, which is asked for often; nil takes new memory.
	Later   *LaterError
	Explain bool // asks for every candidate's terms in [Why.Terms]
}

// Done is the part of a prompt that slices have computed, on the worker's rank that computed the latest of them. Events may
// not report it yet.
type Done struct {
	Worker string
	Rank   int
	Tokens int // from the prompt's beginning
	Slices int

	router *Router    // of the worker; nil where the rest is not awaited
	rest   *load.Rest // that comes back there
}

// End has the worker no longer be wanted for the rest of the prompt. A caller that gives up the prompt before its next part is booked
// owes it; it may be called at any time.
func (d *Done) End() {
	if d.router != nil {
		d.router.mu.Lock()
		d.rest.End()
		d.router.mu.Unlock()
	}
}

// count has the part that is computed count as cached where it is.
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
	*Request         // the caller's, which must not be written to
	BlockSize int    // the pool's, in tokens
	Turn      uint64 // bookings that the pool has made so far

	rng   *rand.Rand // of this choice
	costs []float64  // where a policy that has costs puts every candidate's; nil where they are not asked for
	why   *Why       // where it is explained
	late  bool       // prompts are bound late
}

// blocks is how many blocks the prompt takes, the last one perhaps in part.
func (q *query) blocks() int { return blocksOf(q.ISL, q.BlockSize) }

// blocksOf is how many blocks a number of tokens takes.
func blocksOf(tokens, blockSize int) int {
	if blockSize < 1 {
		return 0
	}
	return (tokens + blockSize - 1) / blockSize
}

// Pin narrows a choice to one worker, one rank or both. Its zero value does not.
// A pinned worker must still be eligible, and is waited for where it is busy.
type Pin struct {
	Worker string // an id; empty: any
	Ranked bool   // Rank counts
	Rank   int
}

// Claim is the ranks of a pool's workers that a waiting request could be booked on:
// those that its pin, its required taints and its adapter leave, and that it has not tried.
type Claim struct {
	Role     pools.Role // the pool's
	Pin      *Pin       // nil for any
	Required []string
	Adapter  string
	Exclude  []string
}

// covers reports whether s, of the pool of a role, is claimed.
func (c *Claim) covers(role pools.Role, s *slot) bool {
	return c.Role == role && (c.Pin == nil || c.Pin.admits(s)) && bears(s.worker, c.Required, c.Adapter) && !slices.Contains(c.Exclude, s.worker.ID)
}

// claimed reports whether one of the claims covers s.
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

// uncached is how many of the prompt's tokens a candidate would have to compute.
func (q *query) uncached(c *candidate) int { return max(0, q.ISL-c.Overlap*q.BlockSize) }

// shares are the prompt's blocks that count as held where other requests hold them,
// for the choice: all that would be booked, unless the request assumes no reuse.
func (q *query) shares(cfg *Config) []uint64 {
	if q.Override != nil && q.Override.AssumeReuse != nil && !*q.Override.AssumeReuse {
		return nil
	}
	return q.held(cfg)
}

// held are the prompt's full blocks, as a pool books them that tracks active
// blocks: what several requests of one worker share is held once.
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
	// Reused is how many leading blocks of the prompt requests booked on it hold already: they take no more room.
	Reused int
	// Spared is how many leading blocks a decode worker has cached, so that a hand-off need not bring them; see [Config.RestOnly].
	Spared int
	// Host, Disk and Shared are the blocks that slower tiers of its cache add to Overlap, Shared being a store that
	// several workers reach; 0 unless the pool's cost is "credit". All four together are at most ISL / block size.
	Host, Disk, Shared int32
	// Predicted is how many blocks at the end of Overlap are not reported: they are
	// assumed to be there because the prompt was sent there.
	Predicted int32
	// Left is how long its prompts should take from now on, with those that wait for it ahead of this one. Mode eft alone
	// looks at it.
	Left time.Duration
	// Delays is how long this request, and the rests of others in slices that come back to the worker, delay each other, likewise.
	Delays time.Duration
	Favour float64 // the sum of the weights of the preferred taints it has
}

// policy returns the index of the candidate it picks and its cost, lower being better; not ok where it picks none. It
// changes nothing that it is given but q.rng, q.costs and q.why, to which it adds a [Term] for each candidate with [Why.Explain]
// set. It keeps none of it, and allocates nothing.
type policy func(q *query, ws []candidate) (index int, cost float64, ok bool)

// Choice is the rank that was chosen, and why.
type Choice struct {
	Worker *pools.Worker
	Rank   int
	Why
}

// Why is how a choice was made.
type Why struct {
	Policy     string  // name of the policy
	Cost       float64 // of the chosen, in the policy's unit
	Overlap    int     // blocks of the prompt the chosen has cached
	Predicted  int     // those of Overlap that are assumed because the prompt was sent there
	Candidates int     // how many there were to choose from
	Explain    bool    // asks the policy for Terms
	// Terms has an element for each candidate, in their order, if asked for. Of more than MaxTerms a booking and a
	// [Router.Pick] keep as many: the chosen and, behind it, those of the lowest cost.
	Terms []Term
}

// MaxTerms bounds what is kept to explain one choice.
const MaxTerms = 64

// Term is a candidate's cost and what it is made of. A policy without a formula
// leaves its parts zero, CachedBlocks apart.
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

// String is the term as the KV router's documents log it, or only the cost where there is no formula.
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

// favour is what the cost was multiplied by, empty for nothing.
func (t Term) favour() string {
	if t.Favour == 0 {
		return ""
	}
	return fmt.Sprintf(", times exp(-tanh(%.2f)) for its taints", t.Favour)
}

// maker is a registered policy.
type maker struct {
	help string // one line
	make func(Config) policy
}

// policies by canonical name; filled by the init functions of policy_*.go, and not written later.
var policies = map[string]maker{}

// register makes a policy known under a name. It is called from init functions, and panics on a name that is taken.
func register(name, help string, make func(Config) policy) {
	if _, taken := policies[name]; taken {
		panic("router: policy " + name + " is registered twice")
	}
	policies[name] = maker{help, make}
}

// newPolicy returns the policy that cfg names.
func newPolicy(cfg Config) (policy, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return policies[Canonical(cfg.Mode)].make(cfg), nil
}

// Canonical returns the spelling under which a policy is registered: "-" for "_".
func Canonical(name string) string { return strings.ReplaceAll(name, "_", "-") }

// byCost is the policy of the lowest cost.
func byCost(cost func(q *query, c *candidate) float64) policy {
	return func(q *query, ws []candidate) (int, float64, bool) { return q.cheapest(ws, cost) }
}

// cheapest picks the candidate of the lowest cost, ties at random, and explains it. Costs are computed again for a tie:
// that takes less time than memory would.
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

// lowest is the minimum of the costs offered to it. Ties are counted, and broken
// by [lowest.nth], which makes all of them equally likely with one draw.
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

// nth draws which of the tied offers to take, counted from 0.
func (l *lowest) nth(rng *rand.Rand) int {
	if l.ties < 2 {
		return 0
	}
	return rng.IntN(l.ties)
}

// explain adds the terms of candidates whose cost is a plain number.
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
