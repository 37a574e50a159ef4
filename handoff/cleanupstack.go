package handoff

import "github.com/tandem-pd/tandem/router/placement"

// cleanupStack frees what a request holds: bookings, and KV that an engine keeps for it. It is released last-in
// first-out, each thing exactly once. It belongs to one request; one goroutine at a time uses it.
type cleanupStack struct {
	// abandon gives up KV that no decode worker took over.
	abandon func(kv *StagedKV)
	// queue is woken when a booking was given back; nil before the first.
	queue *waitingRoom
	held  []held
	// abandoned is set when KV was given up: clean-up calls, which may carry the request's body, are under way.
	abandoned bool
	room      [3]held // memory of held: a round without failures has a booking for each leg, and KV
}

// held is one thing that is held: a booking or, without a lease, KV. The zero held is nothing.
type held struct {
	booking placement.Booking
	kv      *StagedKV
}

// push adds one more thing and returns its place.
func (s *cleanupStack) push(h held) (place int) {
	if s.held == nil {
		s.held = s.room[:0]
	}
	s.held = append(s.held, h)
	return len(s.held) - 1
}

// free frees the one thing at a place and keeps what lies above it.
func (s *cleanupStack) free(place int) {
	h := s.held[place]
	s.held[place] = held{}
	s.letGo(&h)
}

// keepPermit leaves the permit of the booking at a place to its caller: its call may still turn out to have failed.
func (s *cleanupStack) keepPermit(place int) permit {
	b := &s.held[place].booking
	done := b.Done
	b.Done = nil
	return done
}

// disown leaves the one thing at a place to its caller.
func (s *cleanupStack) disown(place int) { s.held[place] = held{} }

// release frees everything, the latest first.
func (s *cleanupStack) release() {
	for place := len(s.held) - 1; place >= 0; place-- {
		s.free(place)
	}
	s.held = s.held[:0]
}
