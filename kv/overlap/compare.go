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
// often ([ParityConfig]), the events are wrong (lost, altered, hashed of other tokens) and the rank is predicted as if
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
