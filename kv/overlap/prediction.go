package overlap

import (
	"time"

	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/pools"
)

// assumed predicts workers' blocks by sent prompts, in granules and an index of its own, separate from events. It is
// for one caller at a time, apart from its index.
type assumed struct {
	idx       *index.Index
	predictor *index.Predictor
	bounded   bool // by what each worker can hold

	version uint64         // of the newest pool met
	met     map[string]met // its workers that have owners here, by id
}

// met is a worker of the pool.
type met struct {
	incarnation string
	about       bool // a rank's prompts of tokens are noted
}

func newAssumed(cfg index.PredictorConfig) *assumed {
	idx := index.New(index.Config{})
	return &assumed{idx: idx, bounded: cfg.LRU, predictor: index.NewPredictor(idx, cfg), met: map[string]met{}}
}

// meet updates the pool's workers, unless it has seen a newer one. about selects ranks; with every set, the other
// workers have owners too. Workers that left or restarted are dropped.
func (a *assumed) meet(pool *pools.Pool, every bool, about func(w *pools.Worker, rank int) bool) {
	if pool.Version < a.version {
		return
	}
	a.version = pool.Version
	anyOf := func(w *pools.Worker) bool {
		for rank := range w.Ranks() {
			if about(w, rank) {
				return true
			}
		}
		return false
	}
	for id, known := range a.met {
		m, stays := pool.Member(id)
		if !stays || m.Worker.Incarnation != known.incarnation || known.about && !anyOf(m.Worker) {
			a.predictor.Drop(id)
			delete(a.met, id)
		}
	}
	for i := range pool.Members {
		w := pool.Members[i].Worker
		is := anyOf(w)
		if !every && !is {
			continue
		}
		a.met[w.ID] = met{w.Incarnation, is}
		for rank := range w.Ranks() {
			owner := a.idx.Owner(w.ID, rank)
			if a.bounded {
				a.predictor.Bound(owner, w.TotalKVBlocks)
			}
		}
	}
}

func (a *assumed) owner(w *pools.Worker, rank int) index.Owner {
	o, _ := a.idx.Lookup(w.ID, rank)
	return o
}

// insert notes that a prompt was sent to a rank of w.
func (a *assumed) insert(w *pools.Worker, rank int, granules []uint64, now time.Time) sent {
	if known, ok := a.met[w.ID]; !ok || known.incarnation != w.Incarnation {
		return sent{index.NoOwner, index.Prediction{}} // it has left since it was booked
	}
	owner := a.owner(w, rank)
	return sent{owner, a.predictor.Insert(owner, granules, now)}
}

// sent is what one insert added.
type sent struct {
	owner index.Owner
	made  index.Prediction
}

// invalidate takes back what inserting granules added.
func (a *assumed) invalidate(granules []uint64, s sent) {
	a.predictor.Invalidate(s.owner, granules, s.made)
}

// predicted predicts slots without reliable events, and all slots for prompts of text.
type predicted struct{ *assumed }

func (p predicted) knows(l *Lookup) bool {
	return l.prompt.Text || l.slots.anyPredicted && !l.whole
}

func (p predicted) Add(l *Lookup) {
	if !p.knows(l) {
		return
	}
	owners := l.slots.predicted
	if l.prompt.Text {
		owners = l.slots.text
	}
	p.idx.Match(l.granules, &l.predicted)
	for i, o := range owners {
		if o != index.NoOwner && l.report(i) == nil {
			l.Blocks[i] = uint32(index.GranuleBlocks(l.predicted.Leading(o)))
		}
	}
}

// recent counts sent prompts as cached on slots with events until the worker reports them, so that siblings of a prompt
// find it.
type recent struct{ *assumed }

func (r recent) knows(l *Lookup) bool { return l.slots.anyRecent && !l.prompt.Text }

func (r recent) Add(l *Lookup) {
	if !r.knows(l) {
		return
	}
	r.idx.Match(l.granules, &l.recent)
	for i, o := range l.slots.recent {
		if n := l.recent.Leading(o); n > 0 {
			l.Blocks[i] = max(l.Blocks[i], uint32(index.GranuleBlocks(n)))
		}
	}
}
