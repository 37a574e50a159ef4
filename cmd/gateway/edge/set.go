package edge

import "sync"

// set is a concurrent set that signals when it is empty.
type set[T comparable] struct {
	mu      sync.Mutex
	in      map[T]struct{}
	emptied chan struct{} // closed when the set is empty after empty was called
}

func newSet[T comparable]() *set[T] { return &set[T]{in: make(map[T]struct{})} }

// add inserts v.
func (s *set[T]) add(v T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.in[v] = struct{}{}
}

// remove deletes v.
func (s *set[T]) remove(v T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.in, v)
	s.signal()
}

// len returns the number of elements.
func (s *set[T]) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.in)
}

// all returns a copy of the elements.
func (s *set[T]) all() []T {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]T, 0, len(s.in))
	for v := range s.in {
		all = append(all, v)
	}
	return all
}

// empty returns a channel that is closed as soon as the set is empty.
func (s *set[T]) empty() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.emptied == nil {
		s.emptied = make(chan struct{})
	}
	c := s.emptied
	s.signal()
	return c
}

// signal closes the channel once the set is empty. The caller holds mu.
func (s *set[T]) signal() {
	if s.emptied != nil && len(s.in) == 0 {
		close(s.emptied)
		s.emptied = nil
	}
}
