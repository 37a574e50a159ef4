package engine

import (
	"context"
	"net/http"
	"time"
)

// health has the scheduler generate a token, looks once a second whether it has, and gives it 20 s
// (srt/entrypoints/http_server.py, health_generate). Between two steps the scheduler answers at once.
func (d *sglang) health(w http.ResponseWriter, r *http.Request) {
	over, began := d.s.stepOver(), time.Now()
	for time.Since(began) < 20*time.Second {
		select {
		case <-time.After(time.Second):
		case <-r.Context().Done():
			return
		}
		if !time.Now().Before(over) {
			d.s.health(w, r)
			return
		}
	}
	w.WriteHeader(http.StatusServiceUnavailable)
}

// stepOver is when the step in progress ends; zero for none.
func (s *Server) stepOver() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.core.busy {
		return time.Time{}
	}
	return s.core.end
}

// awaitScheduler waits until the scheduler is between two steps; false is ctx's end.
func (s *Server) awaitScheduler(ctx context.Context) bool {
	select {
	case <-time.After(time.Until(s.stepOver())):
		return true
	case <-ctx.Done():
		return false
	}
}
