package router

import "github.com/tandem-pd/tandem/router/index"

// Overlaps count the blocks that bookings took to be cached on their worker, by what
// that rested on.
type Overlaps struct {
	Events    uint64 // the worker said so, here or to an index elsewhere
	Predicted uint64 // they were sent there, and the worker says nothing or cannot be relied on
	Sent      uint64 // they were sent there a moment ago, and the worker has not said so yet
}

// add counts a booking on w.
func (b *Overlaps) add(w *Candidate, predicted bool) {
	foreseen := uint64(w.Foreseen)
	b.Events += uint64(w.Overlap) - foreseen
	if predicted {
		b.Predicted += foreseen
	} else {
		b.Sent += foreseen
	}
}

// Overlaps are those of all bookings so far.
func (r *Router) Overlaps() Overlaps {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.overlaps
}

// IndexStats is the size of the index of what workers publish, if the router has
// one and it counts. It is for metrics, not for a request's way.
func (r *Router) IndexStats() (index.Stats, bool) {
	if r.idx == nil || r.blind {
		return index.Stats{}, false
	}
	return r.idx.Stats(), true
}
