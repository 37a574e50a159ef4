package guard

import "sync"

// Set is a concurrent set that signals when it is empty.
type Set[T comparable] struct {
	mu      sync.Mutex
	in      map[T]struct{}
	emptied chan struct{} // closed when the set is empty after Empty was called
}

// NewSet returns an empty set.
func NewSet[T comparable]() *Set[T] { return &Set[T]{in: make(map[T]struct{})} }

// Add inserts v.
func (s *Set[T]) Add(v T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.in[v] = struct{}{}
}

// Remove deletes v.
func (s *Set[T]) Remove(v T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.in, v)
	s.signal()
}

// Len returns the number of elements.
func (s *Set[T]) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.in)
}

// All returns a copy of the elements.
func (s *Set[T]) All() []T {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]T, 0, len(s.in))
	for v := range s.in {
		all = append(all, v)
	}
	return all
}

// Empty returns a channel that is closed as soon as the set is empty.
func (s *Set[T]) Empty() <-chan struct{} {
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
func (s *Set[T]) signal() {
	if s.emptied != nil && len(s.in) == 0 {
		close(s.emptied)
		s.emptied = nil
	}
}
