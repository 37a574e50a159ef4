package handoff

import "github.com/tandem-pd/tandem/router/placement"

// cleanupStack releases what a request holds, bookings and staged KV, last in first out, each exactly once. It belongs
// to one request; one goroutine at a time uses it.
type cleanupStack struct {
	// releaseKV releases KV that no decode worker took over.
	releaseKV func(kv *StagedKV)
	// queue is woken when a booking is released; nil before the first.
	queue *waitingRoom
	held  []held
	room  [3]held // backs held: a round without failures has a booking for each leg, and KV
}

// held is a booking or, without a lease, KV. The zero held is nothing.
type held struct {
	booking placement.Booking
	kv      *StagedKV
}

func (s *cleanupStack) push(h held) (place int) {
	if s.held == nil {
		s.held = s.room[:0]
	}
	s.held = append(s.held, h)
	return len(s.held) - 1
}

// releaseAt releases the entry at place and keeps those above it.
func (s *cleanupStack) releaseAt(place int) {
	h := s.held[place]
	s.held[place] = held{}
	s.releaseOne(&h)
}

// keepPermit hands the permit of the booking at place to the caller: its call may still fail.
func (s *cleanupStack) keepPermit(place int) permit {
	b := &s.held[place].booking
	done := b.Done
	b.Done = nil
	return done
}

// disown hands the entry at place to the caller.
func (s *cleanupStack) disown(place int) { s.held[place] = held{} }

// release releases everything, latest first.
func (s *cleanupStack) release() {
	for place := len(s.held) - 1; place >= 0; place-- {
		s.releaseAt(place)
	}
	s.held = s.held[:0]
}
