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
	number    uint64 // of the router's views, from 1
	epoch     uint64 // of the index when its owners were looked up
	doubts    *map[Rank]struct{}
	seed      uint64        // of the pool's random choices
	blockSize int           // tokens
	largest   int           // total_kv_blocks of the largest worker
	seats     []seat        // by worker id, then rank
	known     []index.Owner // by seat, in the router's index; NoOwner of those predicted
	sent      []index.Owner // by seat, in that beside events; NoOwner of those that are not in it
	aside     bool          // there is such a seat
	guessed   []index.Owner // by seat, in that of its predictions; NoOwner of the others
	texted    []index.Owner // by seat, in that of its predictions, the others too: for prompts of text
	roomiest  int           // the largest of the seats' limits of blocks
	steady    bool          // every seat stands
	followed  bool          // prompts are looked up in the index of what workers publish
	predicted bool          // a seat is predicted
	placed    atomic.Pointer[placing]
}

// seat is one (worker, rank) of a pool. A choice reads every one of them, so it
// has what the choice needs and fits one line of the processor's cache.
type seat struct {
	page      *load.Page // its bookings
	worker    *pools.Worker
	busyAbove float64 // booked prefill tokens above which it is busy
	blocks    int     // limit of active blocks
	seqs      int     // limit of requests
	member    int32   // its place in the pool
	rank      int32
	standing  standing
	predicted bool
}

// standing is whether a seat may be chosen, as far as its pool's snapshot tells
// once and for all.
type standing uint8

const (
	stands standing = iota // as long as the snapshot is in force
	waits                  // from a time on: ask the member
	barred                 // not while the snapshot is in force
)

// standingOf is the standing of m's ranks.
func standingOf(m *pools.Member) standing {
	switch m.Status {
	case pools.Up:
		return stands
	case pools.Down:
		return waits
	}
	return barred
}

// eligible reports whether s may be chosen at now.
func (v *view) eligible(s *seat, now time.Time) bool {
	return s.standing == stands || s.standing == waits && v.pool.Members[s.member].Eligible(now)
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
	if r.sent != nil {
		r.sent.meet(p)
	}
	r.views++
	v := &view{pool: p, number: r.views, epoch: epoch, doubts: doubts, seed: xxh3.HashStringSeed(p.Name(), r.cfg.Seed), blockSize: 1, steady: true}
	r.book.Prune(func(worker string) bool {
		_, stays := p.Member(worker)
		return stays
	})
	for i, m := range p.Members {
		for rank := range m.Worker.Ranks() {
			s := r.seat(&p.Members[i], rank)
			s.member = int32(i)
			v.seats = append(v.seats, s)
			o := r.owners(&s)
			v.known, v.guessed, v.texted, v.sent = append(v.known, o.known), append(v.guessed, o.guessed), append(v.texted, o.texted), append(v.sent, o.sent)
			v.aside = v.aside || o.sent != index.NoOwner
			v.roomiest = max(v.roomiest, s.blocks)
			v.steady = v.steady && s.standing == stands
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
func (r *Router) seat(m *pools.Member, rank int) seat {
	w := m.Worker
	s := seat{
		worker: w, page: r.book.Page(w.ID, rank), rank: int32(rank), standing: standingOf(m),
		predicted: r.predicted.of(w, rank),
		busyAbove: math.Inf(1), blocks: math.MaxInt, seqs: math.MaxInt,
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

// owners are who stands for a seat in each index in which it is to be believed;
// texted for prompts of which the text alone is known.
type owners struct{ known, guessed, texted, sent index.Owner }

// owners are those of s.
func (r *Router) owners(s *seat) owners {
	o := owners{index.NoOwner, index.NoOwner, index.NoOwner, index.NoOwner}
	id, rank := s.worker.ID, int(s.rank)
	if r.predicted != nil {
		o.texted, _ = r.predicted.idx.Lookup(id, rank)
	}
	switch {
	case s.predicted:
		o.guessed = o.texted
	case r.idx != nil:
		o.known, _ = r.idx.Lookup(id, rank)
	}
	if r.sent.of(s.worker, rank) {
		o.sent, _ = r.sent.idx.Lookup(id, rank)
	}
	return o
}

// narrow finds the seats that req leaves in the choice, by all that needs no
// lock. Filters go in the order of router-semantics §2.2: whom the request names,
// the taints it requires, who may be chosen now; choices goes on with who is above
// no threshold.
func (v *view) narrow(c *choice, req *Request, now time.Time) {
	need := req.blocks() + 1
	c.met, c.kept, c.largest = 0, c.kept[:0], v.largest
	pinned, tainted := req.Pin != nil, len(req.Required) > 0
	if c.all = v.steady && !pinned && !tainted && len(req.Exclude) == 0; c.all {
		c.met = borne
		if need <= v.roomiest {
			c.met |= fits | able
		}
		return
	}
	if pinned || tainted {
		c.largest = 0
	}
	for i := range v.seats {
		s := &v.seats[i]
		if pinned {
			if !req.Pin.admits(s) {
				continue
			}
			c.met |= named
		}
		if tainted && !bears(s.worker, req.Required) {
			continue
		}
		c.met |= borne
		if pinned || tainted {
			c.largest = max(c.largest, s.worker.TotalKVBlocks)
		}
		if need > s.blocks {
			continue
		}
		c.met |= fits
		if !slices.Contains(req.Exclude, s.worker.ID) && v.eligible(s, now) {
			c.met |= able
			c.kept = append(c.kept, int32(i))
		}
	}
}

// choices returns the candidates for req in the memory of c.ws, or says why
// there are none. The pool is busy while all that are left by narrow and the
// thresholds are; once one is not, all of them with room are candidates, the busy
// ones too: their cost tells. The caller holds the router's lock.
func (v *view) choices(c *choice, req *Request, book *load.Book, now time.Time) ([]Candidate, error) {
	need := req.blocks() + 1
	cached := req.ISL / v.blockSize // no more than this can count as overlap
	left := len(c.kept)
	if c.all {
		left = len(v.seats)
	}
	ws := slices.Grow(c.ws[:0], left)[:left]
	n := 0
	var out over
	met := c.met
	pinned, tainted := req.Pin != nil, len(req.Required) > 0
	prefers := len(req.Preferred) > 0 && (!pinned || req.Pin.Worker == "")
	limited := *c.limits != Thresholds{}
	runs, said := c.runs[:len(v.seats)], c.said[:len(v.seats)]
	for k := range left {
		i := k
		if !c.all {
			i = int(c.kept[k])
		}
		s := &v.seats[i]
		if need > s.blocks {
			continue // its load says nothing of those that could hold the prompt
		}
		page := s.page
		prefill := page.Prefill(now)
		if limited && c.limits.takesOut(s, prefill, &out) {
			continue
		}
		met |= below
		if len(req.Ahead) > 0 && claimed(req.Ahead, v.pool.Role, s) {
			continue // as good as full
		}
		if float64(prefill) <= s.busyAbove {
			met |= idle
		}
		shared := min(book.Shared(page), cached)
		if page.ActiveBlocks+need-shared > s.blocks || page.Requests >= s.seqs {
			continue
		}
		// In place, and every field: what an earlier choice left is there. A Candidate
		// made elsewhere and appended takes twice as long.
		w := &ws[n]
		n++
		w.Worker, w.Rank = s.worker, int(s.rank)
		w.Overlap = min(int(runs[i]), cached)
		w.Foreseen = int32(w.Overlap - min(int(said[i]), cached))
		w.Load = page.Account
		w.Load.PrefillTokens = prefill
		w.Shared = shared
		w.Host, w.Disk, w.Remote, w.Favour = 0, 0, 0, 0
		if prefers {
			w.Favour = favour(s.worker, req.Preferred)
		}
		if c.tiers {
			if h := c.heard(i); h != nil {
				w.slower(h.Host, h.Disk, h.Remote, cached)
			} else if o := v.known[i]; o != index.NoOwner {
				w.slower(int32(c.seen.Tier(o, index.Host)), int32(c.seen.Tier(o, index.Disk)), int32(c.seen.Tier(o, index.Shared)), cached)
			}
		}
	}
	ws = ws[:n]
	switch {
	case len(v.seats) == 0, pinned && met&named == 0:
		return ws, ErrNoWorkers
	case met&borne == 0:
		return ws, ErrTaints
	case met&fits == 0:
		return ws, &TooBigError{NeedBlocks: need, LargestBlocks: c.largest}
	case met&able == 0 && tainted:
		return ws, ErrTaints
	case met&able == 0:
		return ws, ErrNoWorkers
	case met&below == 0:
		return ws, out.err()
	case met&idle == 0: // or claimed
		return ws, ErrBusy
	case len(ws) == 0:
		return ws, ErrNoRoom
	}
	return ws, nil
}

// passed is the filters that some seat or other has passed.
type passed uint8

const (
	named passed = 1 << iota // by the request's pin
	borne                    // has the taints
	fits                     // could hold the prompt if it were empty
	able                     // and may be chosen: eligible and not excluded
	below                    // no threshold takes it out
	idle                     // has room in its queue
)

// slower sets what the tiers below the device hold, each a run that goes on where
// the faster ones' has ended, no more in all than what may count as cached. What is
// foreseen on the device covers the beginning of them.
func (c *Candidate) slower(host, disk, remote int32, cached int) {
	left, covered := int32(cached-c.Overlap), c.Foreseen
	take := func(n int32) int32 {
		n = max(0, n)
		over := min(n, covered)
		covered -= over
		n = min(n-over, left)
		left -= n
		return n
	}
	c.Host, c.Disk, c.Remote = take(host), take(disk), take(remote)
}
