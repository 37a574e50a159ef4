package overlap

import (
	"maps"
	"math/bits"

	"github.com/tandem-pd/tandem/pools"
)

// A rank's KV events count as wrong, see [Sources.Compare], by its latest comparisons.
const (
	parityWindow = 32  // how many count, at most 64
	parityLeast  = 8   // how many there must be before a rank is marked
	parityWrong  = .25 // share of wrong ones above which it is; below half of it in a new window it is trusted again
)

// RankParity is how a rank's events compare with its answers.
type RankParity struct {
	Samples int  `json:"samples"` // the latest comparisons; counted from 0 again when Marked changes to true
	Wrong   int  `json:"wrong"`   // of these
	Marked  bool `json:"marked"`  // it is predicted because of it
}

// PoolParity is how a pool's events compare with its answers, ever.
type PoolParity struct {
	Right, Over, Under, Moved uint64 // see [Verdict]
	Marked                    int    // ranks that are predicted because of it
}

// Marking is a change of a rank's mark: its events and answers began to disagree, or agree again.
type Marking struct {
	Worker         *pools.Worker
	Rank           int
	Marked         bool
	Wrong, Samples int // what decided it
	Last           Verdict
}

// window is the latest comparisons of one rank.
type window struct {
	latest uint64 // the newest is the lowest bit; 1 is wrong
	n      int    // how many there are
	marked bool
}

// wrong is how many of them were.
func (w *window) wrong() int { return bits.OnesCount64(w.latest) }

// add adds a comparison and reports whether the mark changed, with the counts that decided. A mark empties the window:
// the rank needs a whole new window to be trusted again.
func (w *window) add(wrong bool) (changed bool, bad, of int) {
	w.latest <<= 1
	if wrong {
		w.latest |= 1
	}
	w.latest &= 1<<parityWindow - 1
	w.n = min(w.n+1, parityWindow)
	bad, of = w.wrong(), w.n
	share := float64(bad) / float64(of)
	switch {
	case !w.marked && w.n >= parityLeast && share > parityWrong:
		*w = window{marked: true}
		changed = true
	case w.marked && w.n == parityWindow && share < parityWrong/2:
		w.marked = false
		changed = true
	}
	return changed, bad, of
}

// parity compares what a pool's workers publish about their caches with their
// answers. It is for one caller at a time.
type parity struct {
	version uint64 // of the newest pool met
	ranks   map[Rank]*record
	counts  [verdicts]uint64
	marked  int
	changed bool // the marked ranks are others than untrusted returned last
}

// record is one rank's.
type record struct {
	incarnation string
	window
}

// note enters a comparison; changed reports a change of the rank's mark.
func (y *parity) note(w *pools.Worker, rank int, v Verdict) (is Marking, changed bool) {
	y.counts[v]++
	if v == Moved {
		return is, false
	}
	key := Rank{w.ID, rank}
	rec := y.ranks[key]
	if rec == nil || rec.incarnation != w.Incarnation {
		y.forget(key)
		rec = &record{incarnation: w.Incarnation}
		y.ranks[key] = rec
	}
	is = Marking{Worker: w, Rank: rank, Last: v}
	changed, is.Wrong, is.Samples = rec.add(v != Right)
	is.Marked = rec.marked
	if changed && is.Marked {
		y.marked++
	} else if changed {
		y.marked--
	}
	y.changed = y.changed || changed
	return is, changed
}

// forget drops a rank's comparisons.
func (y *parity) forget(key Rank) {
	if rec := y.ranks[key]; rec != nil && rec.marked {
		y.marked--
		y.changed = true
	}
	delete(y.ranks, key)
}

// untrusted returns the lost and the marked ranks. lost is read-only from then on.
func (y *parity) untrusted(lost map[Rank]struct{}) map[Rank]struct{} {
	y.changed = false
	if y.marked == 0 {
		return lost
	}
	all := maps.Clone(lost)
	for key, rec := range y.ranks {
		if rec.marked {
			all[key] = struct{}{}
		}
	}
	return all
}

// lose records that the set of ranks with lost events changed. Comparisons of those ranks were with an earlier view.
func (y *parity) lose(before, now map[Rank]struct{}) {
	for key := range y.ranks {
		_, was := before[key]
		if _, is := now[key]; is != was {
			y.forget(key)
		}
	}
}

// meet drops ranks that left the pool or restarted, unless it has seen a newer pool.
func (y *parity) meet(p *pools.Pool) {
	if p.Version < y.version {
		return
	}
	y.version = p.Version
	for key, rec := range y.ranks {
		if m, here := p.Member(key.Worker); !here || m.Worker.Incarnation != rec.incarnation {
			y.forget(key)
		}
	}
}
