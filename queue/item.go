package queue

import "time"

// Item describes a request to the queue.
type Item struct {
	// ID names the request in logs; the queue gives it no meaning.
	ID string
	// Priority is the client's; below 0, and not a number, count as 0. What a point is worth is the order's.
	Priority float64
	// Strict is the client's strict priority: higher goes first, whatever the order.
	Strict uint32
	// ISL is the prompt's length in tokens; Uncached is the part of it that no eligible worker has cached: ISL less
	// the best overlap over all of them. Both are of the moment of arrival.
	ISL, Uncached int
	// Bytes is what the request's body weighs while it waits.
	Bytes int64
	// Arrival is when the request came to the gateway; the zero time means when it is pushed.
	Arrival time.Time
	// Retry is a request that was granted once and failed. It goes before all that are not, and is never refused for
	// a full queue, for it holds its place already.
	Retry bool
	// Target is the time to first token, from Arrival, that the request is to have; 0 is the queue's.
	Target time.Duration
	// Promoted is whether the request goes before the order, which is read when it is pushed and set when it is granted: what
	// is computed in turns keeps its place. nil is no.
	Promoted *bool
	// Class is the request's policy class, by its place in Config.Classes: see [Classes.Find]. It is 0 without classes.
	Class int
	// Slice is how much of a longer prompt one grant computes, in tokens; 0 where one grant computes all of it.
	Slice int
	// Lane names the workers that the request is bound to, the same for all that are bound to the same ones; empty
	// for a request that takes any worker. One that has to wait holds up those of its lane alone.
	Lane string
}

// points is the priority that counts.
func (it *Item) points() float64 {
	if it.Priority > 0 {
		return it.Priority
	}
	return 0
}

// cost is what a grant takes of its class's credit, in tokens that it computes. A retry has paid already.
func (it *Item) cost() int64 {
	switch {
	case it.Retry:
		return 0
	case it.Slice > 0 && 2*it.Uncached > 3*it.Slice:
		return int64(it.Slice)
	}
	return int64(max(1, it.Uncached))
}

// Ticket is a place in the queue. Its memory is the caller's, who sets Item and Value and pushes it; until it has
// left the queue it must not be changed or pushed again.
type Ticket[V any] struct {
	Item
	Value V // the caller's own

	key      float64   // the order's, lowest first
	plan     plan      // of the latest drain
	promoted bool      // goes before the order
	due      time.Time // when its first token is late
	tried    uint64    // the drain that tried it before the order last
	wasLate  bool      // in the order that it was tried before
	sequence uint64
	lane     *lane[V]
	place    int // in its lane's heap, from 0; unqueued when it is in no queue
	pushed   time.Time
	kept     bool // counted against the limits: a drain has ended since it was pushed
	yielded  bool // counted as such

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
