package router

import (
	"math"
	"slices"
	"time"

	"github.com/tandem-pd/tandem/router/affinity"
)

// sessionOf is what a choice found out about the request's session.
type sessionOf struct {
	hash    uint64 // 0: the request has none, or no session is bound
	from    uint64 // the worker that it is bound to, if that cannot be chosen
	counted bool   // its use
}

// bound returns the candidate that the request's session is bound to, −1 where there is none. A worker that is up and that the
// request cannot have now, because it is full, busy or not what the request requires, keeps its session: the next request finds it
// there. One that is down, cordoned, blocked by its circuit or was tried by this request does not.
func (k *core) bound(c *scratch, now time.Time) int {
	if c.session = (sessionOf{}); k.bindings == nil || c.query.Session == "" {
		return -1
	}
	c.session.hash = affinity.Hash(c.query.Session)
	worker, rank, ok := k.bindings.Find(c.session.hash, now)
	if !ok {
		return -1
	}
	first, here := c.view.first[worker]
	if !here || int(rank) >= c.view.slots[first].worker.Ranks() {
		c.session.from = worker
		return -1
	}
	s := &c.view.slots[first+rank]
	for i := range c.ws {
		if c.ws[i].slot == first+rank {
			if k.overdue(c, i) {
				return -1
			}
			return i
		}
	}
	if !c.view.eligible(s, now) || slices.Contains(c.query.Exclude, s.worker.ID) {
		c.session.from = worker
	}
	return -1
}

// overdue reports whether candidate i has more prompt tokens to compute than the queue's threshold allows. Where prompts wait for
// their worker in the queue, those count that are planned for it, by the time that they should take.
func (k *core) overdue(c *scratch, i int) bool {
	w := &c.ws[i]
	limit := c.view.slots[w.slot].busyAbove
	if !c.query.late {
		return float64(w.Load.PrefillTokens) > limit
	}
	return limit < math.MaxInt32 && w.Left > k.cfg.Forecast.takes(w.Worker, int(limit), 0)
}

// Bind takes in that the lease's worker has begun to serve the request: a prefill worker has computed the prompt, another one has
// sent the first token. The request's session is bound to it from then on, if it was not bound yet or its worker could not be
// chosen. Where the request names no session, or none is bound, Bind does nothing. It may be called again, at the end of an answer.
func (l *Lease) Bind(now time.Time) {
	if l.session.hash == 0 {
		return
	}
	r, s := l.router, &l.session
	r.mu.Lock()
	r.core.bindings.Use(s.hash, affinity.Hash(l.Worker.ID), int32(l.Rank), s.from, !s.counted, now)
	s.from, s.counted = 0, true
	r.mu.Unlock()
	r.booked(false)
}

// Unbind takes in that the lease's worker has failed the request: the session is bound to it no longer.
func (l *Lease) Unbind(now time.Time) {
	if l.session.hash == 0 {
		return
	}
	l.router.mu.Lock()
	l.router.core.bindings.Drop(l.session.hash, affinity.Hash(l.Worker.ID), int32(l.Rank), now)
	l.router.mu.Unlock()
	l.router.booked(false)
}

// BindsSessions reports whether sessions are bound to workers.
func (r *Router) BindsSessions() bool { return r.core.bindings != nil }

// Bindings is what has happened to the pool's bindings of sessions.
func (r *Router) Bindings(now time.Time) (c affinity.Counts) {
	r.bindings(func(t *affinity.Table) { c = t.Counts(now) })
	return c
}

// BindingDeltas calls visit with all bindings that other gateways are to hear, some at a time: see [affinity.Table.Delta].
func (r *Router) BindingDeltas(now time.Time, visit func(clock int64, all []affinity.Binding)) {
	r.bindings(func(t *affinity.Table) {
		for clock, all := t.Delta(now); len(all) > 0; clock, all = t.Delta(now) {
			visit(clock, all)
		}
	})
}

// BindingsClock is what other gateways hear without a binding, 0 for nothing: see [affinity.Table.Clock].
func (r *Router) BindingsClock(now time.Time) (clock int64) {
	r.bindings(func(t *affinity.Table) { clock = t.Clock(now) })
	return clock
}

// ApplyBindings takes in those of another gateway: see [affinity.Table.Apply].
func (r *Router) ApplyBindings(clock int64, all []affinity.Binding, now time.Time) {
	r.bindings(func(t *affinity.Table) { t.Apply(clock, all, now) })
}

// ResendBindings has all bindings be said again, because another gateway has joined, some at each ResendNextBindings.
func (r *Router) ResendBindings(now time.Time) {
	r.bindings(func(t *affinity.Table) { t.Resend(now) })
}

// ResendNextBindings has some more bindings be said again, and reports whether there were any.
func (r *Router) ResendNextBindings() (any bool) {
	r.bindings(func(t *affinity.Table) { any = t.ResendNext() })
	return any
}

// bindings calls f with the table, if there is one.
func (r *Router) bindings(f func(t *affinity.Table)) {
	if r.core.bindings != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		f(r.core.bindings)
	}
}
