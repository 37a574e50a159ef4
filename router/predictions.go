package router

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router/index"
)

// predictions are what a router takes workers to hold because it sent them the
// prompts. They have an index of their own, so that no event and no prediction are
// ever taken for one another.
//
// There are two kinds. Those of workers that publish no KV events stand for what
// is not known. Those beside them, of workers that do publish, last for a moment
// and add to what is known: until a worker has computed a prompt and said so, its
// siblings would find it nowhere.
type predictions struct {
	events bool         // workers that publish are known by what they publish
	aside  bool         // of those that publish
	told   bool         // aside: also of those that others predict, for an index elsewhere may tell of them
	others *predictions // aside: the others, whose workers are not these
	bound  bool         // by what each worker can hold
	idx    *index.Index

	mu        sync.Mutex // guards what follows; taken after a router's own
	predictor *index.Predictor
	version   uint64         // of the newest pool met
	met       map[string]met // those in it, by id

	doubted atomic.Pointer[map[Rank]struct{}] // those whose events cannot be relied on; replaced, never changed
}

// met is a worker of the pool. All have an owner among the predictions: those that
// publish are predicted for prompts of which the text alone is known.
type met struct {
	incarnation string
	predicted   bool // a rank is, whatever the prompt
}

// Rank is one data-parallel rank of a worker.
type Rank struct {
	Worker string // its id
	Rank   int    // from 0
}

// Doubt says of which ranks the KV events, though published, cannot be relied on now: they are predicted until a later
// call leaves them out. What was predicted of them begins empty, and is forgotten in the end. The router keeps ranks,
// which must not be changed any more.
func (r *Router) Doubt(ranks map[Rank]struct{}) {
	switch {
	case r.parity != nil:
		r.parity.doubt(ranks)
	case r.predicted != nil:
		r.predicted.doubted.Store(&ranks)
	}
}

// doubts are the ranks in doubt, as a pointer that changes when they do.
func (p *predictions) doubts() *map[Rank]struct{} {
	if p == nil {
		return nil
	}
	return p.doubted.Load()
}

// newPredictions returns those of one pool, or nil where the settings say none.
func newPredictions(cfg Config) *predictions {
	if cfg.Predictions.MaxBlocks == 0 {
		return nil
	}
	return makePredictions(cfg, cfg.Predictions)
}

// newAside returns the predictions beside what one pool's workers publish, or nil
// where the settings say none. Of the workers that others predict there are none.
func newAside(cfg Config, others *predictions) *predictions {
	if cfg.PredictedTTL == 0 || !cfg.KVEvents && !cfg.Told {
		return nil
	}
	of := index.PredictorConfig{TTL: cfg.PredictedTTL, MaxBlocks: cfg.Predictions.MaxBlocks, PruneRatio: cfg.Predictions.PruneRatio}
	if of.MaxBlocks == 0 {
		of = DefaultConfig().Predictions
		of.TTL = cfg.PredictedTTL
	}
	p := makePredictions(cfg, of)
	p.aside, p.others, p.told = true, others, cfg.Told
	return p
}

func makePredictions(cfg Config, of index.PredictorConfig) *predictions {
	idx := index.New(index.Config{})
	return &predictions{
		events: cfg.KVEvents, bound: of.LRU, idx: idx,
		predictor: index.NewPredictor(idx, of), met: map[string]met{},
	}
}

// publishes reports whether w says what it has cached.
func publishes(w *pools.Worker) bool { return w.KVEvents != "" && w.KVEvents != "none" }

// of reports whether p is about a rank of w. There may be no predictions at all.
func (p *predictions) of(w *pools.Worker, rank int) bool {
	if p == nil {
		return false
	}
	if p.aside {
		return publishes(w) && (p.told || !p.others.of(w, rank))
	}
	if !p.events || !publishes(w) {
		return true
	}
	doubted := p.doubted.Load()
	if doubted == nil {
		return false
	}
	_, doubt := (*doubted)[Rank{w.ID, rank}]
	return doubt
}

// ofAny reports whether p is about any rank of w.
func (p *predictions) ofAny(w *pools.Worker) bool {
	for rank := range w.Ranks() {
		if p.of(w, rank) {
			return true
		}
	}
	return false
}

// meet learns who is in the pool, unless it has seen a newer one. What was
// predicted for workers that have left, and for the predecessors of those that
// have started anew, is forgotten.
func (p *predictions) meet(pool *pools.Pool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if pool.Version < p.version {
		return
	}
	p.version = pool.Version
	for id, known := range p.met {
		m, stays := pool.Member(id)
		if !stays || m.Worker.Incarnation != known.incarnation || known.predicted && !p.ofAny(m.Worker) {
			p.predictor.Drop(id)
			delete(p.met, id)
		}
	}
	for i := range pool.Members {
		w := pool.Members[i].Worker
		about := p.ofAny(w)
		if p.aside && !about {
			continue
		}
		p.met[w.ID] = met{w.Incarnation, about}
		for rank := range w.Ranks() {
			owner := p.idx.Owner(w.ID, rank)
			if p.bound {
				p.predictor.Bound(owner, w.TotalKVBlocks)
			}
		}
	}
}

// match finds how much of a prompt each worker should hold at now.
func (p *predictions) match(hashes []uint64, m *index.Matches, now time.Time) {
	p.mu.Lock()
	p.predictor.Expire(now)
	p.mu.Unlock()
	p.idx.Match(hashes, m)
}

// note predicts that l's worker will hold the prompt it was booked for, if p is
// about it, or about its text.
func (p *predictions) note(l *Lease, req *Request, now time.Time) {
	hashes := req.Hashes
	if p == nil || len(hashes) == 0 {
		return
	}
	if req.Text && p.aside || !req.Text && !p.of(l.Worker, l.Rank) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if known, ok := p.met[l.Worker.ID]; !ok || known.incarnation != l.Worker.Incarnation {
		return // it has gone since it was booked
	}
	owner, _ := p.idx.Lookup(l.Worker.ID, l.Rank)
	l.noted = noted{in: p, owner: owner, chain: hashes, made: p.predictor.Insert(owner, hashes, now)}
}

// noted is what a lease's booking predicted; nothing where in is nil.
type noted struct {
	in    *predictions
	owner index.Owner
	chain []uint64
	made  index.Prediction
}

// withdraw takes it back.
func (n *noted) withdraw() {
	p := n.in
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.predictor.Withdraw(n.owner, n.chain, n.made)
	n.made = index.Prediction{} // once
}

// blocks is how many blocks an owner is predicted to hold.
func (p *predictions) blocks(o index.Owner) int {
	if p == nil {
		return 0
	}
	return p.idx.Blocks(o)
}

// len is how many pairs of block and owner are predicted.
func (p *predictions) len() int {
	if p == nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.predictor.Len()
}

// Predicted returns how many pairs of block and worker the router predicts, for
// workers that publish no KV events.
func (r *Router) Predicted() int { return r.predicted.len() }

// Sent returns how many pairs of block and worker the router predicts beside what
// is published, for what it sent there within [Config.PredictedTTL].
func (r *Router) Sent() int { return r.sent.len() }

// Foresees reports whether the router predicts at all, and so can tell where a
// prompt of which the text alone is known may be cached; see [Request.Text].
func (r *Router) Foresees() bool { return r.predicted != nil }

// Predicts reports whether any worker of p is predicted rather than known by its
// KV events.
func (r *Router) Predicts(p *pools.Pool) bool { return r.see(p).predicted }
