package router

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router/index"
)

// predictions are what a router takes its workers to hold that publish no KV
// events: the prompts it sent them a while ago. They have an index of their own,
// so that no event and no prediction are ever taken for one another.
type predictions struct {
	events bool // workers that publish are known by what they publish
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
	idx := index.New(index.Config{})
	return &predictions{
		events: cfg.KVEvents, idx: idx,
		predictor: index.NewPredictor(idx, cfg.Predictions), met: map[string]met{},
	}
}

// of reports whether a rank of w is predicted. There may be no predictions at all.
func (p *predictions) of(w *pools.Worker, rank int) bool {
	if p == nil || !p.events || w.KVEvents == "" || w.KVEvents == "none" {
		return p != nil
	}
	doubted := p.doubted.Load()
	if doubted == nil {
		return false
	}
	_, doubt := (*doubted)[Rank{w.ID, rank}]
	return doubt
}

// ofAny reports whether any rank of w is predicted.
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
		p.met[w.ID] = met{w.Incarnation, p.ofAny(w)}
		for rank := range w.Ranks() {
			p.idx.Owner(w.ID, rank)
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

// note predicts that l's worker will hold the prompt it was booked for.
func (p *predictions) note(l *Lease, req *Request, now time.Time) {
	hashes := req.Hashes
	if len(hashes) == 0 || !req.Text && !p.of(l.Worker, l.Rank) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if known, ok := p.met[l.Worker.ID]; !ok || known.incarnation != l.Worker.Incarnation {
		return // it has gone since it was booked
	}
	owner, _ := p.idx.Lookup(l.Worker.ID, l.Rank)
	l.noted = &noted{in: p, owner: owner, chain: hashes, made: p.predictor.Insert(owner, hashes, now)}
}

// noted is what a lease's booking predicted.
type noted struct {
	in    *predictions
	owner index.Owner
	chain []uint64
	made  index.Prediction
}

// withdraw takes it back.
func (n *noted) withdraw() {
	p := n.in
	p.mu.Lock()
	defer p.mu.Unlock()
	p.predictor.Withdraw(n.owner, n.chain, n.made)
	n.made = index.Prediction{} // once
}

// blocks is how many blocks a worker's rank is predicted to hold.
func (p *predictions) blocks(o index.Owner) int { return p.idx.Blocks(o) }

// Predicted returns how many pairs of block and worker the router predicts, for
// workers that publish no KV events.
func (r *Router) Predicted() int {
	if r.predicted == nil {
		return 0
	}
	r.predicted.mu.Lock()
	defer r.predicted.mu.Unlock()
	return r.predicted.predictor.Len()
}

// Foresees reports whether the router predicts at all, and so can tell where a
// prompt of which the text alone is known may be cached; see [Request.Text].
func (r *Router) Foresees() bool { return r.predicted != nil }

// Predicts reports whether any worker of p is predicted rather than known by its
// KV events.
func (r *Router) Predicts(p *pools.Pool) bool { return r.see(p).predicted }
