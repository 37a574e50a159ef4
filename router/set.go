package router

import (
	"log/slog"
	"maps"
	"sync"

	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/pools"
)

// Set holds a router and an index for each pool, made on first use. It is safe for concurrent use.
type Set struct {
	configs map[pools.Role]Config

	mu     sync.RWMutex // guards what follows
	pools  map[setKey]setEntry
	limits map[string]Thresholds // set while running, by model
}

type setKey struct {
	model string
	role  pools.Role
}

type setEntry struct {
	router *Router
	index  *index.Index
}

// NewSet returns a set whose routers write to log. configs holds one Config for each role. It returns the first error
// of Validate.
func NewSet(configs map[pools.Role]Config, log *slog.Logger) (*Set, error) {
	configs = maps.Clone(configs)
	for role, cfg := range configs {
		if err := cfg.Validate(); err != nil {
			return nil, err
		}
		configs[role] = cfg.logTo(log)
	}
	return &Set{configs: configs, pools: map[setKey]setEntry{}, limits: map[string]Thresholds{}}, nil
}

// For returns the router of a model's pool of a role.
func (s *Set) For(model string, role pools.Role) *Router { return s.entry(model, role).router }

// Index returns the index of a model's pool of a role.
func (s *Set) Index(model string, role pools.Role) *index.Index { return s.entry(model, role).index }

func (s *Set) entry(model string, role pools.Role) setEntry {
	key := setKey{model, role}
	s.mu.RLock()
	e, ok := s.pools[key]
	s.mu.RUnlock()
	if ok {
		return e
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e, ok := s.pools[key]; ok {
		return e
	}
	e.index = index.New(index.Config{})
	e.router, _ = New(s.configs[role], e.index) // NewSet has validated each config
	if t, ok := s.limits[model]; ok {
		e.router.SetThresholds(t)
	}
	s.pools[key] = e
	return e
}

// Each calls f with the router of each pool in use.
func (s *Set) Each(f func(model string, role pools.Role, r *Router)) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for key, e := range s.pools {
		f(key.model, key.role, e.router)
	}
}

// IndexStats calls emit with the size of each index in which cached blocks count.
func (s *Set) IndexStats(pools []*pools.Pool, emit func(model, role string, size index.Stats)) {
	for _, p := range pools {
		if events := s.For(p.Model, p.Role).sources.Size().Events; events != nil {
			emit(p.Model, string(p.Role), *events)
		}
	}
}
