// Package planner decides how many workers of a model should prefill and how many decode, and which one changes its
// role. It has no clock, no goroutine and no I/O: a shell reads the pools, calls [Core.Step] every few seconds and does
// what the decision says. The gateway and the simulator are two shells of one core.
package planner

import (
	"cmp"
	"slices"
	"time"

	"github.com/tandem-pd/tandem/pools"
)

// Config is what a plan aims at. Zero fields have defaults.
type Config struct {
	// Acts lets decisions move workers; otherwise they only advise.
	Acts bool
	// Utilization is the share of a worker's capacity to plan with, [DefaultUtilization] by default.
	Utilization float64
	// ITL is the time between two tokens that decode workers should keep; 0: no such target.
	ITL time.Duration
	// HoldShort is how long a pool must be overloaded before it gets a worker [15 s], Hold how long it must be short [60 s].
	HoldShort, Hold time.Duration
	// Cooldown is the least time from one move to the next [60 s], or five times what the last took. A second worker follows
	// at once into a pool whose arrivals alone, without its backlog, are too many.
	// Reverse is the least time to one the other way [5 min].
	Cooldown, Reverse time.Duration
	// Drain is how long a move waits for the worker's requests [2 min]. One that needs no call, into an overloaded pool,
	// does not wait: the requests go on, with those of the new role.
	Drain time.Duration
	// MinPrefill and MinDecode are how many workers a pool keeps [1].
	MinPrefill, MinDecode int
}

func (c Config) filled() Config {
	c.Utilization = cmp.Or(c.Utilization, DefaultUtilization)
	c.HoldShort, c.Hold = cmp.Or(c.HoldShort, 15*time.Second), cmp.Or(c.Hold, time.Minute)
	c.Cooldown, c.Reverse = cmp.Or(c.Cooldown, time.Minute), cmp.Or(c.Reverse, 5*time.Minute)
	c.Drain = cmp.Or(c.Drain, 2*time.Minute)
	c.MinPrefill, c.MinDecode = max(1, c.MinPrefill), max(1, c.MinDecode)
	return c
}

const (
	// shortBy is how far demand must exceed a pool before it is short, and spareBy how much the donor must keep free
	// after the move, in workers.
	shortBy, spareBy = .1, .2
	// urgent is how many times its workers a pool's demand must be for a move back within Config.Reverse.
	urgent = 1.5
	// cooldownMoves is the cooldown in durations of the last move.
	cooldownMoves = 5
	// pendingFor is how long a worker that starts counts as supply.
	pendingFor = 10 * time.Minute
	// lostFor is how long a worker whose move failed is not tried again.
	lostFor = 30 * time.Minute
	// leastTokens is how many tokens between two steps measure a worker's pace.
	leastTokens = 8
	// warmAnswers and warmTime are an engine's warm-up, whose speeds are not planned with.
	warmAnswers = 20
	warmTime    = time.Minute
	// demandTime is the time constant of the demand that moves follow, and of the arrivals in it.
	demandTime, arrivalOver = 5 * time.Second, 10 * time.Second
	// kept is how many finished moves a core remembers.
	kept = 16
)

// Reason is why a pool is left as it is, or what becomes of it. The set is closed: it labels a metric.
type Reason string

// The reasons, in words of Config where they are settings.
const (
	Hold          Reason = "hold"                 // it has what it needs
	Short         Reason = "short"                // it lacks workers, for a shorter time than the hold
	Spare         Reason = "spare"                // it could give one away
	Cooling       Reason = "cooldown"             // it is short, and the last move too recent
	Reversed      Reason = "reverse_barred"       // it is short, and has just given a worker away
	NoDonor       Reason = "no_donor"             // it is short, and the other pool needs all its workers
	NoCompatible  Reason = "no_compatible_worker" // it is short, and no worker of the other pool can change its role
	MinPool       Reason = "min_pool"             // it is short, and the other pool is as small as it may be
	ViewNotWhole  Reason = "view_not_whole"       // this gateway does not know the bookings of all others
	ModelNotFit   Reason = "model_not_fit"        // no capacity is known yet
	PendingWorker Reason = "pending_workers"      // workers that will do are starting
	AdviseOnly    Reason = "advise_only"          // a move would help, and the planner may only advise
	Moved         Reason = "moved"                // it gets a worker, or got it
	Restored      Reason = "restored"             // the move failed; the worker has its old role
	Lost          Reason = "lost"                 // the move failed; the worker takes no requests
)

// Worker is a worker of a pool and what is known of it.
type Worker struct {
	*pools.Worker
	Status pools.Status
	// Pending: it has been announced and does not serve yet.
	Pending bool
	// Since is when the process was first seen, and Answers how many answers it has given.
	Since   time.Time
	Answers int

	Requests, Blocks, PrefillTokens, CachedBlocks int     // booked, and cached
	TokensPerSecond                               float64 // of prompts that it computes
	// Tokens is how many tokens have ever come a gap after the one before, and Gaps the sum of the gaps.
	Tokens int64
	Gaps   time.Duration
}

func (w *Worker) warm(now time.Time) bool {
	return w.Answers >= warmAnswers && now.Sub(w.Since) >= warmTime
}

// Pool is the workers of one role.
type Pool []Worker

// Inputs are a model's state, by this and all other gateways' bookings.
type Inputs struct {
	Prefill, Decode Pool
	// Arrived is how many prompt tokens to compute have ever arrived; WaitingUncached are in the queue with Waiting
	// requests of WaitingTokens in all.
	Arrived                        float64
	Waiting                        int
	WaitingUncached, WaitingTokens int64
	// Partial: bookings of other gateways are missing.
	Partial bool
}

// PoolPlan is the decision on one pool.
type PoolPlan struct {
	Role     pools.Role `json:"role"`
	Present  int        `json:"present"` // without those that follow
	Pending  int        `json:"pending"`
	Draining int        `json:"draining"`
	Demand   Demand     `json:"demand"`
	// Smooth is the demand in workers that moves follow.
	Smooth float64 `json:"smooth"`
	// Desired is how many workers the load needs, for who can add and remove some.
	Desired int    `json:"desired"`
	Reason  Reason `json:"reason"`
}

// Decision is one step's.
type Decision struct {
	Pools []PoolPlan `json:"pools"`
	// Move is under way, or has just ended by Do.
	Move *Move `json:"move,omitempty"`
	// Do is what the shell has to do with Move.Worker now.
	Do Action `json:"-"`
}

// Changed reports whether a decision's reasons differ from those of another.
func (d *Decision) Changed(from *Decision) bool {
	same := func(a, b PoolPlan) bool { return a.Reason == b.Reason && a.Present == b.Present }
	return d.Do != Nothing || !slices.EqualFunc(d.Pools, from.Pools, same)
}

// Core plans for one model. It is not safe for concurrent use.
type Core struct {
	cfg      Config
	arrivals Arrivals
	sides    [2]side // prefill, decode
	pace     pace
	counts   map[string]count // of decode workers, by id
	at       time.Time        // of the latest step
	move     *Move            // under way
	epoch    uint64
	past     []Past
	barred   map[string]time.Time // workers not to be tried until then
}

// count is a worker's generation at the latest step.
type count struct {
	incarnation string
	tokens      int64
	gaps        time.Duration
}

// side is what a core remembers of one pool.
type side struct {
	role      pools.Role
	scaler    Scaler
	smooth    float64
	known     bool
	speed     float64              // of a warm worker, the latest known
	generates float64              // by a worker at the target
	pending   map[string]time.Time // since when each has been
	wanted    time.Time            // since when it has been short with a donor; zero: it is not
}

// NewCore returns a core that knows nothing.
func NewCore(cfg Config) *Core {
	return &Core{
		cfg: cfg.filled(), arrivals: Arrivals{Over: arrivalOver}, sides: [2]side{{role: pools.Prefill}, {role: pools.Decode}},
		barred: map[string]time.Time{},
	}
}

// Step decides by the present state. The shell carries out [Decision.Do] at once; after [Switch] it reports to
// [Core.Switched]. Times must not run backwards.
func (c *Core) Step(now time.Time, in *Inputs) Decision {
	var d Decision
	loads := [2]Load{c.prefill(in, now), c.decode(in, now)}
	for i, p := range [2]Pool{in.Prefill, in.Decode} {
		d.Pools = append(d.Pools, c.sides[i].plan(loads[i], p, c.cfg, now, now.Sub(c.at)))
	}
	c.at = now
	d.Move = c.move
	if d.Do = c.advance(in, now); d.Move == nil {
		c.decide(&d, in, loads, now)
	}
	if d.Move != nil {
		copied := *d.Move
		d.Move = &copied
	}
	return d
}

// prefill sums up the prefill pool's load. A capacity is the mean over warm workers that have one.
func (c *Core) prefill(in *Inputs, now time.Time) (l Load) {
	var speed Mean
	l.BacklogTokens = float64(in.WaitingUncached)
	for i := range in.Prefill {
		w := &in.Prefill[i]
		l.BacklogTokens += float64(w.PrefillTokens)
		if w.warm(now) {
			speed.Add(w.TokensPerSecond)
		}
	}
	s := &c.sides[0]
	s.speed = cmp.Or(speed.Value(), s.speed)
	l.TokensPerSecond, l.ArrivalTokens = s.speed, c.arrivals.Read(in.Arrived, now)
	return l
}

// decode sums up the decode pool's load. Of the waiting requests those count that prefill can deliver within the
// horizon: the rest is prefill's to relieve.
func (c *Core) decode(in *Inputs, now time.Time) (l Load) {
	var blocks, seqs Mean
	var tokens float64
	size, counts := 1, map[string]count{}
	for i := range in.Decode {
		w := &in.Decode[i]
		size = max(1, w.BlockSize)
		l.Blocks += float64(w.Blocks)
		l.Requests += float64(w.Requests)
		blocks.Add(float64(w.TotalKVBlocks * w.Ranks()))
		seqs.Add(float64(w.MaxNumSeqs * w.Ranks()))
		held := float64(w.Blocks*size) / 1000
		tokens += held
		was := c.counts[w.ID]
		counts[w.ID] = count{w.Incarnation, w.Tokens, w.Gaps}
		came, gaps, took := float64(w.Tokens-was.tokens), (w.Gaps - was.gaps).Seconds(), now.Sub(c.at).Seconds()
		if was.incarnation != w.Incarnation || came < leastTokens || gaps <= 0 || w.Requests == 0 {
			continue
		}
		l.Generated += came / took
		if batch := gaps / took / float64(w.Ranks()); w.warm(now) { // by Little's law
			c.pace.observe(batch, held/float64(w.Requests)*batch, gaps/came, now)
		}
	}
	c.counts = counts
	s := &c.sides[1]
	if target := c.cfg.ITL.Seconds(); target > 0 && l.Requests > 0 {
		if batch := c.pace.batch(tokens/l.Requests, target); batch > 0 {
			if seqs.Value() > 0 {
				batch = min(batch, seqs.Value())
			}
			s.generates = batch / target
		}
	}
	l.WorkerBlocks, l.WorkerSeqs, l.WorkerGenerates = blocks.Value(), seqs.Value(), s.generates
	share := 1.0
	if can := scaleHorizon.Seconds() * c.sides[0].speed * float64(len(in.Prefill)); can > 0 && in.WaitingUncached > 0 {
		share = min(1, can/float64(in.WaitingUncached))
	}
	l.Requests += share * float64(in.Waiting)
	l.Blocks += share * (float64(in.WaitingTokens)/float64(size) + float64(in.Waiting)) // each rounds up
	return l
}

// plan counts a pool's workers and follows its demand.
func (s *side) plan(l Load, p Pool, cfg Config, now time.Time, since time.Duration) PoolPlan {
	out := PoolPlan{Role: s.role, Reason: Hold}
	pending := map[string]time.Time{}
	for i := range p {
		switch w := &p[i]; {
		case w.Status == pools.Draining:
			out.Draining++
		case w.Pending:
			if pending[w.ID] = s.pending[w.ID]; pending[w.ID].IsZero() {
				pending[w.ID] = now
			}
			if now.Sub(pending[w.ID]) < pendingFor {
				out.Pending++
			}
		default:
			out.Present++
		}
	}
	s.pending, l.Present = pending, out.Present
	out.Demand = l.Demand(cfg.Utilization)
	if s.known = out.Demand.Known; s.smooth == 0 {
		s.smooth = out.Demand.Workers()
	}
	s.smooth += (out.Demand.Workers() - s.smooth) * follow(since, demandTime)
	out.Desired, out.Smooth = s.scaler.Read(l, cfg.Utilization, now), s.smooth
	switch {
	case !s.known:
		out.Reason = ModelNotFit
	case s.smooth > float64(out.Present)+shortBy:
		out.Reason = Short
	case s.smooth <= float64(out.Present-1)-spareBy:
		out.Reason = Spare
	}
	return out
}

// decide begins a move, or gives the reason for none, for the pool that is short.
func (c *Core) decide(d *Decision, in *Inputs, loads [2]Load, now time.Time) {
	for to := range c.sides {
		if d.Pools[to].Reason != Short {
			c.sides[to].wanted = time.Time{}
			continue
		}
		reason, victim := c.weigh(d.Pools, in, loads, to, now)
		d.Pools[to].Reason = reason
		if reason != Moved {
			continue
		}
		c.epoch++
		c.move = &Move{
			ID: c.epoch, Worker: victim.ID, Incarnation: victim.Incarnation, From: c.sides[1-to].role, To: c.sides[to].role,
			State: Draining, Since: now, began: now, Budget: c.cfg.Drain.Seconds(), Demand: [2]float64{c.sides[0].smooth, c.sides[1].smooth},
		}
		d.Move, d.Do = c.move, Cordon
		if c.sides[to].smooth*c.cfg.Utilization >= float64(d.Pools[to].Present) && victim.Switches() == pools.SoftSwitch {
			c.move.State, d.Do = Switching, Switch
		}
		return
	}
}

// weigh returns Moved and the worker to move into pool to, or why there is none.
func (c *Core) weigh(all []PoolPlan, in *Inputs, loads [2]Load, to int, now time.Time) (Reason, *Worker) {
	s, donor, from := &c.sides[to], all[1-to], 1-to
	have, demand := float64(all[to].Present), s.smooth
	blocked := Reason("")
	switch {
	case in.Partial:
		blocked = ViewNotWhole
	case demand <= have+float64(all[to].Pending)+shortBy:
		blocked = PendingWorker
	case !c.sides[from].known:
		blocked = ModelNotFit
	case donor.Present <= []int{c.cfg.MinPrefill, c.cfg.MinDecode}[from]:
		blocked = MinPool
	case c.remaining(loads[from], donor.Present, from) > float64(donor.Present-1)-spareBy:
		blocked = NoDonor
	}
	if blocked != "" {
		s.wanted = time.Time{}
		return blocked, nil
	}
	if s.wanted.IsZero() {
		s.wanted = now
	}
	hold := c.cfg.Hold
	if demand*c.cfg.Utilization >= have {
		hold = c.cfg.HoldShort
	}
	both := [2]Pool{in.Prefill, in.Decode}
	victim := c.victim(both[from], both[to], now)
	steady := loads[to]
	steady.BacklogTokens = 0
	more := steady.Demand(c.cfg.Utilization).Workers() > have+shortBy
	switch last := c.last(); {
	case now.Sub(s.wanted) < hold:
		return Short, nil
	case last != nil && !(more && last.To == s.role && last.Result == resultOK) && now.Sub(last.ended) < last.cooldown(c.cfg.Cooldown):
		return Cooling, nil
	case last != nil && last.From == s.role && now.Sub(last.ended) < c.cfg.Reverse && demand <= urgent*have:
		return Reversed, nil
	case victim == nil:
		return NoCompatible, nil
	case !c.cfg.Acts:
		return AdviseOnly, nil
	}
	return Moved, victim
}

// remaining is a donor's demand with a worker less: work to compute and tokens to generate stay the same, and requests
// stay longer where each worker has more of them.
func (c *Core) remaining(l Load, present, from int) float64 {
	fewer := float64(present) / float64(max(1, present-1))
	l.Blocks, l.Requests = l.Blocks*fewer, l.Requests*fewer
	return max(c.sides[from].smooth, l.Demand(c.cfg.Utilization).Workers())
}

// victim is the worker of a pool that is cheapest to move into another: by the blocks that it caches and those in use.
func (c *Core) victim(from, to Pool, now time.Time) (best *Worker) {
	for i := range from {
		w := &from[i]
		if w.Status != pools.Up || w.Pending || w.Switches() == pools.NoSwitch || now.Before(c.barred[w.ID]) ||
			len(to) > 0 && !slices.ContainsFunc(to, func(o Worker) bool { return w.alike(o.Worker) }) {
			continue
		}
		if best == nil || w.cost() < best.cost() {
			best = w
		}
	}
	return best
}

// alike reports whether two workers could take each other's place in a pool.
func (w *Worker) alike(o *pools.Worker) bool {
	return w.Engine == o.Engine && w.BlockSize == o.BlockSize && w.Connector == o.Connector &&
		max(1, w.TensorParallel) == max(1, o.TensorParallel)
}

// cost is what a move wastes, in blocks.
func (w *Worker) cost() int { return w.CachedBlocks + w.Blocks + w.PrefillTokens/max(1, w.BlockSize) }
