package router

import (
	"cmp"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router/load"
)

// Request is what a choice is made for.
type Request struct {
	// ID is the gateway's own id of the request, unique among those it serves at
	// one time. A client's id is not: it would let one request book for another.
	ID string
	// Attempt numbers the attempts at the request, from 0. Each has its own
	// bookings and its own luck.
	Attempt int
	// ISL is the length of the prompt in tokens.
	ISL int
	// Hashes are the sequence hashes of the prompt's full blocks. A lease keeps
	// them; they must not be written to.
	Hashes []uint64
	// DecodeHashes are the same in blocks of the second pool's size, where that is
	// another; nil: Hashes serve both pools.
	DecodeHashes []uint64
	// Text says that Hashes stand for the prompt's text, because its tokens are not
	// known. No KV event names such blocks: every worker is believed to hold what
	// was predicted of it, one that publishes too.
	Text bool
	// Told is what an index elsewhere says of the prompt, nil where none was asked. A
	// router that is [Router.Blind] passes over it.
	Told *Told
	// Exclude lists workers, by id, that must not be chosen: those already tried.
	Exclude []string
	// Pin names the worker, or rank, that must be chosen, nil for any; of a pair,
	// in the first pool. DecodePin is the same for the second.
	Pin, DecodePin *Pin
	// Required are taints that a worker must have to be chosen, a pinned one too.
	Required []string
	// Ahead is what earlier requests wait for: there is no room for this one where
	// they claim it. It must not be written to.
	Ahead []Claim
	// Preferred are weights of taints, > 0 for workers that have them and < 0
	// against: the cost of mode kv is multiplied by exp(−tanh(their sum)). They do
	// not count for a leg whose worker is pinned. It must not be written to.
	Preferred map[string]float64
	// Override are the request's own weights, nil for none.
	Override *Override
	// OSL is how many tokens of output to expect, 0 unknown.
	OSL int
	// Explain asks for every candidate's terms in [Why.Terms].
	Explain bool

	// What follows is the host's to set.

	// Turn counts the pool's bookings so far; DecodeTurn those of the second pool
	// when a pair is chosen.
	Turn, DecodeTurn uint64
	// BlockSize is the pool's, in tokens.
	BlockSize int
}

// blocks is how many blocks the prompt takes, the last one perhaps in part.
func (r *Request) blocks() int {
	if r.BlockSize < 1 {
		return 0
	}
	return (r.ISL + r.BlockSize - 1) / r.BlockSize
}

// Second is the request as the second pool of a pair sees it. What an index
// elsewhere says counts in the first pool's blocks.
func (r Request) Second() Request {
	r.Pin = r.DecodePin
	if r.DecodeHashes != nil {
		r.Hashes, r.DecodeHashes, r.Told = r.DecodeHashes, nil, nil
	}
	return r
}

// Pin narrows a choice to one worker, one rank or both. Its zero value does not.
// A pinned worker must still be eligible, and is waited for where it is busy.
type Pin struct {
	Worker string // an id; empty: any
	Ranked bool   // Rank counts
	Rank   int
}

// Claim is the ranks of a pool's workers that a waiting request could be booked on:
// those that its pin and its required taints leave, and that it has not tried.
type Claim struct {
	Role     pools.Role // the pool's
	Pin      *Pin       // nil for any
	Required []string
	Exclude  []string
}

// covers reports whether s, of the pool of a role, is claimed.
func (c *Claim) covers(role pools.Role, s *seat) bool {
	return c.Role == role && (c.Pin == nil || c.Pin.admits(s)) && bears(s.worker, c.Required) && !slices.Contains(c.Exclude, s.worker.ID)
}

// claimed reports whether one of the claims covers s.
func claimed(claims []Claim, role pools.Role, s *seat) bool {
	for i := range claims {
		if claims[i].covers(role, s) {
			return true
		}
	}
	return false
}

// admits reports whether a pin leaves s in the choice.
func (p *Pin) admits(s *seat) bool {
	return (p.Worker == "" || p.Worker == s.worker.ID) && (!p.Ranked || p.Rank == int(s.rank))
}

// uncached is how many of the prompt's tokens a candidate would have to compute.
func (r *Request) uncached(c *Candidate) int { return max(0, r.ISL-c.Overlap*r.BlockSize) }

// shares are the prompt's blocks that count as held where other requests hold them,
// for the choice: all that would be booked, unless the request assumes no reuse.
func (r *Request) shares(cfg *Config) []uint64 {
	if r.Override != nil && r.Override.AssumeReuse != nil && !*r.Override.AssumeReuse {
		return nil
	}
	return r.held(cfg)
}

// held are the prompt's full blocks, as a pool books them that tracks active
// blocks: what several requests of one worker share is held once.
func (r *Request) held(cfg *Config) []uint64 {
	if !cfg.TrackActiveBlocks || r.BlockSize < 1 {
		return nil
	}
	return r.Hashes[:min(len(r.Hashes), r.ISL/r.BlockSize)]
}

// Candidate is one (worker, rank) that may be chosen.
type Candidate struct {
	Worker  *pools.Worker
	Rank    int
	Overlap int          // leading blocks of the prompt it has cached, at most ISL / block size
	Load    load.Account // what is booked on it, this request not included
	// Shared is how many leading blocks of the prompt requests booked on it hold
	// already: they take no more room.
	Shared int
	// Host, Disk and Remote are the blocks that slower tiers of its cache add to
	// Overlap, Remote being a store that workers share; 0 unless the pool's cost
	// is "credit". All four together are at most ISL / block size.
	Host, Disk, Remote int32
	// Foreseen is how many blocks at the end of Overlap nobody told of: they are
	// believed to be there because the prompt was sent there.
	Foreseen int32
	// Favour is the sum of the weights of the preferred taints it has.
	Favour float64
}

// Policy picks one of the candidates. It changes nothing, neither itself nor
// what it is given, keeps none of it, and allocates nothing; all randomness
// comes from rng.
type Policy interface {
	// Pick returns the index of a candidate and its cost, lower being better; not
	// ok where it wants none of them. With [Why.Explain] set it adds a [Term] for
	// each candidate to why.
	Pick(req Request, ws []Candidate, now time.Time, rng *rand.Rand, why *Why) (index int, cost float64, ok bool)
}

// Why says how a choice came about.
type Why struct {
	Policy     string  // name of the policy
	Cost       float64 // of the chosen, in the policy's unit
	Overlap    int     // blocks of the prompt the chosen has cached
	Foreseen   int     // those of Overlap that are believed because they were sent there
	Candidates int     // how many there were to choose from

	// Explain asks the policy for Terms.
	Explain bool
	// Terms has an element for each candidate, in their order, if asked for. Of
	// more than MaxTerms a booking and a [Router.Pick] keep as many: the chosen
	// and, behind it, those of the lowest cost.
	Terms []Term
}

// MaxTerms bounds what is kept to explain one choice.
const MaxTerms = 64

// LogValue shows the choice in a log line, without the terms.
func (w Why) LogValue() slog.Value {
	return slog.GroupValue(
		slog.String("policy", w.Policy),
		slog.Float64("cost", w.Cost),
		slog.Int("overlap", w.Overlap),
		slog.Int("candidates", w.Candidates),
	)
}

// Term is a candidate's cost and what it is made of. A policy without a formula
// leaves its parts zero, CachedBlocks apart.
type Term struct {
	Worker        string
	Rank          int
	Cost          float64
	OverlapWeight float64 // weighs PrefillBlocks; of the cost credit, PrefillScale
	PrefillBlocks float64 // potential: booked and own prompt tokens to compute, in blocks
	ActiveBlocks  float64 // potential: booked blocks and the request's own
	CachedBlocks  int
	Favour        float64 // sum of the preferred taints' weights: see [Request.Preferred]

	// Of the cost credit alone: see [Credit].
	RawPrefillBlocks                     float64 // before the credit
	Credit                               float64 // blocks credited, by all tiers
	CreditDecay                          float64 // above 0; 0 under classic
	Requests                             float64 // weight of the requests in flight
	HostBlocks, DiskBlocks, SharedBlocks int     // cached beyond CachedBlocks
}

// String is the term as the KV router's documents log it, or only the cost where
// there is no formula.
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

// favour says what the cost was multiplied by, if anything.
func (t Term) favour() string {
	if t.Favour == 0 {
		return ""
	}
	return fmt.Sprintf(", times exp(-tanh(%.2f)) for its taints", t.Favour)
}

// Registered is a policy or pairer that can be chosen by name.
type Registered struct {
	Name string // canonical
	Help string // one line
}

// maker is a registered policy.
type maker struct {
	help string
	make func(Config) Policy
}

// policies by canonical name; filled by the init functions of policy_*.go, and
// not written later.
var policies = map[string]maker{}

// Register makes a policy known under a name. It is called from init functions,
// and panics on a name that is taken.
func Register(name, help string, make func(Config) Policy) {
	name = Canonical(name)
	if _, taken := policies[name]; taken {
		panic("router: policy " + name + " is registered twice")
	}
	policies[name] = maker{help, make}
}

// Policies lists the registered policies by name.
func Policies() []Registered {
	var list []Registered
	for name, m := range policies {
		list = append(list, Registered{name, m.help})
	}
	slices.SortFunc(list, func(a, b Registered) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// newPolicy returns the policy that cfg names.
func newPolicy(cfg Config) (Policy, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return policies[Canonical(cfg.Mode)].make(cfg), nil
}

// names lists the names of what is registered, for an error.
func names(list []Registered) string {
	var names []string
	for _, r := range list {
		names = append(names, r.Name)
	}
	return strings.Join(names, ", ")
}

// Canonical returns the spelling under which a policy or pairer is registered:
// "-" for "_".
func Canonical(name string) string { return strings.ReplaceAll(name, "_", "-") }

// cheapest picks the candidate of the lowest cost, ties at random. Costs are
// reckoned again for a tie: that takes less time than memory would.
func cheapest(ws []Candidate, cost func(*Candidate) float64, rng *rand.Rand) (int, float64, bool) {
	var best lowest
	for i := range ws {
		best.offer(i, cost(&ws[i]))
	}
	i := best.index
	for n := best.nth(rng); n > 0; {
		if i++; cost(&ws[i]) == best.cost {
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
func (w *Why) explain(ws []Candidate, cost func(*Candidate) float64) {
	if !w.Explain {
		return
	}
	for i := range ws {
		c := &ws[i]
		w.Terms = append(w.Terms, Term{Worker: c.Worker.ID, Rank: c.Rank, Cost: cost(c), CachedBlocks: c.Overlap})
	}
}
