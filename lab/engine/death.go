package engine

import "errors"

// errDead is the answer to requests after the engine's core has died.
var errDead = errors.New("engine: EngineCore encountered an issue; see its log")

// die is what becomes of an engine whose core fails an assertion: every live request
// fails, and every later one.
func (s *Server) die(assertion string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.dead {
		s.log.Error("the engine's core has died", "assertion", assertion)
	}
	s.dead = true
	for id := range s.core.seqs {
		s.core.Abort(id)
	}
	s.awake()
}

func (s *Server) isDead() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dead
}
