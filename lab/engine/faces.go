package engine

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/tandem-pd/tandem/internal/openai"
)

// newFaces is the engine's HTTP surface, vLLM's and /debug/books.
func (s *Server) newFaces() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/completions", s.answer(completionForm))
	mux.HandleFunc("POST /v1/chat/completions", s.answer(chatForm))
	mux.HandleFunc("POST /tokenize", s.tokenize)
	mux.HandleFunc("POST /reset_prefix_cache", s.resetPrefixCache)
	mux.HandleFunc("GET /v1/models", s.models)
	mux.HandleFunc("GET /health", s.health)
	mux.HandleFunc("GET /version", s.version)
	mux.HandleFunc("GET /debug/books", s.showBooks)
	if s.cfg.EventSources != nil {
		mux.HandleFunc("GET /kv_event_sources", func(w http.ResponseWriter, _ *http.Request) {
			writeJSON(w, http.StatusOK, s.cfg.EventSources)
		})
	}
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.metrics.registry, promhttp.HandlerOpts{}))
	return mux
}

// tokenize shows the ids of a prompt, or of messages under the chat template.
func (s *Server) tokenize(w http.ResponseWriter, r *http.Request) {
	f, failure := readFields(w, r)
	if failure != nil {
		writeError(w, failure)
		return
	}
	var ids []uint32
	if f.get("messages") != nil {
		ids = s.chatPrompt(f)
	} else {
		ids = s.tokenizer.Encode([]uint32{}, f.text("prompt"))
		if f.get("prompt") == nil {
			f.fail("prompt", "prompt or messages is required")
		}
	}
	if f.err != nil {
		writeError(w, f.err)
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
		writeError(w, newError(http.StatusInternalServerError, "", "blocks are in use"))
		return
	}
	s.awake()
	w.WriteHeader(http.StatusOK)
}

func (s *Server) models(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, openai.ModelList{Object: "list", Data: []openai.Model{
		{ID: s.cfg.Model, Object: "model", OwnedBy: "tandem", MaxModelLen: s.cfg.ContextLength},
	}})
}

// version says which engine this is, where vLLM says which release.
func (s *Server) version(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, struct {
		Version string `json:"version"`
	}{"tandem-sim"})
}

// health answers 200 while the engine runs, is ready and does not drain.
func (s *Server) health(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	var failure *apiError
	switch {
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
		writeError(w, failure)
		return
	}
	w.WriteHeader(http.StatusOK)
}

func (s *Server) showBooks(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, s.Books())
}
