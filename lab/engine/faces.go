package engine

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// newFaces is the engine's HTTP surface: its dialect's, and /debug/books.
func (s *Server) newFaces() http.Handler {
	mux := http.NewServeMux()
	s.dialect.routes(mux)
	mux.HandleFunc("GET /debug/books", s.showBooks)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h, pattern := mux.Handler(r)
		if pattern != "" {
			mux.ServeHTTP(w, r)
			return
		}
		refusal := statusOnly{w.Header(), http.StatusOK}
		h.ServeHTTP(&refusal, r)
		writeJSON(w, refusal.status, map[string]string{"detail": http.StatusText(refusal.status)}) // as FastAPI does
	})
}

// statusOnly is the status of an answer.
type statusOnly struct {
	header http.Header
	status int
}

func (s *statusOnly) Header() http.Header         { return s.header }
func (s *statusOnly) Write(b []byte) (int, error) { return len(b), nil }
func (s *statusOnly) WriteHeader(status int)      { s.status = status }

// metricsHandler serves the engine's metrics in Prometheus's text form.
func (s *Server) metricsHandler() http.Handler {
	return promhttp.HandlerFor(s.metrics.registry, promhttp.HandlerOpts{})
}

// tokenize shows the ids of a prompt, or of messages under the chat template.
func (s *Server) tokenize(w http.ResponseWriter, r *http.Request) {
	f, failure := readFields(w, r)
	if failure != nil {
		s.writeError(w, failure)
		return
	}
	var ids []uint32
	if f.get("messages") != nil {
		if s.cfg.Engine != "sglang" { // whose endpoint prepares messages as its chat does, all fields
			// vllm-0.32.0/vllm/entrypoints/serve/tokenize/protocol.py, TokenizeChatRequest, has none of them.
			for _, name := range []string{"tool_choice", "reasoning_effort", "documents", "response_format"} {
				delete(f.raw, name)
			}
		}
		ids = s.chatPrompt(f)
	} else {
		ids = s.encodeText(f.text("prompt"))
		if f.get("prompt") == nil {
			f.fail("prompt", "prompt or messages is required")
		}
	}
	if f.err != nil {
		s.writeError(w, f.err)
		return
	}
	writeJSON(w, http.StatusOK, struct {
		Count       int      `json:"count"`
		MaxModelLen int      `json:"max_model_len"`
		Tokens      []uint32 `json:"tokens"`
	}{len(ids), s.cfg.ContextLength, ids})
}

// resetPrefixCache drops the reusable blocks, unless any block is in use.
func (s *Server) resetPrefixCache(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	done := s.core.ClearCache()
	s.mu.Unlock()
	if !done {
		s.writeError(w, newError(http.StatusInternalServerError, "", "blocks are in use"))
		return
	}
	s.awake()
	w.WriteHeader(http.StatusOK)
}

// health answers 200 while the engine runs, is ready and does not drain.
func (s *Server) health(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	var failure *apiError
	switch {
	case s.dead:
		failure = newError(http.StatusServiceUnavailable, "", "%v", errDead)
	case !s.drainAt.IsZero() || s.closed:
		failure = newError(http.StatusServiceUnavailable, "", "the engine is draining")
	case !s.running:
		failure = newError(http.StatusServiceUnavailable, "", "the engine is starting")
	}
	s.mu.Unlock()
	if failure == nil && s.cfg.Ready != nil {
		if err := s.cfg.Ready(); err != nil {
			failure = newError(http.StatusServiceUnavailable, "", "the engine is not ready: %v", err)
		}
	}
	if failure != nil {
		s.writeError(w, failure)
		return
	}
	w.WriteHeader(http.StatusOK)
}

func (s *Server) showBooks(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, s.Books())
}
