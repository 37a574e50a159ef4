package router

import (
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router/index"
)

// belief is what the index of events showed of a lease's worker when it was
// picked, kept until the worker says what it found. Its zero value is none.
type belief struct {
	owner index.Owner
	held  bool // there is one
	isl   int  // tokens of the prompt, as all that follow
	block int
	// least is what the device was seen to hold, and most what it could bring up
	// from slower tiers as well: whether an engine counts that as cached is its own
	// affair.
	least, most int
	came, went  uint64 // the owner's churn then
}

// believe keeps what the index shows of a candidate that is about to be booked.
// There is nothing to keep where nothing was looked up or an index elsewhere was asked, where the worker says
// nothing of its cache, and where what it said was lost.
func (r *Router) believe(c *choice, w *Candidate, req *Request) belief {
	if r.parity == nil || c.others != nil || c.seen == &unseen || len(req.Hashes) == 0 || !r.parity.compares(w.Worker, w.Rank) {
		return belief{}
	}
	owner, known := r.idx.Lookup(w.Worker.ID, w.Rank)
	if !known || c.view.epoch != r.idx.Epoch() {
		return belief{}
	}
	// No more than the whole of the prompt's blocks is worth anything.
	device := min(c.seen.Leading(owner), req.ISL/req.BlockSize)
	slower := c.seen.Tier(owner, index.Host) + c.seen.Tier(owner, index.Disk) + c.seen.Tier(owner, index.Shared)
	b := belief{
		owner: owner, held: true, isl: req.ISL, block: req.BlockSize,
		least: device * req.BlockSize, most: min(device+slower, req.ISL/req.BlockSize) * req.BlockSize,
	}
	b.came, b.went = r.idx.Churn(owner)
	return b
}

// Verdict is what came of comparing an answer with what was believed.
type Verdict uint8

// The verdicts.
const (
	// Unsampled: there was nothing to compare, or nothing to be learnt, because
	// the prompt was neither believed to be cached nor was.
	Unsampled Verdict = iota
	// Right: the answer is what was believed, or near enough.
	Right
	// Over: more was believed than was there.
	Over
	// Under: less was believed than was there.
	Under
	// Moved: it differs, and by no more than what the worker's events said to have
	// come or gone since the pick. It speaks neither for the belief nor against it.
	Moved

	verdicts = iota
)

// String is the verdict as metrics have it.
func (v Verdict) String() string {
	return [verdicts]string{"unsampled", "right", "over", "under", "moved"}[v]
}

// Verdicts are those that a comparison which counts can have.
func Verdicts() []Verdict { return []Verdict{Right, Over, Under, Moved} }

// slackBlocks is by how many blocks an answer may differ: the last one of a
// prompt is computed in any case, and speculative decoding gives up one more.
const slackBlocks = 2

// slackShare is which part of a prompt an answer may differ by in any case.
const slackShare = 0.1

// judge compares the prompt tokens that a worker found cached with what was
// believed. block is the engine's, in tokens, where that is larger than the
// pool's; came and went are the owner's churn since the pick, in the pool's
// blocks.
func (b *belief) judge(cached, block int, came, went uint64) Verdict {
	slack := max(slackBlocks*max(block, b.block), int(slackShare*float64(b.isl)))
	switch {
	case b.most <= slack && cached <= slack:
		return Unsampled
	case cached < b.least-slack:
		return unlessMoved(Over, b.least-slack-cached, b.block, went)
	case cached > b.most+slack:
		return unlessMoved(Under, cached-b.most-slack, b.block, came)
	}
	return Right
}

// unlessMoved is v, unless so many blocks moved that they cover the tokens.
func unlessMoved(v Verdict, tokens, block int, moved uint64) Verdict {
	if moved*uint64(block) >= uint64(tokens) {
		return Moved
	}
	return v
}

// Compare tells the router how many prompt tokens the lease's worker found in
// its cache when it came to compute the prompt; below 0 it did not say. What it
// returns is for tests and traces: the router keeps count. It may be called once,
// after Release as well, and allocates nothing.
//
// An answer says nothing of a belief where the prompt came from another worker,
// where the tokens were not known, and where the engine did not use its cache:
// leave such answers out.
func (l *Lease) Compare(cachedTokens int) Verdict {
	r, b := l.router, &l.believed
	if cachedTokens < 0 || !b.held {
		return Unsampled
	}
	came, went := r.idx.Churn(b.owner)
	came, went = came-b.came, went-b.went
	v := b.judge(cachedTokens, b.block, came, went)
	if of := r.cfg.EngineBlock; (v == Over || v == Under) && of != nil {
		v = b.judge(cachedTokens, of(l.Worker, l.Rank), came, went)
	}
	if v == Unsampled || !r.present(l.Worker) {
		return Unsampled
	}
	r.parity.note(r, l.Worker, l.Rank, v)
	return v
}

// present reports whether w is the process that the pool has under its name.
func (r *Router) present(w *pools.Worker) bool {
	v := r.view.Load()
	if v == nil {
		return false
	}
	m, here := v.pool.Member(w.ID)
	return here && m.Worker.Incarnation == w.Incarnation
}
