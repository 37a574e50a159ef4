package router

// Beliefs count the blocks that bookings took to be cached on their worker, by what
// that rested on.
type Beliefs struct {
	Events    uint64 // the worker said so, here or to an index elsewhere
	Predicted uint64 // they were sent there, and the worker says nothing or cannot be relied on
	Sent      uint64 // they were sent there a moment ago, and the worker has not said so yet
}

// add counts a booking on w.
func (b *Beliefs) add(w *Candidate, predicted bool) {
	foreseen := uint64(w.Foreseen)
	b.Events += uint64(w.Overlap) - foreseen
	if predicted {
		b.Predicted += foreseen
	} else {
		b.Sent += foreseen
	}
}

// Beliefs are those of all bookings so far.
func (r *Router) Beliefs() Beliefs {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.beliefs
}
