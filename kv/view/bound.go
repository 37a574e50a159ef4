package view

import (
	"math"

	"github.com/tandem-pd/tandem/kv/index"
)

// bound limits the engine's blocks in a [View], to protect the gateway's memory from engines whose removals are lost or
// that misreport.
type bound struct {
	set        bool // without it there is none
	registered int  // blocks of the router's size on the rank's device; 0: not known
	largest    int  // tokens in the engine's largest block since the view was empty
	offloads   bool // blocks were named in another place than the device since then
	most       int  // of the engine's blocks
	over       bool // that was too little; nothing is taken in
}

const (
	// deviceShare is how many times the registered blocks may be known of a rank that names its device alone: what is evicted
	// is named a moment after what came in its place, so twice is as much as true events come to.
	deviceShare = 4
	// offloadedShare is the same of a rank that names other places as well, which are larger.
	offloadedShare = 64
	// leastBound lets a worker that registered next to nothing be followed: so many blocks cost 22 KB.
	leastBound = 1 << 10
	// unregisteredBound is for ranks that registered no number of blocks: 64 million tokens in blocks of 16.
	unregisteredBound = 1 << 22
	// wordsPerBlock bounds the records of odd blocks, see odds: one has so many words where the engine's blocks are a few
	// dozenths of the router's, and half of the next is another block's.
	wordsPerBlock = 32
)

// MostBlocks is how many blocks a rank may hold that registered so many, 0 for not known, in all its places.
func MostBlocks(registered int) int {
	if registered == 0 {
		return unregisteredBound
	}
	return max(offloadedShare*registered, leastBound)
}

// ageless is how many blocks a medium that announces no removal is taken to hold: a few times as many as the device, whose
// number is known.
func (b *bound) ageless() int {
	if b.registered == 0 {
		return unregisteredBound / offloadedShare
	}
	return max(deviceShare*b.registered, leastBound)
}

// begin is for a view that is empty.
func (b *bound) begin(blockSize int) {
	b.largest, b.offloads, b.over = 0, false, false
	b.compute(blockSize)
}

// widen notes the size of blocks, 0 for none, and where they are.
func (b *bound) widen(size int, held tierSet, blockSize int) {
	if size > b.largest || held != 1<<index.Device && !b.offloads {
		b.largest = max(b.largest, size)
		b.offloads = b.offloads || held != 1<<index.Device
		b.compute(blockSize)
	}
}

// compute finds most, in tokens: an engine's block may be a part of the router's, or several.
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

// Register bounds the view: blocks is how many blocks of the router's size the rank's device holds, 0 where that is not known.
// It is called before the first event; see [View.Overgrown]. Without it the caller bounds what it applies.
func (v *View) Register(blocks int) {
	v.bound.set, v.bound.registered = true, blocks
	v.bound.begin(v.blockSize)
}

// Overgrown reports whether the rank named so many more blocks than it registered that its events are ignored. The view
// stays empty until a Cleared event or Clear.
func (v *View) Overgrown() bool { return v.bound.over }

// outgrown empties the view when it has more blocks than it may, and reports whether it did.
func (v *View) outgrown() bool {
	if v.known.n <= v.bound.most && len(v.known.odds.words) <= wordsPerBlock*v.bound.most {
		return false
	}
	v.Clear()
	v.bound.over = true
	return true
}
