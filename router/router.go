package router

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/kv/overlap"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router/load"
)

// Router chooses for one pool and keeps its bookings. It is safe for concurrent use.
type Router struct {
	sources   *overlap.Sources
	serial    uint64 // the order in which routers are locked together
	limits    atomic.Pointer[Thresholds]
	view      atomic.Pointer[view] // of the snapshot seen last, nil at first
	scratches sync.Pool            // of *scratch

	mu   sync.Mutex // guards what changes of core
	core core
}

// serials numbers the routers of the process.
var serials atomic.Uint64

// New returns a router without bookings. idx may be nil or shared. If the settings weigh no overlap and track no
// prefill tokens, as in a decode pool, prompts are not looked up. The error is [Config.Validate]'s.
func New(cfg Config, idx *index.Index) (*Router, error) {
	if cfg.Occupies == nil {
		cfg.Occupies = cfg.Forecast
	}
	policy, err := newPolicy(cfg)
	if err != nil {
		return nil, err
	}
	cfg.Mode = Canonical(cfg.Mode)
	r := &Router{sources: overlap.New(cfg.sources(), idx), serial: serials.Add(1)}
	r.core.cfg, r.core.policy, r.core.sources, r.core.book = cfg, policy, r.sources, load.NewBook()
	if cfg.BindsLate() {
		r.core.plan = new(plan)
	}
	if cfg.OnBooking != nil {
		r.core.book.Watch()
	}
	if cfg.SessionTTL > 0 {
		r.core.bindings = load.NewSessions(cfg.SessionTTL, cfg.OnBooking != nil)
	}
	r.limits.Store(&cfg.Thresholds)
	r.scratches.New = func() any { return newScratch() }
	return r, nil
}

// Reserve picks a worker of p for req and books it, for a request or leg that runs on one worker. The error is a
// [*PoolError] around [ErrNoWorkers], [ErrTaints], [ErrBusy], [ErrNoRoom], [ErrBooked], [ErrDeclined] or a
// [*TooBigError]; then nothing is booked. It allocates only the Lease.
func (r *Router) Reserve(p *pools.Pool, req Request, now time.Time) (*Lease, error) {
	c := r.begin(p, req, now)
	defer r.end(c)
	r.mu.Lock()
	i, err := r.core.pick(c, now)
	var l *Lease
	if err == nil {
		l = new(Lease)
		err = r.core.grant(l, c, i, now)
	}
	r.mu.Unlock()
	r.core.explain(c)
	if err != nil {
		return nil, c.refuse(err)
	}
	l.sentTo(r, c, now)
	r.booked(true)
	return l, nil
}

// ReservePair picks and books a prefill worker of pp and a decode worker of dp, or neither, each by its own pool's
// policy, prefill first. Errors are those of [Router.Reserve]. If both pools refuse, it returns the error that waiting
// helps least; [ErrNoPrefill] is the prefill pool's ErrNoWorkers. With [Request.StandIn] p may be nil. The routers must
// differ. With [Request.PickOnly] it books nothing: the leases only hold the choices.
func ReservePair(prefill, decode *Router, pp, dp *pools.Pool, preq, dreq Request, now time.Time) (p, d *Lease, err error) {
	if prefill == decode {
		return nil, nil, errOneRouter
	}
	cp := prefill.begin(pp, preq, now)
	defer prefill.end(cp)
	cd := decode.begin(dp, dreq, now)
	defer decode.end(cd)

	lockBoth(prefill, decode)
	i, j, err := pickPair(&prefill.core, &decode.core, cp, cd, now)
	if err == nil && !preq.PickOnly {
		p, d, err = grantPair(&prefill.core, &decode.core, cp, cd, i, j, now)
	}
	decode.mu.Unlock()
	prefill.mu.Unlock()

	if err == nil && preq.PickOnly {
		if d = (&Lease{Choice: cd.choice(j)}); i != none {
			p = &Lease{Choice: cp.choice(i)}
		}
		return p, d, nil
	}
	prefill.core.explain(cp)
	decode.core.explain(cd)
	if err == nil {
		if p != nil {
			p.sentTo(prefill, cp, now)
			prefill.booked(true)
		}
		if d != nil {
			d.sentTo(decode, cd, now)
			decode.booked(true)
		}
	}
	return p, d, err
}

// Pick returns the choice that Reserve would make now, and books nothing.
func (r *Router) Pick(p *pools.Pool, req Request, now time.Time) (Choice, error) {
	c := r.begin(p, req, now)
	defer r.end(c)
	r.mu.Lock()
	i, err := r.core.pick(c, now)
	r.mu.Unlock()
	if err != nil {
		return Choice{}, c.refuse(err)
	}
	return c.choice(i), nil
}

var errOneRouter = errors.New("router: a pair needs two routers")

// Held returns the leading blocks of req's prompt that each worker of p has cached, in the pool's order: its best
// rank's. It is all 0 if overlaps are ignored.
func (r *Router) Held(p *pools.Pool, req Request, now time.Time) []int {
	c := r.begin(p, req, now)
	defer r.end(c)
	held := make([]int, len(p.Members))
	for i := range c.view.slots {
		member := c.view.slots[i].member
		held[member] = max(held[member], int(c.found.Blocks[i]))
	}
	return held
}

// Fits returns a [*TooBigError] if a prompt of isl tokens fits no worker of p, even an empty one: such a request need
// not wait.
func (r *Router) Fits(p *pools.Pool, isl int) error { return r.see(p).fits(isl) }

// Sources returns the sources of the pool's overlaps.
func (r *Router) Sources() *overlap.Sources { return r.sources }

// Loads returns the load of each worker of p, in the pool's order.
func (r *Router) Loads(p *pools.Pool) []WorkerLoad {
	v := r.see(p)
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.core.loads(v)
}

// Overlaps returns those of all bookings so far.
func (r *Router) Overlaps() Overlaps {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.core.overlaps
}

// Bookings returns how many bookings this router has made.
func (r *Router) Bookings() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.core.booked
}

// Draws returns the number of bookings drawn by water filling.
func (r *Router) Draws() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.core.draws
}

// Open returns how many bookings are open.
func (r *Router) Open() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.core.book.Open()
}

// BindsLate reports whether prompts of p wait for their worker in the queue, as in mode eft.
func (r *Router) BindsLate(p *pools.Pool) bool {
	return r.core.plan != nil && r.Mode(p).Policy == "eft"
}

// Mode returns the policy of the next choice in p.
func (r *Router) Mode(p *pools.Pool) Mode { return r.core.mode(r.see(p)) }

// Thresholds returns those in force.
func (r *Router) Thresholds() Thresholds { return *r.limits.Load() }

// SetThresholds sets t, which must be valid, for later choices.
func (r *Router) SetThresholds(t Thresholds) { r.limits.Store(&t) }

// IgnoresOverlap reports whether cached blocks affect no choice and no booking: nothing need be looked up.
func (r *Router) IgnoresOverlap() bool { return r.core.cfg.ignoresOverlap() }

// Predicts reports whether any worker of p is predicted rather than tracked by KV events.
func (r *Router) Predicts(p *pools.Pool) bool { return r.see(p).overlaps.Predicted() }

// NeedsPin reports whether the policy requires requests to name a worker. The caller enforces it.
func (r *Router) NeedsPin() bool { return r.core.cfg.Mode == "direct" }

// Suits reports whether w could serve req if it were up and empty: pin, taints and room.
func (r *Router) Suits(w *pools.Worker, req *Request) bool { return r.core.cfg.suits(w, req) }

// Cost returns the cost function of mode kv: [Classic] or [Credited].
func (r *Router) Cost() string { return r.core.cfg.Cost }

// begin does what needs no lock: view, look-up and filters.
func (r *Router) begin(p *pools.Pool, req Request, now time.Time) *scratch {
	v := r.see(p)
	c, found := req.Look.take(r, v, &req, now)
	if c == nil {
		c = r.scratches.Get().(*scratch)
	}
	r.core.begin(c, v, req, r.limits.Load(), now)
	if !found {
		r.core.find(c, now)
	}
	return c
}

func (r *Router) end(c *scratch) {
	if c.modeChanged && r.core.cfg.OnMode != nil {
		r.core.cfg.OnMode(c.view.pool, c.mode)
	}
	c.end()
	r.scratches.Put(c)
}

// see returns the view of p, cached until the pool or its sources' slots change.
func (r *Router) see(p *pools.Pool) *view {
	if v := r.view.Load(); v != nil && v.pool == p && r.sources.Current(v.overlaps) {
		return v
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	v := r.core.view(p)
	r.view.Store(v)
	return v
}

// has reports whether w is the current process of its name in the pool.
func (r *Router) has(w *pools.Worker) bool {
	v := r.view.Load()
	if v == nil {
		return false
	}
	m, here := v.pool.Member(w.ID)
	return here && m.Worker.Incarnation == w.Incarnation
}

// enter books an event of a lease that has not ended.
func (r *Router) enter(l *Lease, e load.Event, now time.Time) {
	r.mu.Lock()
	l.enter(&r.core, e, now)
	r.mu.Unlock()
	r.booked(false)
}

// lockBoth locks two routers in a fixed order to avoid deadlock.
func lockBoth(a, b *Router) {
	if b.serial < a.serial {
		a, b = b, a
	}
	a.mu.Lock()
	b.mu.Lock()
}
