package router

import (
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router/index"
	"github.com/tandem-pd/tandem/router/load"
)

// view is what a router works out once for each snapshot of its pool. It is
// immutable but for the accounts it points to, which the router's lock guards, and
// the layout that was placed last.
type view struct {
	pool      *pools.Pool
	epoch     uint64 // of the index when its owners were looked up
	doubts    *map[Rank]struct{}
	seed      uint64 // of the pool's random choices
	blockSize int    // tokens
	largest   int    // total_kv_blocks of the largest worker
	seats     []seat // by worker id, then rank
	followed  bool   // prompts are looked up in the index of what workers publish
	predicted bool   // a seat is predicted
	placed    atomic.Pointer[placing]
}

// seat is one (worker, rank) of a pool.
type seat struct {
	worker *pools.Worker
	page   *load.Page // its bookings
	member int        // its place in the pool
	rank   int
	owner  index.Owner // in the router's index, or in that of its predictions

	predicted bool
	busyAbove float64 // booked prefill tokens above which it is busy
	blocks    int     // limit of active blocks
	seqs      int     // limit of requests
}

// see returns the view of p, the same one until the pool or the index's owners
// have changed.
func (r *Router) see(p *pools.Pool) *view {
	var epoch uint64
	if r.idx != nil {
		epoch = r.idx.Epoch()
	}
	doubts := r.predicted.doubts()
	if v := r.view.Load(); v != nil && v.pool == p && v.epoch == epoch && v.doubts == doubts {
		return v
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.predicted != nil {
		r.parity.meet(p)
		r.predicted.meet(p)
	}
	v := &view{pool: p, epoch: epoch, doubts: doubts, seed: xxh3.HashStringSeed(p.Name(), r.cfg.Seed), blockSize: 1}
	r.book.Prune(func(worker string) bool {
		_, stays := p.Member(worker)
		return stays
	})
	for i, m := range p.Members {
		for rank := range m.Worker.Ranks() {
			s := r.seat(m.Worker, i, rank)
			v.seats = append(v.seats, s)
			v.predicted = v.predicted || s.predicted
			v.followed = v.followed || !r.blind && (!s.predicted || r.parity.compares(m.Worker, rank))
		}
		v.blockSize = max(1, m.Worker.BlockSize)
		v.largest = max(v.largest, m.Worker.TotalKVBlocks)
	}
	r.view.Store(v)
	return v
}

// seat works out what stays the same about a worker's rank. The caller holds
// r.mu.
func (r *Router) seat(w *pools.Worker, member, rank int) seat {
	s := seat{
		worker: w, page: r.book.Page(w.ID, rank), member: member, rank: rank,
		owner: index.NoOwner, busyAbove: math.Inf(1), blocks: math.MaxInt, seqs: math.MaxInt,
	}
	switch s.predicted = r.predicted.of(w, rank); {
	case s.predicted:
		s.owner, _ = r.predicted.idx.Lookup(w.ID, rank)
	case r.idx != nil:
		s.owner, _ = r.idx.Lookup(w.ID, rank)
	}
	if r.cfg.QueueThreshold >= 0 {
		batch := w.MaxNumBatchedTokens
		if batch == 0 {
			batch = r.cfg.DefaultMaxBatchedTokens
		}
		s.busyAbove = r.cfg.QueueThreshold * float64(batch)
	}
	if r.cfg.Room && w.TotalKVBlocks > 0 {
		s.blocks = w.TotalKVBlocks
	}
	if r.cfg.Room && w.MaxNumSeqs > 0 {
		s.seqs = w.MaxNumSeqs
	}
	return s
}

// choices appends to c.ws the candidates for req, or says why there are none.
//
// Filters go in the order of router-semantics §2.2: whom the request names, the
// taints it requires, who may be chosen now, and who is above no threshold. The
// pool is busy while all that are left are; once one is not, all of them with
// room are candidates, the busy ones too: their cost tells. The caller holds the
// router's lock.
func (v *view) choices(c *choice, req *Request, book *load.Book, now time.Time) ([]Candidate, error) {
	need := req.blocks() + 1
	cached := req.ISL / v.blockSize // no more than this can count as overlap
	ws := slices.Grow(c.ws, len(v.seats))
	var fits, fitsUntried, eligible, standing, idle, named, borne bool
	var out over
	pinned, tainted := req.Pin != nil, len(req.Required) > 0
	prefers := len(req.Preferred) > 0 && (!pinned || req.Pin.Worker == "")
	limited := *c.limits != Thresholds{}
	largest := v.largest
	if pinned || tainted {
		largest = 0
	}
	for i := range v.seats {
		s := &v.seats[i]
		if pinned {
			if !req.Pin.admits(s) {
				continue
			}
			named = true
		}
		if tainted && !bears(s.worker, req.Required) {
			continue
		}
		borne = true
		if pinned || tainted {
			largest = max(largest, s.worker.TotalKVBlocks)
		}
		fit := need <= s.blocks
		fits = fits || fit
		if len(req.Exclude) > 0 && slices.Contains(req.Exclude, s.worker.ID) {
			continue
		}
		fitsUntried = fitsUntried || fit
		if !v.pool.Members[s.member].Eligible(now) {
			continue
		}
		eligible = true
		prefill := s.page.Prefill(now)
		if limited && c.limits.takesOut(s, prefill, &out) {
			continue
		}
		standing = true
		idle = idle || float64(prefill) <= s.busyAbove
		shared := min(book.Shared(s.page), cached)
		if !fit || s.page.ActiveBlocks+need-shared > s.blocks || s.page.Requests >= s.seqs {
			continue
		}
		// In place: a Candidate made elsewhere and appended takes twice as long.
		ws = ws[:len(ws)+1]
		w := &ws[len(ws)-1]
		w.Worker, w.Rank = s.worker, s.rank
		m := c.seen
		if s.predicted {
			m = c.foreseen
		}
		if h := c.heard(i); h != nil {
			h.overlap(w, cached, c.tiers)
		} else {
			w.Overlap = min(m.Leading(s.owner), cached)
			if c.tiers {
				w.slower(m, s.owner, cached)
			}
		}
		w.Shared = shared
		w.Load = s.page.Account
		w.Load.PrefillTokens = prefill
		// The rest is zero: end clears what a choice has used.
		if prefers {
			w.Favour = favour(s.worker, req.Preferred)
		}
	}
	switch {
	case len(v.seats) == 0, pinned && !named:
		return ws, ErrNoWorkers
	case !borne:
		return ws, ErrTaints
	case !fits:
		return ws, &TooBigError{NeedBlocks: need, LargestBlocks: largest}
	case (!eligible || !fitsUntried) && tainted:
		return ws, ErrTaints
	case !eligible || !fitsUntried:
		return ws, ErrNoWorkers
	case !standing:
		return ws, out.err()
	case !idle:
		return ws, ErrBusy
	case len(ws) == 0:
		return ws, ErrNoRoom
	}
	return ws, nil
}

// slower sets what the tiers below the device hold, no more in all than what
// may count as cached.
func (c *Candidate) slower(m *index.Matches, o index.Owner, cached int) {
	left := cached - c.Overlap
	for _, t := range [...]struct {
		blocks *int32
		tier   index.Tier
	}{{&c.Host, index.Host}, {&c.Disk, index.Disk}, {&c.Remote, index.Shared}} {
		n := min(left, m.Tier(o, t.tier))
		*t.blocks = int32(n)
		left -= n
	}
}
