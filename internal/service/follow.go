package service

import (
	"slices"
	"sync"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router/events"
)

// follow tells the subscriber which workers to follow, as the roster changes.
type follow struct {
	roster     *pools.Roster
	subscriber *events.Subscriber

	mu  sync.Mutex // guards was
	was map[string]followed
}

// followed is what makes a worker another one to the subscriber.
type followed struct {
	pool, incarnation string
	ranks, blockSize  int
}

// update is called after each change of the roster, by several at once.
func (f *follow) update() {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := map[string]followed{}
	for _, p := range f.roster.Pools() {
		for _, m := range p.Members {
			w := m.Worker
			if w.KVEvents != "nats" {
				continue
			}
			now[w.ID] = followed{p.Name(), w.Incarnation, w.Ranks(), w.BlockSize}
			old, known := f.was[w.ID]
			if old == now[w.ID] {
				continue
			}
			if known {
				f.subscriber.Untrack(old.pool, w.ID)
			}
			f.subscriber.Track(p.Name(), w.ID, slices.Collect(upTo(w.Ranks())), w.BlockSize)
		}
	}
	for id, old := range f.was {
		if _, still := now[id]; !still {
			f.subscriber.Untrack(old.pool, id)
		}
	}
	f.was = now
}
