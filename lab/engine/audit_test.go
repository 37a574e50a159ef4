package engine

import (
	"fmt"
	"slices"
)

// audit recounts everything the cache keeps in running totals, from the block
// tables and pins, and reports the first thing that does not add up.
func audit(c *Core) error {
	refs := make([]int32, len(c.cache.blocks))
	hold := func(chain []int32) {
		for _, b := range chain {
			refs[b]++
		}
	}
	for _, s := range c.seqs {
		hold(s.blocks)
		if s.phase == waiting && len(s.blocks) > 0 {
			return fmt.Errorf("%s waits with %d blocks", s.ID, len(s.blocks))
		}
		if s.computed > s.tokens() || s.computed > len(s.blocks)*c.cfg.BlockSize && s.phase == running {
			return fmt.Errorf("%s has computed %d of %d tokens in %d blocks", s.ID, s.computed, s.tokens(), len(s.blocks))
		}
	}
	staged := 0
	for _, p := range c.pins {
		hold(p.blocks)
		if p.seq != nil {
			staged++
		}
	}
	for id, m := range c.meetings {
		switch {
		case m.id != id || m.seq != nil && m.pin != nil:
			return fmt.Errorf("meeting %s has id %q, two halves of prefill: %t", id, m.id, m.seq != nil && m.pin != nil)
		case m.pin != nil && c.pins[id] != m.pin, m.seq != nil && c.seqs[m.seq.ID] != m.seq:
			return fmt.Errorf("meeting %s outlived its prefill", id)
		case m.pin == nil && m.seq == nil && m.until.IsZero():
			return fmt.Errorf("meeting %s is empty", id)
		case m.guest != nil && m.pin != nil:
			return fmt.Errorf("the guest of meeting %s waits for blocks that are there", id)
		}
	}
	if n := c.waiting.n + len(c.fetching) + len(c.running) + len(c.expecting) + staged; n != len(c.seqs) {
		return fmt.Errorf("%d sequences in lists, %d live", n, len(c.seqs))
	}
	if n := len(c.running) + len(c.fetching); n > c.cfg.MaxNumSeqs {
		return fmt.Errorf("%d sequences in %d seats", n, c.cfg.MaxNumSeqs)
	}
	active, inactive, indexed, firsts := 0, 0, 0, 0
	children := make([]int32, len(refs))
	for i, b := range c.cache.blocks {
		if b.refs != refs[i] {
			return fmt.Errorf("block %d counts %d references, %d are held", i, b.refs, refs[i])
		}
		if b.refs > 0 {
			active++
		}
		if !b.indexed {
			continue
		}
		indexed++
		at := c.cache.index[b.hash]
		if at == int32(i) {
			firsts++
		}
		for at != int32(i) && at != none && c.cache.twins {
			at = c.cache.blocks[at].twin
		}
		if at != int32(i) {
			return fmt.Errorf("block %d is not under its hash", i)
		}
		if b.refs == 0 {
			inactive++
		}
		if b.parent != none {
			children[b.parent]++
			if p := c.cache.blocks[b.parent]; !p.indexed || p.refs < b.refs && p.refs == 0 {
				return fmt.Errorf("block %d outlived its parent", i)
			}
		}
	}
	leaves := 0
	for i, b := range c.cache.blocks {
		if b.indexed && b.children != children[i] {
			return fmt.Errorf("block %d counts %d children of %d", i, b.children, children[i])
		}
		leaf := b.indexed && b.refs == 0 && children[i] == 0
		if leaf != (b.leaf != none) || leaf && c.cache.leaves.heap[b.leaf] != int32(i) {
			return fmt.Errorf("block %d: leaf %v, place %d", i, leaf, b.leaf)
		}
		if leaf {
			leaves++
		}
	}
	switch {
	case firsts != len(c.cache.index):
		return fmt.Errorf("%d of %d blocks are in the index, which has %d", firsts, indexed, len(c.cache.index))
	case leaves != len(c.cache.leaves.heap):
		return fmt.Errorf("%d leaves, %d in the heap", leaves, len(c.cache.leaves.heap))
	case inactive != c.cache.inactive:
		return fmt.Errorf("%d inactive blocks, %d counted", inactive, c.cache.inactive)
	case len(c.cache.free)+inactive+active != c.cfg.TotalKVBlocks:
		return fmt.Errorf("%d free + %d cached + %d active of %d", len(c.cache.free), inactive, active, c.cfg.TotalKVBlocks)
	}
	free := slices.Clone(c.cache.free)
	slices.Sort(free)
	if len(slices.Compact(free)) != len(c.cache.free) {
		return fmt.Errorf("a block is free twice")
	}
	return nil
}

// mirror follows a core's events as an index would.
type mirror map[uint64]mirrored

type mirrored struct {
	parent    uint64
	hasParent bool
	tokens    string
	copies    int
}

func (m mirror) apply(events []Event) error {
	for _, e := range events {
		switch e.Kind {
		case Stored:
			parent, has := e.Parent, e.HasParent
			if len(e.TokenIDs) != len(e.Hashes)*e.BlockSize {
				return fmt.Errorf("%d tokens for %d blocks of %d", len(e.TokenIDs), len(e.Hashes), e.BlockSize)
			}
			for i, h := range e.Hashes {
				if _, ok := m[parent]; has && !ok {
					return fmt.Errorf("stored under an unknown parent")
				}
				m[h] = mirrored{parent, has, fmt.Sprint(e.TokenIDs[i*e.BlockSize : (i+1)*e.BlockSize]), m[h].copies + 1}
				parent, has = h, true
			}
		case Removed:
			for _, h := range e.Hashes {
				b, ok := m[h]
				if !ok {
					return fmt.Errorf("removed, never stored")
				}
				if b.copies--; b.copies > 0 {
					m[h] = b
				} else {
					delete(m, h)
				}
			}
		case Cleared:
			clear(m)
		}
	}
	return nil
}
