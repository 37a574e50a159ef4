package handoff

// cleanupStack frees what a request holds: bookings, and KV that an engine keeps for it. It is released last-in
// first-out, each thing exactly once. It belongs to one request; one goroutine at a time uses it.
type cleanupStack struct{ frees []func() }

// push adds one more thing and returns its place.
func (s *cleanupStack) push(free func()) (place int) {
	s.frees = append(s.frees, free)
	return len(s.frees) - 1
}

// free frees the one thing at a place and keeps what lies above it.
func (s *cleanupStack) free(place int) {
	free := s.frees[place]
	s.frees[place] = nil
	if free != nil {
		free()
	}
}

// release frees everything, the latest first.
func (s *cleanupStack) release() {
	for place := len(s.frees) - 1; place >= 0; place-- {
		s.free(place)
	}
	s.frees = s.frees[:0]
}
