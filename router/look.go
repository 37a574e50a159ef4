package router

import (
	"time"

	"github.com/tandem-pd/tandem/pools"
)

// lookFor is how long a [Look] is current. A request that is granted at once is booked within microseconds.
const lookFor = time.Millisecond

// Look is a request's prompt looked up in a pool: the next booking of it there uses the result, if it is current. The zero
// value is none. It is not safe for concurrent use.
type Look struct {
	// Blocks is the most leading blocks of the prompt that a worker has cached which may be chosen.
	Blocks int

	router  *Router
	c       *scratch // has the result until it is used
	at      time.Time
	assumed uint64 // see [overlap.Sources.Assumed]
}

// Look looks up req's prompt in p.
func (r *Router) Look(p *pools.Pool, req Request, now time.Time) Look {
	req.Look = nil
	l := Look{router: r, at: now, assumed: r.sources.Assumed()}
	l.c = r.begin(p, req, now)
	v := l.c.view
	for i := range v.slots {
		if v.eligible(&v.slots[i], now) {
			l.Blocks = max(l.Blocks, int(l.c.found.Blocks[i]))
		}
	}
	return l
}

// End drops the result.
func (l *Look) End() {
	if l.c != nil {
		l.router.end(l.c)
		l.c = nil
	}
}

// take returns l's memory, for r alone, and whether it has the overlaps of req with v: neither the pool's snapshot nor what
// is assumed has changed since, and no KV event is older than lookFor.
func (l *Look) take(r *Router, v *view, req *Request, now time.Time) (c *scratch, found bool) {
	if l == nil || l.router != r || l.c == nil {
		return nil, false
	}
	c, l.c = l.c, nil
	was := &c.req
	same := len(was.Hashes) == len(req.Hashes) && (len(req.Hashes) == 0 || &was.Hashes[0] == &req.Hashes[0]) &&
		was.Text == req.Text && was.RemoteOverlap == req.RemoteOverlap
	return c, same && c.view == v && now.Sub(l.at) <= lookFor && l.assumed == r.sources.Assumed()
}
