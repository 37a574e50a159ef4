package main

import (
	"fmt"

	"github.com/tandem-pd/tandem/internal/tokens"
	"github.com/tandem-pd/tandem/lab/engine"
	"github.com/tandem-pd/tandem/router/index"
)

// truth is what one engine's cache holds, named as the router names blocks. It is kept from the events that leave the
// engine, before anything can happen to them, and at the end compared with the cache itself ([truthOf]).
type truth struct {
	own   map[uint64]uint64   // of each block held: the engine's name to the router's
	held  map[uint64]struct{} // the router's names
	block int                 // tokens
}

func newTruth(block int) *truth {
	return &truth{own: map[uint64]uint64{}, held: map[uint64]struct{}{}, block: block}
}

// truthOf reads an engine's cache itself. Its error is that the cache does not know its own tokens.
func truthOf(core *engine.Core) (*truth, error) {
	t := newTruth(core.Config().BlockSize)
	for _, e := range core.Snapshot() {
		if len(e.TokenIDs) != len(e.Hashes)*t.block {
			return nil, fmt.Errorf("an engine holds %d blocks of which it knows %d tokens", len(e.Hashes), len(e.TokenIDs))
		}
		t.store(&e)
	}
	return t, nil
}

// apply follows one event.
func (t *truth) apply(e *engine.Event) {
	switch e.Kind {
	case engine.Stored:
		t.store(e)
	case engine.Removed:
		for _, h := range e.Hashes {
			delete(t.held, t.own[h])
			delete(t.own, h)
		}
	case engine.Cleared:
		clear(t.own)
		clear(t.held)
	}
}

func (t *truth) store(e *engine.Event) {
	parent, follows := uint64(0), e.HasParent
	if follows {
		parent = t.own[e.Parent]
	}
	local := tokens.LocalHashes(nil, e.TokenIDs, t.block, tokens.Seed("", ""))
	for i, h := range e.Hashes {
		own := local[i]
		if follows {
			own = tokens.Chain(parent, own)
		}
		t.own[h], t.held[own] = own, struct{}{}
		parent, follows = own, true
	}
}

// equal says whether two truths name the same blocks.
func (t *truth) equal(o *truth) bool {
	if len(t.held) != len(o.held) {
		return false
	}
	for h := range t.held {
		if _, ok := o.held[h]; !ok {
			return false
		}
	}
	return true
}

// difference is in what the index is wrong about one engine, in blocks.
type difference struct {
	True    int // held by the engine
	Missing int // of them, not indexed
	Phantom int // indexed, and not held
}

func (d difference) wrong() int { return d.Missing + d.Phantom }

// compare looks at all that the index has of an owner.
func (t *truth) compare(idx *index.Index, owner index.Owner) difference {
	d := difference{True: len(t.held)}
	found := 0
	idx.Each(owner, index.Device, func(b index.Block) bool {
		if _, ok := t.held[b.Hash]; ok {
			found++
		} else {
			d.Phantom++
		}
		return true
	})
	// While it is written to, a block that moves may come twice.
	d.Missing = max(0, d.True-found)
	return d
}
