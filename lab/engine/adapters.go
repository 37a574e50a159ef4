package engine

import (
	"net/http"
	"slices"

	"github.com/tandem-pd/tandem/internal/openai"
)

// adapterRoutes adds the paths that load and unload LoRA adapters, under a prefix.
func (s *Server) adapterRoutes(mux *http.ServeMux, prefix string) {
	mux.HandleFunc("POST "+prefix+"/load_lora_adapter", func(w http.ResponseWriter, r *http.Request) { s.changeAdapters(w, r, true) })
	mux.HandleFunc("POST "+prefix+"/unload_lora_adapter", func(w http.ResponseWriter, r *http.Request) { s.changeAdapters(w, r, false) })
}

// changeAdapters loads or unloads the adapter of lora_name. Nothing is read from lora_path: the simulated model answers
// the same with any adapter, and keeps its blocks apart.
func (s *Server) changeAdapters(w http.ResponseWriter, r *http.Request, load bool) {
	f, failure := readFields(w, r)
	if failure != nil {
		s.writeError(w, failure)
		return
	}
	name := f.text("lora_name")
	if name == "" || load && f.text("lora_path") == "" || f.err != nil {
		s.writeError(w, newError(http.StatusBadRequest, "lora_name", "lora_name is required, and lora_path to load one"))
		return
	}
	s.mu.Lock()
	at := slices.Index(s.adapters, name)
	switch {
	case load && at < 0:
		s.adapters = append(s.adapters, name)
	case !load && at >= 0:
		s.adapters = slices.Delete(slices.Clone(s.adapters), at, at+1)
	case load:
		failure = newError(http.StatusBadRequest, "lora_name", "the adapter %.100q is loaded already", name)
	default:
		failure = newError(http.StatusNotFound, "lora_name", "the adapter %.100q is not loaded", name)
	}
	s.mu.Unlock()
	if failure != nil {
		s.writeError(w, failure)
		return
	}
	_, _ = w.Write([]byte("Success: adapter " + name))
}

// loaded reports whether an adapter is loaded.
func (s *Server) loaded(adapter string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.adapters, adapter)
}

// modelList is the answer to GET /v1/models: the model, and its adapters with it as their parent.
func (s *Server) modelList(owner string) openai.ModelList {
	list := openai.ModelList{Object: "list", Data: []openai.Model{
		{ID: s.cfg.Model, Object: "model", OwnedBy: owner, MaxModelLen: s.cfg.ContextLength},
	}}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range s.adapters {
		list.Data = append(list.Data, openai.Model{ID: name, Object: "model", OwnedBy: owner, Parent: s.cfg.Model})
	}
	return list
}
