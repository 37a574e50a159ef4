package router

import (
	"math"
	"slices"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/tandem-pd/tandem/router/load"
)

// crowded bounds the cost of a session's own worker, in multiples of the mean.
const crowded = 1.25

// alike reports whether the candidates differ in load only, and not in cached blocks or preference.
func alike(ws []candidate) bool {
	for i := range ws {
		a, b := &ws[i], &ws[0]
		if a.Overlap != b.Overlap || a.Host != b.Host || a.Disk != b.Disk || a.Shared != b.Shared || a.Favour != b.Favour {
			return false
		}
	}
	return true
}

// home returns the candidate that ranks first for the session by rendezvous hashing, among those that cost at most
// [crowded] times the mean. All gateways rank alike, and a joining or leaving worker moves only its own sessions. A
// policy without costs compares requests in flight.
func (c *scratch) home() int {
	if math.IsNaN(c.costs[0]) {
		for i := range c.ws {
			c.costs[i] = float64(c.ws[i].Load.Requests)
		}
	}
	var sum float64
	for _, cost := range c.costs {
		sum += cost
	}
	limit := float64(crowded * sum / float64(len(c.costs)))
	session := xxh3.HashString(c.query.Session)
	first, most := 0, uint64(0)
	for i := range c.ws {
		w := &c.ws[i]
		if rank := xxh3.HashStringSeed(w.Worker.ID, session+uint64(w.Rank)); c.costs[i] <= limit && rank >= most {
			first, most = i, rank
		}
	}
	return first
}

// sessionOf is the session state of a choice.
type sessionOf struct {
	hash    uint64 // 0: no session, or sessions are not bound
	from    uint64 // the worker it is bound to, if that cannot be chosen
	counted bool   // its use
}

// bound returns the candidate that the request's session is bound to, −1 for none. A worker that is up but full, busy
// or not what the request requires keeps its session. One that is down, cordoned, blocked by its circuit or already
// tried does not.
func (k *core) bound(c *scratch, now time.Time) int {
	if c.session = (sessionOf{}); k.bindings == nil || c.query.Session == "" {
		return -1
	}
	c.session.hash = load.SessionHash(c.query.Session)
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

// overdue reports whether candidate i has more prompt tokens to compute than the queue's threshold. Where prompts wait
// for their worker in the queue, prompts planned for it count too, by their predicted time.
func (k *core) overdue(c *scratch, i int) bool {
	w := &c.ws[i]
	limit := c.view.slots[w.slot].busyAbove
	if !c.query.late {
		return float64(w.Load.PrefillTokens) > limit
	}
	return limit < math.MaxInt32 && w.Left > k.cfg.Occupies.takes(w.Worker, int(limit), 0)
}

// Bind records that the lease's worker began to serve the request: the prompt is computed, or the first token sent. It
// binds the request's session to the worker unless the session is bound to one that can be chosen. It may be called
// again at the end of an answer.
func (l *Lease) Bind(now time.Time) {
	if l.session.hash == 0 {
		return
	}
	r, s := l.router, &l.session
	r.mu.Lock()
	r.core.bindings.Use(s.hash, load.SessionHash(l.Worker.ID), int32(l.Rank), s.from, !s.counted, now)
	s.from, s.counted = 0, true
	r.mu.Unlock()
	r.booked(false)
}

// Unbind ends the session's binding to the lease's worker, which failed the request.
func (l *Lease) Unbind(now time.Time) {
	if l.session.hash == 0 {
		return
	}
	l.router.mu.Lock()
	l.router.core.bindings.Drop(l.session.hash, load.SessionHash(l.Worker.ID), int32(l.Rank), now)
	l.router.mu.Unlock()
	l.router.booked(false)
}

// BindsSessions reports whether sessions are bound to workers.
func (r *Router) BindsSessions() bool { return r.core.bindings != nil }

// Bindings returns the counts of the pool's bindings.
func (r *Router) Bindings(now time.Time) (c load.SessionCounts) {
	r.bindings(func(t *load.Sessions) { c = t.Counts(now) })
	return c
}

// BindingDeltas calls visit with bindings to publish, in batches: see [load.Sessions.Delta].
func (r *Router) BindingDeltas(now time.Time, visit func(clock int64, all []load.SessionBinding)) {
	r.bindings(func(t *load.Sessions) {
		for clock, all := t.Delta(now); len(all) > 0; clock, all = t.Delta(now) {
			visit(clock, all)
		}
	})
}

// BindingsClock returns the clock to publish without a binding, 0 for none: see [load.Sessions.Clock].
func (r *Router) BindingsClock(now time.Time) (clock int64) {
	r.bindings(func(t *load.Sessions) { clock = t.Clock(now) })
	return clock
}

// ApplyBindings applies another gateway's bindings: see [load.Sessions.Apply].
func (r *Router) ApplyBindings(clock int64, all []load.SessionBinding, now time.Time) {
	r.bindings(func(t *load.Sessions) { t.Apply(clock, all, now) })
}

// ResendBindings marks all bindings to be published again, because a gateway joined.
func (r *Router) ResendBindings(now time.Time) {
	r.bindings(func(t *load.Sessions) { t.Resend(now) })
}

// ResendNextBindings queues the next batch of them, and reports whether there was one.
func (r *Router) ResendNextBindings() (any bool) {
	r.bindings(func(t *load.Sessions) { any = t.ResendNext() })
	return any
}

// bindings calls f with the table, if there is one.
func (r *Router) bindings(f func(t *load.Sessions)) {
	if r.core.bindings != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		f(r.core.bindings)
	}
}
