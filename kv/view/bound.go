package view

import (
	"math"

	"github.com/tandem-pd/tandem/kv/index"
)

// bound limits the engine's blocks in a [View], to protect the gateway's memory from engines whose removals are lost or
// that misreport.
type bound struct {
	set        bool // else unbounded
	registered int  // blocks of the router's size on the rank's device, 0 unknown
	largest    int  // tokens in the engine's largest block since the view was empty
	offloads   bool // blocks were stored outside of the device since then
	most       int  // the limit, in the engine's blocks
	over       bool // it was exceeded: stored blocks are ignored
}

const (
	// deviceShare times the registered blocks is the limit of a rank that uses its device only. Evictions are announced
	// just after their replacements, so correct events stay below twice.
	deviceShare = 4
	// offloadedShare is the same for a rank that also uses other, larger places.
	offloadedShare = 64
	// leastBound is the lowest limit: so many blocks cost 22 KB.
	leastBound = 1 << 10
	// unregisteredBound is for ranks that registered no number: 64 million tokens in blocks of 16.
	unregisteredBound = 1 << 22
	// wordsPerBlock bounds the words of odds per block.
	wordsPerBlock = 32
)

// MostBlocks returns how many blocks a rank that registered so many, 0 unknown, may hold in all places.
func MostBlocks(registered int) int {
	if registered == 0 {
		return unregisteredBound
	}
	return max(offloadedShare*registered, leastBound)
}

// ageless returns how many blocks a medium without removals counts as holding at most: a few times as many as the device.
func (b *bound) ageless() int {
	if b.registered == 0 {
		return unregisteredBound / offloadedShare
	}
	return max(deviceShare*b.registered, leastBound)
}

// begin resets b for an empty view.
func (b *bound) begin(blockSize int) {
	b.largest, b.offloads, b.over = 0, false, false
	b.compute(blockSize)
}

// widen records the size of stored blocks, 0 for none, and their place.
func (b *bound) widen(size int, held tierSet, blockSize int) {
	if size > b.largest || held != 1<<index.Device && !b.offloads {
		b.largest = max(b.largest, size)
		b.offloads = b.offloads || held != 1<<index.Device
		b.compute(blockSize)
	}
}

// compute sets most, by tokens: an engine's block may be smaller or larger than the router's.
func (b *bound) compute(blockSize int) {
	blocks := unregisteredBound
	switch {
	case !b.set:
		b.most = math.MaxInt / wordsPerBlock
		return
	case b.registered > 0 && b.offloads:
		blocks = offloadedShare * b.registered
	case b.registered > 0:
		blocks = deviceShare * b.registered
	}
	if b.largest > 0 {
		blocks = blocks * blockSize / b.largest
	}
	b.most = max(blocks, leastBound)
}

// Register bounds the view by the blocks of the router's size on the rank's device, 0 unknown; see [View.Overgrown].
// Call it before the first event. Without it the view is unbounded.
func (v *View) Register(blocks int) {
	v.bound.set, v.bound.registered = true, blocks
	v.bound.begin(v.blockSize)
}

// Overgrown reports whether the rank stored far more blocks than it registered, so that its events are ignored. The
// view stays empty until a Cleared event or Clear.
func (v *View) Overgrown() bool { return v.bound.over }

// outgrown empties a view above its limit, and reports whether it did.
func (v *View) outgrown() bool {
	if v.known.n <= v.bound.most && len(v.known.odds.words) <= wordsPerBlock*v.bound.most {
		return false
	}
	v.Clear()
	v.bound.over = true
	return true
}
