package overlap

import (
	"sync/atomic"

	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/pools"
)

// Slots are the ranks of a pool's workers in one snapshot, and their owner in each source's index. They are immutable
// but for the last layout.
type Slots struct {
	ranks []Rank
	epoch uint64             // of the events' index when its owners were looked up
	stale *map[Rank]struct{} // ranks whose events are stale

	// By slot, its owner in each source's index; NoOwner without one.
	events, predicted, recent []index.Owner
	text                      []index.Owner // in that of predictions, for prompts of text
	counted                   []index.Owner // events, of the slots whose overlap counts

	followed     bool // prompts are looked up in the events' index
	anyPredicted bool
	anyRecent    bool

	placed atomic.Pointer[placement]
}

// Predicted reports whether any slot is predicted rather than tracked by events.
func (s *Slots) Predicted() bool { return s.anyPredicted }

// placement is where a layout has each slot.
type placement struct {
	layout *Layout
	at     []int32 // by slot; -1 nowhere
}

// place finds the slots in a layout. Both are in one order.
func (s *Slots) place(l *Layout) []int32 {
	if p := s.placed.Load(); p != nil && p.layout == l {
		return p.at
	}
	p := &placement{l, make([]int32, len(s.ranks))}
	next := 0
	for i, is := range s.ranks {
		for next < l.Len() && l.ranks[next].compare(is) < 0 {
			next++
		}
		p.at[i] = -1
		if next < l.Len() && l.ranks[next] == is {
			p.at[i] = int32(next)
		}
	}
	s.placed.Store(p)
	return p.at
}

// publishes reports whether w publishes KV events.
func publishes(w *pools.Worker) bool { return w.KVEvents != "" && w.KVEvents != "none" }
