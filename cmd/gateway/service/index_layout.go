package service

import (
	"slices"

	"github.com/tandem-pd/tandem/kv/follow"
	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/kv/overlap"
	"github.com/tandem-pd/tandem/kv/wire"
)

// layout is a model's registered ranks in the order of answers, with their place in the indexes. It is immutable, and
// replaced when registrations, ranks' states or the indexes' owners change.
type layout struct {
	changes, published, posted uint64 // versions of its inputs
	blockSize                  int    // in tokens; 0 if the model has no worker
	sum                        uint64 // of ranks, see [Sum]
	ranks                      *overlap.Layout
	places                     []place
	// follows and posts report whether some ranks are in each index.
	follows, posts bool
}

// place is one rank's position in the indexes.
type place struct {
	posted bool
	known  bool // the index reflects the rank's own events
	owner  index.Owner
}

// see returns the model's current layout, nil if no worker was ever registered.
func (x *shared) see(model string) (*indexed, *layout) {
	x.mu.RLock()
	m := x.models[model]
	x.mu.RUnlock()
	if m == nil {
		return nil, nil
	}
	changes, published, posted := x.changes.Load(), m.published.Epoch(), m.posted.Epoch()
	if l := m.layout.Load(); l != nil && l.changes == changes && l.published == published && l.posted == posted {
		return m, l
	}
	l := &layout{changes: changes, published: published, posted: posted}
	states := x.states()
	var ranks []overlap.Rank
	for _, w := range x.all(model) { // by id
		l.blockSize = w.BlockSize
		for rank := range w.Registration.Ranks {
			p := place{posted: w.KVEvents == "post"}
			p.owner, _ = w.idx.Lookup(w.ID, rank)
			if p.posted {
				p.known, l.posts = w.ranks[rank].begun(), true
			} else {
				state, there := states[w.source(rank)]
				p.known, l.follows = there && state != follow.Waiting && state != follow.Predicted, true
			}
			ranks = append(ranks, overlap.Rank{Worker: w.ID, Rank: rank})
			l.places = append(l.places, p)
		}
	}
	l.ranks = overlap.NewLayout(ranks)
	l.sum = Sum(l.ranks)
	m.layout.Store(l)
	return m, l
}

func (x *shared) states() map[wire.Source]follow.State {
	all := x.subscriber.Sources()
	states := make(map[wire.Source]follow.State, len(all))
	for _, s := range all {
		states[s.Source] = s.State
	}
	return states
}

func (w *registered) source(rank int) wire.Source {
	return wire.Source{Pool: w.pool(), Worker: w.ID, Rank: rank}
}

// looked is the pooled memory of one lookup.
type looked struct {
	published, posted index.Matches
	held              []overlap.Tiers
	wire              []byte
}

// look fills held with what each rank of the layout holds of the chain.
func (l *layout) look(m *indexed, chain []uint64, into *looked) {
	if l.follows {
		m.published.Match(chain, &into.published)
	}
	if l.posts {
		m.posted.Match(chain, &into.posted)
	}
	into.held = slices.Grow(into.held[:0], len(l.places))[:len(l.places)]
	for i, p := range l.places {
		found := &into.published
		if p.posted {
			found = &into.posted
		}
		into.held[i] = tiersOf(found, p.owner)
		into.held[i].Known = p.known
	}
}
