package overlap

import (
	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/pools"
)

// Expect returns the hit that the events predict for a rank about to be booked for l's prompt; zero if nothing was
// looked up, a remote index was used, or the worker's events are absent or lost.
func (s *Sources) Expect(l *Lookup, w *pools.Worker, rank, isl, blockSize int) ExpectedHit {
	if s.parity == nil || l.at != nil || !l.matched || len(l.prompt.Hashes) == 0 || !s.compares(w, rank) {
		return ExpectedHit{}
	}
	owner, known := s.idx.Lookup(w.ID, rank)
	if !known || l.slots.epoch != s.idx.Epoch() {
		return ExpectedHit{}
	}
	// Engines compute the last token's block however much of it is cached.
	m, whole := &l.events, max(0, isl-1)/blockSize
	device := min(m.Leading(owner), whole)
	slower := m.Tier(owner, index.Host) + m.Tier(owner, index.Disk) + m.Tier(owner, index.Shared)
	b := ExpectedHit{
		owner: owner, held: true, isl: isl, block: blockSize,
		least: device * blockSize, most: min(device+slower, whole) * blockSize,
	}
	b.came, b.went = s.idx.Churn(owner)
	return b
}

// Compare compares b with the reported number of cached prompt tokens; below 0: not reported. If they disagree too
// often, the events are wrong (lost, altered, hashed of other tokens) and the rank is predicted as if
// it had none. Comparing continues, and the rank is trusted again once they agree.
func (s *Sources) Compare(b *ExpectedHit, w *pools.Worker, rank, cachedTokens int) Verdict {
	if cachedTokens < 0 || !b.held {
		return Unsampled
	}
	came, went := s.idx.Churn(b.owner)
	came, went = came-b.came, went-b.went
	v := b.judge(cachedTokens, b.block, came, went)
	if of := s.cfg.EngineBlock; (v == Over || v == Under) && of != nil {
		v = b.judge(cachedTokens, of(w, rank), came, went)
	}
	if v == Unsampled || !s.compares(w, rank) { // its events were lost since
		return v
	}
	s.mu.Lock()
	marking, changed := s.parity.note(w, rank, v)
	s.restale()
	s.mu.Unlock()
	if changed && s.cfg.OnMarking != nil {
		s.cfg.OnMarking(marking)
	}
	return v
}

// compares reports whether a rank's answers can be compared: it publishes events, and none are lost.
func (s *Sources) compares(w *pools.Worker, rank int) bool {
	if s.parity == nil || !publishes(w) {
		return false
	}
	ranks := *s.lost.Load()
	if len(ranks) == 0 {
		return true
	}
	_, lost := ranks[Rank{w.ID, rank}]
	return !lost
}

// restale marks untrusted ranks as predicted. The caller holds s.mu.
func (s *Sources) restale() {
	switch {
	case s.parity == nil:
		s.stale.Store(s.lost.Load())
	case s.parity.changed:
		all := s.parity.untrusted(*s.lost.Load())
		s.stale.Store(&all)
	}
}

// Resync drops the comparisons of a rank whose view was replaced.
func (s *Sources) Resync(rank Rank) {
	if s.parity == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.parity.forget(rank)
	s.restale()
}

// Parity is how the pool's events compare with its answers; ok is false where nothing is compared.
func (s *Sources) Parity() (p PoolParity, ok bool) {
	if s.parity == nil {
		return PoolParity{}, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := &s.parity.counts
	return PoolParity{n[Right], n[Over], n[Under], n[Moved], s.parity.marked}, true
}

// RankParity is how one rank's events compare with its answers; ok is false where nothing was compared yet.
func (s *Sources) RankParity(rank Rank) (p RankParity, ok bool) {
	if s.parity == nil {
		return RankParity{}, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	rec := s.parity.ranks[rank]
	if rec == nil {
		return RankParity{}, false
	}
	return RankParity{rec.n, rec.wrong(), rec.marked}, true
}

// ExpectedHit is what the events showed of a prompt on the booked slot, kept until the worker's answer. The zero value
// is none.
type ExpectedHit struct {
	owner index.Owner
	held  bool // there is one
	isl   int  // tokens of the prompt, as all that follow
	block int
	// least is the blocks on the device, and most includes slower tiers: engines differ in whether they count those as
	// cached.
	least, most int
	came, went  uint64 // the owner's churn then
}

// Verdict is the result of comparing an answer with an [ExpectedHit].
type Verdict uint8

// The verdicts.
const (
	// Unsampled: nothing to compare, or the prompt was neither expected to be cached nor was.
	Unsampled Verdict = iota
	Right             // the answer agrees
	Over              // more was expected than found
	Under             // less was expected than found
	// Moved: the difference is within what the events added or removed since the pick, and proves nothing.
	Moved

	verdicts = iota
)

// String is the verdict as metrics have it.
func (v Verdict) String() string {
	return [verdicts]string{"unsampled", "right", "over", "under", "moved"}[v]
}

// slackBlocks is by how many blocks an answer may differ: the last one of a
// prompt is computed in any case, and speculative decoding gives up one more.
const slackBlocks = 2

// slackShare is which part of a prompt an answer may differ by in any case.
const slackShare = 0.1

// judge compares the reported cached tokens with the expected hit. block is the engine's block in tokens where larger
// than the pool's; came and went are the owner's churn, in the pool's blocks.
func (b *ExpectedHit) judge(cached, block int, came, went uint64) Verdict {
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
