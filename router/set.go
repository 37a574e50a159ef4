package router

import (
	"log/slog"
	"sync"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router/index"
)

// Set gives each pool a router and an index of its own, made when the pool is
// first asked for. It is safe for concurrent use.
type Set struct {
	configs map[pools.Role]Config
	log     *slog.Logger

	mu     sync.RWMutex // guards pools
	pools  map[setKey]setEntry
	limits map[string]Thresholds // set while running, by model
	pairs  map[string]Pairer     // by model
}

type setKey struct {
	model string
	role  pools.Role
}

type setEntry struct {
	router *Router
	index  *index.Index
}

// NewSet makes a set. configs holds one Config for each role; its error is the
// first one's that Validate refuses.
func NewSet(configs map[pools.Role]Config, log *slog.Logger) (*Set, error) {
	for role, cfg := range configs {
		if _, err := New(cfg, index.New(index.Config{}), log.With("role", string(role))); err != nil {
			return nil, err
		}
	}
	return &Set{configs: configs, log: log, pools: map[setKey]setEntry{}, limits: map[string]Thresholds{}, pairs: map[string]Pairer{}}, nil
}

// For is the router of that model's pool of that role.
func (s *Set) For(model string, role pools.Role) *Router { return s.entry(model, role).router }

// Index is the index of that model's pool of that role.
func (s *Set) Index(model string, role pools.Role) *index.Index { return s.entry(model, role).index }

// Pairer chooses a worker of the model's prefill pool and one of its decode
// pool together, each by its own pool's policy.
func (s *Set) Pairer(model string) Pairer {
	s.mu.RLock()
	p := s.pairs[model]
	s.mu.RUnlock()
	if p != nil {
		return p
	}
	prefill, decode := s.For(model, pools.Prefill), s.For(model, pools.Decode)
	p, err := NewPairer("sequential", prefill, decode)
	if err != nil {
		panic(err) // it is registered in this package
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pairs[model] = p
	return p
}

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
	e.index = index.New(index.Config{MaxBlocks: s.configs[role].IndexMaxBlocks})
	e.router, _ = New(s.configs[role], e.index, s.log.With("model", model, "role", string(role))) // NewSet tried each config
	if t, ok := s.limits[model]; ok {
		e.router.SetThresholds(t)
	}
	s.pools[key] = e
	return e
}

// IndexStats are the sums over the indexes of all pools in which what is cached
// counts.
func (s *Set) IndexStats() (sum index.Stats) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, e := range s.pools {
		if x, ok := e.router.IndexStats(); ok {
			sum.Add(x)
		}
	}
	return sum
}
