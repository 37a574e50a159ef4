package index

import "sync/atomic"

// gaps tells readers which owners may hold a block of one tier without holding
// all before it. All others are followed in jumps.
//
// A writer sets an owner's bit before readers can see the gap and clears it after they can no longer, and each time
// it is set the count next to it moves. So if the count is the same before and after a look at the tables, an owner
// whose bit was clear had no gap in between.
type gaps struct {
	open  [maxOwners/64 + 1]atomic.Uint64 // by slot
	moved [maxOwners/64 + 1]atomic.Uint64 // how often a bit of open's word was set
}

// set notes that an owner may have gaps from now on.
func (g *gaps) set(slot int) {
	g.open[slot/64].Or(1 << (slot % 64))
	g.moved[slot/64].Add(1)
}

// clear notes that it has none any more.
func (g *gaps) clear(slot int) { g.open[slot/64].And(^uint64(1 << (slot % 64))) }
