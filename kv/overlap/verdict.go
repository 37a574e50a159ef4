package overlap

import "github.com/tandem-pd/tandem/kv/index"

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
