package edge

import "sync"

// set is a concurrent set that can tell when it is empty.
type set[T comparable] struct {
	mu    sync.Mutex
	in    map[T]struct{}
	empty chan struct{} // closed at the first emptiness after Empty was called
}

func newSet[T comparable]() *set[T] { return &set[T]{in: make(map[T]struct{})} }

// Add puts v in.
func (s *set[T]) Add(v T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.in[v] = struct{}{}
}

// Remove takes v out.
func (s *set[T]) Remove(v T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.in, v)
	s.tell()
}

// Len returns how many are in.
func (s *set[T]) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.in)
}

// All returns a copy of what is in.
func (s *set[T]) All() []T {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]T, 0, len(s.in))
	for v := range s.in {
		all = append(all, v)
	}
	return all
}

// Empty returns a channel that is closed as soon as the set is empty.
func (s *set[T]) Empty() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.empty == nil {
		s.empty = make(chan struct{})
	}
	c := s.empty
	s.tell()
	return c
}

// tell closes the channel of those who wait for emptiness. The caller holds mu.
func (s *set[T]) tell() {
	if s.empty != nil && len(s.in) == 0 {
		close(s.empty)
		s.empty = nil
	}
}
