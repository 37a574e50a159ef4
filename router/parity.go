package router

import (
	"fmt"
	"maps"
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/tandem-pd/tandem/pools"
)

// ParityConfig is when a rank's KV events count as wrong: see [Router.Parity].
type ParityConfig struct {
	// Window is how many of a rank's latest comparisons count, 1 to 64. 0 compares
	// nothing.
	Window int
	// Least is how many there must be before a rank is marked, 1 to Window.
	Least int
	// Wrong is the share of wrong ones above which it is marked, above 0 and below
	// 1. It is trusted again below half of that in a whole new window.
	Wrong float64
}

// DefaultParity marks a rank of which more than a quarter of the last 32
// comparisons were wrong, or of the first 8.
func DefaultParity() ParityConfig { return ParityConfig{Window: 32, Least: 8, Wrong: 0.25} }

// validate names what is out of range.
func (c ParityConfig) validate() error {
	if c.Window == 0 {
		return nil
	}
	if c.Window < 0 || c.Window > 64 || c.Least < 1 || c.Least > c.Window || !(c.Wrong > 0 && c.Wrong < 1) {
		return fmt.Errorf("kv-parity: window %d, least %d, share %v are out of range", c.Window, c.Least, c.Wrong)
	}
	return nil
}

// window is the latest comparisons of one rank.
type window struct {
	latest uint64 // the newest is the lowest bit; 1 is wrong
	n      int    // how many there are
	marked bool
}

// wrong is how many of them were.
func (w *window) wrong() int { return bits.OnesCount64(w.latest) }

// add takes one more in and reports whether that changed the mark, and what it
// was decided by: so many wrong of so many. Marked, it begins anew: it takes a
// whole window of its own to be trusted again.
func (w *window) add(wrong bool, cfg *ParityConfig) (changed bool, bad, of int) {
	w.latest <<= 1
	if wrong {
		w.latest |= 1
	}
	w.latest &= 1<<cfg.Window - 1 // a shift by 64 leaves all ones
	w.n = min(w.n+1, cfg.Window)
	bad, of = w.wrong(), w.n
	share := float64(bad) / float64(of)
	switch {
	case !w.marked && w.n >= cfg.Least && share > cfg.Wrong:
		*w = window{marked: true}
		changed = true
	case w.marked && w.n == cfg.Window && share < cfg.Wrong/2:
		w.marked = false
		changed = true
	}
	return changed, bad, of
}

// parity holds what a pool's workers say of their caches in events against what
// they say in answers.
type parity struct {
	cfg  ParityConfig
	tell func(map[Rank]struct{}) // who is predicted though it publishes

	lost atomic.Pointer[map[Rank]struct{}] // whose events cannot be relied on, as Doubt was told; replaced, never changed

	mu      sync.Mutex // guards what follows; taken after a router's own
	version uint64     // of the newest pool met
	ranks   map[Rank]*record
	counts  [verdicts]uint64
	marked  int
}

// record is one rank's.
type record struct {
	incarnation string
	window
}

// newParity returns that of one pool, or nil where nothing is to be compared or
// nothing would come of it.
func newParity(cfg ParityConfig, events bool, p *predictions) *parity {
	if cfg.Window == 0 || !events || p == nil {
		return nil
	}
	none := map[Rank]struct{}{}
	y := &parity{cfg: cfg, ranks: map[Rank]*record{}, tell: func(ranks map[Rank]struct{}) { p.doubted.Store(&ranks) }}
	y.lost.Store(&none)
	return y
}

// compares reports whether a rank's answers can be compared: it publishes, and
// what it published is not lost.
func (y *parity) compares(w *pools.Worker, rank int) bool {
	if y == nil || w.KVEvents == "" || w.KVEvents == "none" {
		return false
	}
	lost := *y.lost.Load()
	if len(lost) == 0 {
		return true
	}
	_, is := lost[Rank{w.ID, rank}]
	return !is
}

// note enters a comparison.
func (y *parity) note(r *Router, w *pools.Worker, rank int, v Verdict) {
	if !y.compares(w, rank) {
		return // its events were lost since
	}
	y.mu.Lock()
	y.counts[v]++
	if v == Moved {
		y.mu.Unlock()
		return
	}
	key := Rank{w.ID, rank}
	rec := y.ranks[key]
	if rec == nil || rec.incarnation != w.Incarnation {
		if y.forget(key) {
			y.told()
		}
		rec = &record{incarnation: w.Incarnation}
		y.ranks[key] = rec
	}
	changed, bad, of := rec.add(v != Right, &y.cfg)
	marked := rec.marked
	if changed && marked {
		y.marked++
	} else if changed {
		y.marked--
	}
	if changed {
		y.told()
	}
	y.mu.Unlock()
	switch {
	case changed && marked:
		r.log.Warn("KV events are not what answers say: the worker's cache is predicted until they agree again",
			"worker", w.ID, "rank", rank, "wrong", bad, "samples", of, "last", v.String())
	case changed:
		r.log.Info("KV events agree with answers again", "worker", w.ID, "rank", rank, "wrong", bad, "samples", of)
	}
}

// told has those in doubt be predicted: whose events are lost, and the marked.
// The caller holds y.mu.
func (y *parity) told() {
	lost := *y.lost.Load()
	if y.marked == 0 {
		y.tell(lost)
		return
	}
	all := maps.Clone(lost)
	for key, rec := range y.ranks {
		if rec.marked {
			all[key] = struct{}{}
		}
	}
	y.tell(all)
}

// forget begins anew with a rank and reports whether that unmarked it. The
// caller holds y.mu.
func (y *parity) forget(key Rank) (unmarked bool) {
	if rec := y.ranks[key]; rec != nil && rec.marked {
		unmarked = true
		y.marked--
	}
	delete(y.ranks, key)
	return unmarked
}

// doubt takes in whose events are lost. What was compared of a rank whose events
// are lost, or that came back from it, was of a view that is no more.
func (y *parity) doubt(ranks map[Rank]struct{}) {
	y.mu.Lock()
	defer y.mu.Unlock()
	was := *y.lost.Load()
	for key := range y.ranks {
		_, before := was[key]
		if _, now := ranks[key]; now != before {
			y.forget(key)
		}
	}
	y.lost.Store(&ranks)
	y.told()
}

// meet forgets who has left the pool, or has started anew, unless it has seen a
// newer one.
func (y *parity) meet(p *pools.Pool) {
	if y == nil {
		return
	}
	y.mu.Lock()
	defer y.mu.Unlock()
	if p.Version < y.version {
		return
	}
	y.version = p.Version
	changed := false
	for key, rec := range y.ranks {
		if m, here := p.Member(key.Worker); !here || m.Worker.Incarnation != rec.incarnation {
			changed = y.forget(key) || changed
		}
	}
	if changed {
		y.told()
	}
}

// Anew forgets what was compared of a rank whose view began anew.
func (r *Router) Anew(rank Rank) {
	if r.parity == nil {
		return
	}
	r.parity.mu.Lock()
	defer r.parity.mu.Unlock()
	if r.parity.forget(rank) {
		r.parity.told()
	}
}

// RankParity is how a rank's events compare with its answers.
type RankParity struct {
	Samples int  `json:"samples"` // the latest comparisons; begun anew when Marked changes to true
	Wrong   int  `json:"wrong"`   // of these
	Marked  bool `json:"marked"`  // it is predicted because of it
}

// PoolParity is how a pool's events compare with its answers, ever.
type PoolParity struct {
	Right, Over, Under, Moved uint64 // see [Verdict]
	Marked                    int    // ranks that are predicted because of it
}

// Compared is how the pool's events compare with what its answers said; ok is
// false where nothing is compared.
//
// An engine that publishes KV events and says in its answers how many prompt
// tokens it found cached says the same thing twice. Where the two disagree too
// often, [ParityConfig] says when, the events are wrong (lost, altered, hashed of
// other tokens), and the rank is marked: it is predicted like one without events.
// Comparing goes on, and it is trusted again when the two agree.
func (r *Router) Compared() (p PoolParity, ok bool) {
	if r.parity == nil {
		return PoolParity{}, false
	}
	y := r.parity
	y.mu.Lock()
	defer y.mu.Unlock()
	return PoolParity{y.counts[Right], y.counts[Over], y.counts[Under], y.counts[Moved], y.marked}, true
}

// Parity is how one rank's events compare with its answers; ok is false where
// nothing was compared yet.
func (r *Router) Parity(rank Rank) (p RankParity, ok bool) {
	if r.parity == nil {
		return RankParity{}, false
	}
	y := r.parity
	y.mu.Lock()
	defer y.mu.Unlock()
	rec := y.ranks[rank]
	if rec == nil {
		return RankParity{}, false
	}
	return RankParity{rec.n, rec.wrong(), rec.marked}, true
}
