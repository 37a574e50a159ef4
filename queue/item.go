package queue

import "time"

// Item describes a request to the queue.
type Item struct {
	// ID names the request in logs.
	ID string
	// Priority is the client's; negative values and NaN count as 0. The order defines what a point is worth.
	Priority float64
	// Strict is the client's strict priority: higher goes first, whatever the order.
	Strict uint32
	// ISL is the prompt's length in tokens, Uncached that less the best overlap of all eligible workers at arrival.
	ISL, Uncached int
	// Bytes is the size of the request's body.
	Bytes int64
	// Arrival is when the request reached the gateway; zero means when it is pushed.
	Arrival time.Time
	// Retry marks a request that was granted once and failed. Retries go first and are never refused.
	Retry bool
	// Target is the desired time from Arrival to the first token; 0 uses the queue's.
	Target time.Duration
	// Promoted reports whether the request skips the order. It is read at the push and set at the grant, so that a
	// prompt that is computed in slices keeps its place. It may be nil.
	Promoted *bool
	// Class is the index of the request's policy class, see [Classes.Find]; 0 without classes.
	Class int
	// Slice is how many tokens of a longer prompt one grant computes; 0 for all.
	Slice int
	// Lane names the workers that the request is restricted to, equal for the same set; empty for any worker. A waiting
	// request blocks only its lane.
	Lane string
}

// points returns the effective priority.
func (it *Item) points() float64 {
	if it.Priority > 0 {
		return it.Priority
	}
	return 0
}

// cost returns the tokens that a grant computes, charged to its class. A retry has paid already.
func (it *Item) cost() int64 {
	switch {
	case it.Retry:
		return 0
	case it.Slice > 0 && 2*it.Uncached > 3*it.Slice:
		return int64(it.Slice)
	}
	return int64(max(1, it.Uncached))
}

// Ticket is a place in the queue. The caller owns its memory, sets Item and Value and pushes it; while in the queue it
// must not be changed or pushed again.
type Ticket[V any] struct {
	Item
	Value V // the caller's own

	key      float64   // the order's, lowest first
	plan     plan      // of the latest drain
	promoted bool      // skips the order
	due      time.Time // when its first token is late
	tried    uint64    // the latest drain that tried to promote it
	wasLate  bool      // before that
	sequence uint64
	lane     *lane[V]
	place    int // in its lane's heap, from 0; unqueued outside of a queue
	pushed   time.Time
	kept     bool // counted against the limits, since the end of a drain
	yielded  bool // counted in YieldedTotal

	older, newer *Ticket[V] // by time of push
}

const unqueued = -1

// before is the order within a class: retries, then strict priority, then the order's key, then arrival.
func (t *Ticket[V]) before(o *Ticket[V]) bool {
	switch {
	case t.Retry != o.Retry:
		return t.Retry
	case t.Strict != o.Strict:
		return t.Strict > o.Strict
	case t.promoted != o.promoted:
		return t.promoted
	case t.key != o.key:
		return t.key < o.key
	case !t.Arrival.Equal(o.Arrival):
		return t.Arrival.Before(o.Arrival)
	}
	return t.sequence < o.sequence
}

// line is a heap of waiting tickets, the next one first. It implements heap.Interface.
type line[V any] []*Ticket[V]

func (l line[V]) Len() int           { return len(l) }
func (l line[V]) Less(i, j int) bool { return l[i].before(l[j]) }

func (l line[V]) Swap(i, j int) {
	l[i], l[j] = l[j], l[i]
	l[i].place, l[j].place = i, j
}

func (l *line[V]) Push(x any) {
	t := x.(*Ticket[V])
	t.place = len(*l)
	*l = append(*l, t)
}

func (l *line[V]) Pop() any {
	last := len(*l) - 1
	t := (*l)[last]
	(*l)[last] = nil
	*l = (*l)[:last]
	t.place = unqueued
	return t
}
