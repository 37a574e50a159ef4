package overlap

import "github.com/tandem-pd/tandem/kv/index"

// ExpectedHit is what the events of a booked slot showed of its prompt when it was picked, kept until the worker's answer
// reports what it found. Its zero value is none.
type ExpectedHit struct {
	owner index.Owner
	held  bool // there is one
	isl   int  // tokens of the prompt, as all that follow
	block int
	// least is what the device was seen to hold, and most what it could bring up
	// from slower tiers as well: engines differ in whether they count that as cached.
	least, most int
	came, went  uint64 // the owner's churn then
}

// Verdict is the result of comparing an answer with a [ExpectedHit].
type Verdict uint8

// The verdicts.
const (
	// Unsampled: there was nothing to compare, or nothing to be learnt, because
	// the prompt was neither believed to be cached nor was.
	Unsampled Verdict = iota
	Right             // the answer is what was believed, or near enough
	Over              // more was believed than was there
	Under             // less was believed than was there
	// Moved: it differs, by no more than what the worker's events added or removed
	// since the pick. It speaks neither for the belief nor against it.
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

// judge compares the prompt tokens that a worker found cached with what was believed. block is the engine's, in
// tokens, where that is larger than the pool's; came and went are the owner's churn since the pick, in the pool's
// blocks.
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
