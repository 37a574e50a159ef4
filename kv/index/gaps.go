package index

import "sync/atomic"

// gaps marks owners that may hold a block of a tier without all before it. The others are followed in jumps.
//
// A writer sets an owner's bit before readers can see the gap and clears it after they no longer can, and each set
// changes the count. If the count is the same before and after a read, an owner with a clear bit had no gap in between.
type gaps struct {
	open  [maxOwners/64 + 1]atomic.Uint64 // by slot
	moved [maxOwners/64 + 1]atomic.Uint64 // how often a bit of open's word was set
}

// set marks an owner as possibly having gaps.
func (g *gaps) set(slot int) {
	g.open[slot/64].Or(1 << (slot % 64))
	g.moved[slot/64].Add(1)
}

// clear unmarks it.
func (g *gaps) clear(slot int) { g.open[slot/64].And(^uint64(1 << (slot % 64))) }
