// Package router chooses the workers of a request, and books the load the
// choice puts on them.
//
// A [Router] serves one pool. It filters the pool's workers for those that may
// be chosen, tells its [Policy] what of the prompt each has cached (from
// router/index) and what is booked on it (from router/load), and books what the
// policy picked before anyone else can pick: a burst of requests is spread by
// what was booked a microsecond ago. A request that runs on two workers gets
// them in one step from [ReservePair], both or neither.
//
// Policies are in policy_*.go and pairers in pair_*.go, one a file. They are
// pure: the same request, candidates and seed make the same choice.
//
// To use it as a library, make a [Router] for each pool with [New], or a [Set] of
// them. Tell its index what workers say they hold (router/index by hand,
// router/events from an engine's messages); without an index, or for workers that
// say nothing, it predicts. Call [Router.Reserve] or [ReservePair] for each
// request, and keep the [Lease]: PrefillDone at the first token, Grow as output
// fills blocks, Withdraw where the prompt never got there, Release at the end.
// [ErrBusy] and [ErrNoRoom] say that waiting may help; [ErrNoWorkers], a
// [*TooBigError] and an [*OverloadedError] that it will not, or not soon. The
// examples show both calls; the one of package handoff, Example_routerBehindQueue,
// has the queue before the router.
//
// The package needs no server: it imports neither discovery, nor a message bus,
// nor HTTP, and takes the time as an argument.
package router

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router/index"
	"github.com/tandem-pd/tandem/router/load"
)

// Router makes the choices for one pool and keeps its bookings. It is safe for
// concurrent use.
type Router struct {
	cfg    Config
	policy Policy
	idx    *index.Index // nil: nothing is known to be cached
	blind  bool         // no choice or booking depends on what is cached
	// predicted is what workers without KV events should hold; nil where nothing
	// is predicted.
	predicted *predictions
	sent      *predictions // of the others, for a moment; nil where nothing is
	parity    *parity      // compares events with answers; nil where nothing is compared
	log       *slog.Logger
	serial    uint64 // the order in which routers are locked together

	limits  atomic.Pointer[Thresholds]
	view    atomic.Pointer[view] // of the snapshot seen last, nil at first
	choices sync.Pool            // of *choice

	mu    sync.Mutex // guards what follows
	book  *load.Book
	turn  uint64 // bookings made
	views uint64 // made of its pool
	// overlaps are what the bookings' overlaps rested on.
	overlaps Overlaps
}

// serials numbers the routers of the process.
var serials atomic.Uint64

// New returns a router without bookings. The index may be nil, and may be shared
// with other routers; a nil log logs nothing. Where the settings weigh no overlap
// and track no prefill tokens, as in a decode pool, prompts are not looked up and
// every overlap is 0. The error is [Config.Validate]'s.
func New(cfg Config, idx *index.Index, log *slog.Logger) (*Router, error) {
	policy, err := newPolicy(cfg)
	if err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	cfg.Mode = Canonical(cfg.Mode)
	r := &Router{
		cfg:    cfg,
		policy: policy,
		idx:    idx,
		log:    log,
		serial: serials.Add(1),
		blind:  cfg.blind(),
		book:   load.NewBook(),
	}
	r.limits.Store(&cfg.Thresholds)
	if !r.blind {
		r.predicted = newPredictions(cfg)
		r.sent = newAside(cfg, r.predicted)
		if idx != nil {
			r.parity = newParity(cfg.Parity, cfg.KVEvents, r.predicted)
		}
	}
	r.choices.New = func() any {
		c := new(choice)
		c.rng = rand.New(&c.pcg)
		return c
	}
	return r, nil
}

// Reserve picks a worker of p for req and books it there, for a request that
// runs on one worker, or one leg of it. The error is a [*PoolError] around
// [ErrNoWorkers], [ErrTaints], [ErrBusy], [ErrNoRoom], [ErrBooked], [ErrDeclined] or a
// [*TooBigError]; nothing is booked then. At steady state it allocates the
// Lease and nothing else.
func (r *Router) Reserve(p *pools.Pool, req Request, now time.Time) (*Lease, error) {
	c := r.begin(p, &req, now)
	defer r.end(c)
	r.mu.Lock()
	i, err := r.pick(c, &req, now)
	var l *Lease
	if err == nil {
		l, err = r.grant(c, i, &req, now)
	}
	r.mu.Unlock()
	r.explain(c, &req)
	if err != nil {
		return nil, &PoolError{p.Model, p.Role, err}
	}
	r.predict(l, &req, now)
	return l, nil
}

// ReservePair picks a worker for each leg of req and books both, or neither.
// The error is as of [Router.Reserve]; where both pools refuse, it is that of
// the refusal which waiting changes least; [ErrNoPrefill] is the prefill pool's
// ErrNoWorkers. The two routers must be different.
func ReservePair(prefill, decode *Router, pairer Pairer, pp, dp *pools.Pool, req Request, now time.Time) (p, d *Lease, err error) {
	if prefill == decode {
		return nil, nil, errors.New("router: a pair needs two routers")
	}
	preq, dreq := req, req.Second()
	cp := prefill.begin(pp, &preq, now)
	defer prefill.end(cp)
	cd := decode.beginBeside(prefill, cp, dp, &dreq, now)
	defer decode.end(cd)

	lockBoth(prefill, decode)
	p, d, err = pickPair(prefill, decode, pairer, cp, cd, &preq, &dreq, now)
	decode.mu.Unlock()
	prefill.mu.Unlock()

	prefill.explain(cp, &preq)
	decode.explain(cd, &dreq)
	if err == nil {
		prefill.predict(p, &preq, now)
		decode.predict(d, &dreq, now)
	}
	return p, d, err
}

// Pick makes the choice that Reserve would make now, and books nothing.
func (r *Router) Pick(p *pools.Pool, req Request, now time.Time) (Candidate, Why, error) {
	c := r.begin(p, &req, now)
	defer r.end(c)
	r.mu.Lock()
	i, err := r.pick(c, &req, now)
	r.mu.Unlock()
	if err != nil {
		return Candidate{}, Why{}, &PoolError{p.Model, p.Role, err}
	}
	return c.ws[i], c.told(&req), nil
}

// BestOverlap returns the most leading blocks of a prompt that any worker of p
// which may be chosen now has cached. It is what a queue needs to know how much
// of a request is left to compute.
func (r *Router) BestOverlap(p *pools.Pool, hashes []uint64, now time.Time) int {
	return r.BestOverlapFor(p, Request{Hashes: hashes}, now)
}

// BestOverlapFor is [Router.BestOverlap] of a request's prompt, with what the
// request was told of it.
func (r *Router) BestOverlapFor(p *pools.Pool, req Request, now time.Time) int {
	c := r.begin(p, &req, now)
	defer r.end(c)
	best := 0
	for i := range c.view.seats {
		if c.view.eligible(&c.view.seats[i], now) {
			best = max(best, int(c.runs[i]))
		}
	}
	return best
}

// Fits returns a [*TooBigError] when a prompt of isl tokens would not fit any
// worker of p, empty as it may be. Whoever asks before queueing spares a request
// that can never be served the wait behind those that can.
func (r *Router) Fits(p *pools.Pool, isl int) error {
	v := r.see(p)
	req := Request{ISL: isl, BlockSize: v.blockSize}
	need := req.blocks() + 1
	for i := range v.seats {
		if need <= v.seats[i].blocks {
			return nil
		}
	}
	if len(v.seats) == 0 {
		return nil
	}
	return &TooBigError{NeedBlocks: need, LargestBlocks: v.largest}
}

// WorkerLoad is what a router knows of one worker, over all its ranks.
type WorkerLoad struct {
	Worker        string `json:"id"`
	ActiveBlocks  int    `json:"active_blocks"`
	PrefillTokens int    `json:"prefill_tokens"`
	Requests      int    `json:"requests"`
	CachedBlocks  int    `json:"cached_blocks"`
	// SentBlocks is how many blocks it was sent within [Config.PredictedTTL]: they
	// are believed to be cached beside CachedBlocks, of which they may be.
	SentBlocks int `json:"sent_blocks,omitempty"`
}

// Loads returns the load of each worker of p, in the pool's order.
func (r *Router) Loads(p *pools.Pool) []WorkerLoad {
	v := r.see(p)
	loads := make([]WorkerLoad, len(p.Members))
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range v.seats {
		s := &v.seats[i]
		l := &loads[s.member]
		l.Worker = s.worker.ID
		l.ActiveBlocks += s.page.ActiveBlocks
		l.PrefillTokens += s.page.PrefillTokens
		l.Requests += s.page.Requests
		l.SentBlocks += r.sent.blocks(v.sent[i])
		switch {
		case s.predicted:
			l.CachedBlocks += r.predicted.blocks(v.guessed[i])
		case r.idx != nil:
			l.CachedBlocks += r.idx.Blocks(v.known[i])
		}
	}
	return loads
}

// Open returns how many bookings are open.
func (r *Router) Open() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.book.Open()
}

// pick has the policy choose among those that may be chosen. The caller holds
// r.mu.
func (r *Router) pick(c *choice, req *Request, now time.Time) (int, error) {
	var err error
	if c.ws, err = r.candidates(c, req, now); err != nil {
		return 0, err
	}
	req.Turn = r.turn
	c.shuffle(req)
	i, cost, ok := r.policy.Pick(*req, c.ws, now, c.rng, &c.why)
	if !ok {
		return 0, ErrDeclined
	}
	c.settle(i, cost)
	return i, nil
}

// candidates are who may be chosen for req. The caller holds r.mu.
func (r *Router) candidates(c *choice, req *Request, now time.Time) ([]Candidate, error) {
	r.book.Look(req.shares(&r.cfg))
	c.tiers, c.limits = r.cfg.Cost == Credited, r.limits.Load()
	return c.view.choices(c, req, r.book, now)
}

// pickPair is pick and grant for two legs. The caller holds both routers' locks.
func pickPair(prefill, decode *Router, pairer Pairer, cp, cd *choice, preq, dreq *Request, now time.Time) (p, d *Lease, err error) {
	var perr, derr error
	cp.ws, perr = prefill.candidates(cp, preq, now)
	cd.ws, derr = decode.candidates(cd, dreq, now)
	if perr != nil && errors.Is(perr, ErrNoWorkers) {
		if perr == ErrTaints {
			perr = ErrNoPrefillTaints
		} else {
			perr = ErrNoPrefill
		}
	}
	if perr != nil && finality(perr) >= finality(derr) {
		return nil, nil, cp.refuse(perr)
	}
	if derr != nil {
		return nil, nil, cd.refuse(derr)
	}

	preq.Turn, preq.DecodeTurn = prefill.turn, decode.turn
	cp.shuffle(preq)
	cp.pair = PairWhy{cp.why, cd.why}
	i, j, ok := pairer.PickPair(*preq, cp.ws, cd.ws, nil, now, cp.rng, &cp.pair)
	cp.why, cd.why = cp.pair.Prefill, cp.pair.Decode
	cp.pair = PairWhy{}
	if !ok {
		return nil, nil, cp.refuse(ErrDeclined)
	}
	cp.settle(i, cp.why.Cost)
	cd.settle(j, cd.why.Cost)

	before := prefill.overlaps
	if p, err = prefill.grant(cp, i, preq, now); err != nil {
		return nil, nil, cp.refuse(err)
	}
	if d, err = decode.grant(cd, j, dreq, now); err != nil {
		prefill.turn--
		prefill.overlaps = before
		p.free(now)
		return nil, nil, cd.refuse(err)
	}
	return p, d, nil
}

// grant books candidate i. The caller holds r.mu.
func (r *Router) grant(c *choice, i int, req *Request, now time.Time) (*Lease, error) {
	w := &c.ws[i]
	l := &Lease{
		Worker: w.Worker, Rank: w.Rank, Why: c.told(req),
		router: r, request: req.ID, attempt: req.Attempt,
	}
	e := l.event(load.Add)
	e.Worker, e.Rank = w.Worker.ID, w.Rank
	if r.cfg.TrackPrefillTokens {
		cached := w.Overlap * req.BlockSize
		if c.tiers { // what a slower tier holds is loaded instead of computed, in part of the time
			cached += int(r.cfg.Credit.lower(w) * float64(req.BlockSize))
		}
		l.PrefillTokens = max(0, req.ISL-cached)
		l.BacklogTokens = w.Load.PrefillTokens + l.PrefillTokens
		e.PrefillTokens = l.PrefillTokens
		if r.cfg.PrefillLoad == Online && r.cfg.Forecast != nil && l.PrefillTokens > 0 {
			if d, ok := r.cfg.Forecast(w.Worker, 0, l.PrefillTokens, req.ISL-l.PrefillTokens); ok {
				e.PrefillTime = d
			}
		}
	}
	if r.cfg.TrackActiveBlocks {
		e.Chain = req.held(&r.cfg)
		e.Blocks = req.blocks() - len(e.Chain)
		switch {
		case !r.cfg.TrackOutputBlocks:
			e.Expected = load.Unweighed
		case req.OSL > 0:
			e.Expected = (req.OSL + req.BlockSize - 1) / max(1, req.BlockSize)
		}
	}
	if !r.book.Apply(e, now) {
		return nil, ErrBooked
	}
	r.turn++
	r.overlaps.add(w, req.Text || r.predicted.of(w.Worker, w.Rank))
	l.believed = r.believe(c, w, req)
	return l, nil
}

// predict notes what the booked worker is about to compute. The caller does not
// hold r.mu: a long prompt takes a while.
func (r *Router) predict(l *Lease, req *Request, now time.Time) {
	r.predicted.note(l, req, now)
	r.sent.note(l, req, now)
}

// explain logs each candidate's formula at debug level.
func (r *Router) explain(c *choice, req *Request) {
	if len(c.why.Terms) == 0 || !r.log.Enabled(context.Background(), slog.LevelDebug) {
		return
	}
	for _, t := range c.why.Terms {
		r.log.Debug(t.String(), "request", req.ID, "attempt", req.Attempt, "pool", c.view.pool.Name(), "rank", t.Rank)
	}
}

// lockBoth locks two routers, always the older first, so that pairs never wait
// for each other in a ring.
func lockBoth(a, b *Router) {
	if b.serial < a.serial {
		a, b = b, a
	}
	a.mu.Lock()
	b.mu.Lock()
}
