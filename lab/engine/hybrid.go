package engine

import "slices"

// indexWindow indexes, of the blocks from first on, those that a sliding window can be read from again: a window before
// the last token of the prompt, and one before the prefix that it shares with another prompt (reachable_block_mask in
// vLLM 0.32's v1/core/single_type_kv_cache_manager.py). Its event goes before the full group's.
func (c *Core) indexWindow(s *sequence, first, full int) {
	e := c.cache.log.events[full]
	e.Group, e.Window, e.Hashes = 0, c.cfg.SlidingWindow, nil
	for i := first; i < s.indexed; i++ {
		for _, end := range []int{(s.length() - 1) / c.cfg.BlockSize, s.shared} {
			if b := &c.cache.blocks[s.blocks[i]]; !b.windowed && i < end && i >= end-c.cache.window {
				b.windowed = true
				e.Hashes = append(e.Hashes, s.hashes[i])
			}
		}
	}
	c.cache.log.events = slices.Insert(c.cache.log.events, full, e)
}

// reach is how many of the leading hashes, which are all cached, a hybrid model can use: the last of them that end with
// the blocks of a whole window (find_longest_cache_hit in vLLM 0.32's v1/core/single_type_kv_cache_manager.py).
func (c *cache) reach(hashes []uint64) int {
	if c.window == 0 {
		return len(hashes)
	}
	run := 0
	for i := len(hashes) - 1; i >= 0; i-- {
		run++
		b := c.index[hashes[i]]
		for b != none && !c.blocks[b].windowed {
			b = c.blocks[b].twin
		}
		if b == none {
			run = 0
		}
		if run == c.window {
			return i + run
		}
	}
	return run
}

// fullGroup is the KV-cache group of the layers with full attention. A sliding window's is 0 and goes before it.
func (c *cache) fullGroup() int { return min(c.window, 1) }
