package engine

import (
	"errors"
	"net/http"
	"time"
)

// errDead is the answer to requests after the engine's core has died.
var errDead = errors.New("engine: EngineCore encountered an issue; see its log")

// die is what becomes of an engine whose core fails an assertion: every live request fails, and every later one.
func (s *Server) die(assertion string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.dead {
		s.log.Error("the engine's core has died", "assertion", assertion)
		s.dead, s.diedAt = true, time.Now()
		if s.cfg.OnDeath != nil {
			s.cfg.OnDeath()
		}
	}
	s.core.AbortAll()
	s.awake()
}

func (s *Server) isDead() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dead
}

// mortal serves h for as long as the engine lives. The server of an SGLang whose scheduler has ended takes calls,
// answers none, and ends with all its connections after Config.CrashSilence (srt/managers/tokenizer_manager.py of
// 0.5.23, "Sleeping 5 seconds before crash diagnostics"). That of other engines answers with errors.
func (s *Server) mortal(h http.Handler) http.Handler {
	if s.cfg.Engine != "sglang" {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if !s.isDead() {
				return
			}
			select {
			case <-r.Context().Done():
			case <-time.After(time.Until(s.diedAt.Add(s.cfg.CrashSilence))): // diedAt does not change any more
			}
			panic(http.ErrAbortHandler)
		}()
		if !s.isDead() {
			h.ServeHTTP(w, r)
		}
	})
}
