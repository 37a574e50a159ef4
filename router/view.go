package router

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/tandem-pd/tandem/kv/overlap"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router/load"
)

// view is precomputed for each snapshot of a pool. It is immutable but for the accounts, which are the core's.
type view struct {
	pool      *pools.Pool
	number    uint64           // of the router's views, from 1
	seed      uint64           // of the pool's random choices
	blockSize int              // tokens
	largest   int              // total_kv_blocks of the largest worker
	slots     []slot           // by worker id, then rank
	overlaps  *overlap.Slots   // the same for the sources of overlaps
	roomiest  int              // the largest of the slots' limits of blocks
	steady    bool             // every slot stands
	restOnly  bool             // the pool's overlaps save transfers
	first     map[uint64]int32 // each worker's first slot by the hash of its id; nil if sessions are not bound
}

// slot is one (worker, rank) of a pool. Every choice reads all of them, so it has just what that needs and fits one
// cache line.
type slot struct {
	page      *load.Page // its bookings
	worker    *pools.Worker
	busyAbove float64 // booked prefill tokens above which it is busy
	blocks    int     // limit of active blocks
	seqs      int     // limit of requests
	member    int32   // its place in the pool
	rank      int32
	standing  standing
}

// standing tells whether a slot may be chosen under the pool's snapshot.
type standing uint8

const (
	stands standing = iota // as long as the snapshot is valid
	waits                  // from a time on: check the member
	barred                 // not under this snapshot
)

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
func (v *view) eligible(s *slot, now time.Time) bool {
	return s.standing == stands || s.standing == waits && v.pool.Members[s.member].Eligible(now)
}

func (k *core) view(p *pools.Pool) *view {
	k.views++
	v := &view{pool: p, number: k.views, seed: xxh3.HashStringSeed(p.Name(), k.cfg.Seed), blockSize: 1, steady: true, restOnly: k.cfg.RestOnly}
	v.overlaps = k.sources.Bind(p)
	k.book.Prune(func(worker string) bool {
		_, stays := p.Member(worker)
		return stays
	})
	if k.bindings != nil {
		v.first = make(map[uint64]int32, len(p.Members))
	}
	for i, m := range p.Members {
		if v.first != nil {
			v.first[load.SessionHash(m.Worker.ID)] = int32(len(v.slots))
		}
		for rank := range m.Worker.Ranks() {
			s := k.slot(&p.Members[i], rank)
			s.member = int32(i)
			v.slots = append(v.slots, s)
			v.roomiest = max(v.roomiest, s.blocks)
			v.steady = v.steady && s.standing == stands
		}
		v.blockSize = max(1, m.Worker.BlockSize)
		v.largest = max(v.largest, m.Worker.TotalKVBlocks)
	}
	return v
}

// fits returns a [*TooBigError] when a prompt of so many tokens fits no slot.
func (v *view) fits(tokens int) error {
	need := blocksOf(tokens, v.blockSize) + 1
	for i := range v.slots {
		if need <= v.slots[i].blocks {
			return nil
		}
	}
	if len(v.slots) == 0 {
		return nil
	}
	return &TooBigError{NeedBlocks: need, LargestBlocks: v.largest}
}

// slot computes the fixed properties of a worker's rank.
func (k *core) slot(m *pools.Member, rank int) slot {
	w := m.Worker
	s := slot{
		worker: w, page: k.book.Page(w.ID, rank), rank: int32(rank), standing: standingOf(m),
		busyAbove: k.cfg.busyAbove(w), blocks: math.MaxInt, seqs: math.MaxInt,
	}
	if k.cfg.Room && w.TotalKVBlocks > 0 {
		s.blocks = w.TotalKVBlocks
	}
	if k.cfg.Room && w.MaxNumSeqs > 0 {
		s.seqs = w.MaxNumSeqs
	}
	return s
}

// defaultBatchedTokens replaces a missing max_num_batched_tokens.
const defaultBatchedTokens = 8192

// busyAbove returns the booked prefill tokens above which a rank of w is busy.
func (c *Config) busyAbove(w *pools.Worker) float64 {
	if c.QueueThreshold < 0 {
		return math.Inf(1)
	}
	return c.QueueThreshold * float64(cmp.Or(w.MaxNumBatchedTokens, defaultBatchedTokens))
}

// narrow applies the filters that need no booking, in the order of router-semantics §2.2: the pinned worker, required
// taints and adapter, workers that are up. choices applies the thresholds.
func (v *view) narrow(c *scratch, now time.Time) {
	req := &c.query
	need := req.blocks() + 1
	c.met, c.kept, c.largest = 0, c.kept[:0], v.largest
	pinned, tainted := req.Pin != nil, len(req.Required) > 0 || req.Adapter != ""
	if c.all = v.steady && !pinned && !tainted && len(req.Exclude) == 0 && req.Only == nil; c.all {
		c.met = borne
		if need <= v.roomiest {
			c.met |= fits | able
		}
		return
	}
	if pinned || tainted {
		c.largest = 0
	}
	for i := range v.slots {
		s := &v.slots[i]
		if pinned {
			if !req.Pin.admits(s) {
				continue
			}
			c.met |= named
		}
		if tainted && !bears(s.worker, req.Required, req.Adapter) {
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
		if !slices.Contains(req.Exclude, s.worker.ID) && (req.Only == nil || req.Only(s.worker)) && v.eligible(s, now) {
			c.met |= able
			c.kept = append(c.kept, int32(i))
		}
	}
}

// meets reports whether a worker of v that is up can hand over to one of d that is up, whatever their load.
func (v *view) meets(d *view, pairs func(p, d *pools.Worker) bool, now time.Time) bool {
	return slices.ContainsFunc(v.slots, func(s slot) bool {
		return v.eligible(&s, now) && slices.ContainsFunc(d.slots, func(t slot) bool { return d.eligible(&t, now) && pairs(s.worker, t.worker) })
	})
}

// choices returns the candidates in c.ws, or the reason for none. The pool is busy while all remaining slots are busy.
// Once one is not, all with room are candidates: the cost of busy ones shows it.
func (v *view) choices(c *scratch, book *load.Book, now time.Time) ([]candidate, error) {
	req := &c.query
	need := req.blocks() + 1
	cached := req.ISL / v.blockSize // overlap cannot exceed this
	left := len(c.kept)
	if c.all {
		left = len(v.slots)
	}
	ws := slices.Grow(c.ws[:0], left)[:left]
	n := 0
	var out over
	met := c.met
	pinned, tainted := req.Pin != nil, len(req.Required) > 0 || req.Adapter != ""
	prefers := len(req.Preferred) > 0 && (!pinned || req.Pin.Worker == "")
	withholds := c.owns != nil
	limited := *c.limits != Thresholds{}
	blocks, reported := c.found.Blocks[:len(v.slots)], c.found.Reported[:len(v.slots)]
	for k := range left {
		i := k
		if !c.all {
			i = int(c.kept[k])
		}
		s := &v.slots[i]
		if need > s.blocks {
			continue // excluded from the load: it cannot hold the prompt
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
		if float64(prefill) <= s.busyAbove || c.query.late {
			met |= idle
		}
		reused := min(book.Shared(page), cached)
		if page.ActiveBlocks+need-reused > s.blocks || page.Requests >= s.seqs {
			continue
		}
		if withholds && c.withheld(i, s.blocks-page.ActiveBlocks-need+reused) {
			continue
		}
		// In place, and every field: appending a candidate takes twice as long.
		w := &ws[n]
		n++
		w.Worker, w.Rank, w.slot = s.worker, s.rank, int32(i)
		w.Overlap = min(int(blocks[i]), cached)
		w.Predicted = int32(w.Overlap - min(int(reported[i]), cached))
		w.Load = page.Account
		w.Load.PrefillTokens = prefill
		w.Reused, w.Spared = reused, 0
		if v.restOnly {
			w.Spared = w.Overlap
		}
		if w.Left, w.Delays = 0, 0; c.query.timed {
			w.Left = page.Left(now)
			if c.planned != nil {
				w.Left += c.planned[i]
			}
		}
		w.Host, w.Disk, w.Shared, w.Favour = 0, 0, 0, 0
		if prefers {
			w.Favour = favour(s.worker, req.Preferred)
		}
		if c.tiers {
			host, disk, shared := c.found.Slower(i)
			w.slower(host, disk, shared, cached)
		}
	}
	ws = ws[:n]
	switch {
	case len(v.slots) == 0, pinned && met&named == 0:
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

// passed has the filters that at least one slot passed.
type passed uint8

const (
	named passed = 1 << iota // by the request's pin
	borne                    // has the taints and the adapter
	fits                     // could hold the prompt if it were empty
	able                     // and may be chosen: eligible and not excluded
	below                    // no threshold takes it out
	idle                     // has room in its queue
)

// slower sets the blocks of the tiers below the device, each a run that continues the faster ones', limited to what may
// count as cached. Blocks predicted on the device cover their beginning.
func (c *candidate) slower(host, disk, shared int32, cached int) {
	left, covered := int32(cached-c.Overlap), c.Predicted
	take := func(n int32) int32 {
		n = max(0, n)
		over := min(n, covered)
		covered -= over
		n = min(n-over, left)
		left -= n
		return n
	}
	c.Host, c.Disk, c.Shared = take(host), take(disk), take(shared)
}
