package engine

// none stands for "no block" and "no place in the heap".
const none = int32(-1)

// cache is the paged KV cache: a fixed number of blocks, each free, active (referred to by a sequence or a pin) or
// inactive (reusable, referred to by none of them). A full block whose tokens were computed is indexed under its
// chained hash, once: a second block of the same content gives way to the first. vLLM indexes it as well, and evicts
// and announces each by itself (v1/core/block_pool.py of 0.32, BlockHashToBlockMap); see cache.twins.
//
// A sequence that refers to a block refers to the whole chain before it. So the blocks of an inactive one's chain
// that come after it are inactive too. Evicting leaves first, the longest unused before the others, can always reach
// all of them. Where twins are kept all inactive blocks count as leaves: the ends of chains have been unused for
// longer than what they extend.
type cache struct {
	size     int // tokens of a block
	blocks   []block
	free     []int32
	index    map[uint64]int32
	leaves   leaves // inactive blocks that no indexed block extends
	inactive int    // indexed blocks without references
	twins    bool   // blocks of one content are all kept; the index has the first
	window   int    // blocks that a sliding window spans, 0 without one
	clock    uint64 // grows with every release

	ids []uint32 // tokens of the indexed blocks, by block; nil until some are known
	log eventLog
}

// block is one page of the cache.
type block struct {
	hash     uint64
	used     uint64 // the clock when its last reference went
	refs     int32
	parent   int32  // the block that it extends; none where a chain begins, and where twins are kept
	before   uint64 // the hash of the one that it extends
	chained  bool   // before counts
	children int32  // indexed blocks that extend it
	leaf     int32  // its place among the leaves
	twin     int32  // the next block of its hash; none
	indexed  bool
	known    bool // its tokens are in cache.ids
	windowed bool // its sliding-window layers' KV is indexed too
}

func newCache(blocks, blockSize int) *cache {
	c := &cache{
		size:   blockSize,
		blocks: make([]block, blocks),
		free:   make([]int32, blocks),
		index:  make(map[uint64]int32),
	}
	for i := range c.blocks {
		c.blocks[i] = block{parent: none, leaf: none, twin: none}
		c.free[i] = int32(blocks - 1 - i)
	}
	c.leaves.blocks = c.blocks
	return c
}

// available counts the blocks that alloc can give without taking one from a sequence.
func (c *cache) available() int { return len(c.free) + c.inactive }

// active counts the blocks that a sequence or a pin refers to.
func (c *cache) active() int { return len(c.blocks) - c.available() }

// match is how many leading hashes are cached, and how many of these blocks
// are inactive: taking them makes so many blocks less available.
func (c *cache) match(hashes []uint64) (found, inactive int) {
	for _, h := range hashes {
		b, ok := c.index[h]
		if !ok {
			break
		}
		found++
		if c.blocks[b].refs == 0 {
			inactive++
		}
	}
	return found, inactive
}

// take adds a reference to the cached blocks of the hashes and appends them to dst. match has found them all.
func (c *cache) take(dst []int32, hashes []uint64) []int32 {
	for _, h := range hashes {
		i := c.index[h]
		c.retain(i)
		dst = append(dst, i)
	}
	return dst
}

// alloc appends n fresh blocks to dst, evicting as many as it must. The caller has seen that so many are available.
func (c *cache) alloc(dst []int32, n int) []int32 {
	for range n {
		if len(c.free) == 0 {
			c.evict()
		}
		i := c.free[len(c.free)-1]
		c.free = c.free[:len(c.free)-1]
		c.blocks[i].refs = 1
		dst = append(dst, i)
	}
	return dst
}

// insert indexes a computed full block that extends parent. Where the same content is cached already, that block takes
// its place: insert moves the caller's reference to it, frees the caller's and reports false.
func (c *cache) insert(i, parent int32, hash uint64, ids []uint32) (int32, bool) {
	twin, ok := c.index[hash]
	if ok && !c.twins {
		c.retain(twin)
		c.blocks[i].refs = 0
		c.free = append(c.free, i)
		return twin, false
	}
	b := &c.blocks[i]
	b.hash, b.parent, b.children, b.indexed = hash, parent, 0, true
	if parent != none {
		b.before, b.chained = c.blocks[parent].hash, true
	}
	switch {
	case c.twins:
		b.parent = none
	case parent != none:
		c.blocks[parent].children++
	}
	if ok {
		b.twin, c.blocks[twin].twin = c.blocks[twin].twin, i
	} else {
		c.index[hash] = i
	}
	if len(ids) == c.size {
		if c.ids == nil {
			c.ids = make([]uint32, len(c.blocks)*c.size)
		}
		copy(c.ids[int(i)*c.size:], ids)
		b.known = true
	}
	return i, true
}

// release gives back one reference to each block of a chain. Blocks that were
// never indexed are free at once; the others stay for reuse.
func (c *cache) release(chain []int32) {
	c.clock++
	for k := len(chain) - 1; k >= 0; k-- {
		i := chain[k]
		b := &c.blocks[i]
		b.refs--
		if b.refs > 0 {
			continue
		}
		if !b.indexed {
			c.free = append(c.free, i)
			continue
		}
		if c.twins {
			c.clock++
		}
		b.used = c.clock
		c.inactive++
		if b.children == 0 {
			c.leaves.push(i)
		}
	}
}

// clear drops every reusable block. It reports false, and does nothing, while a sequence or a pin refers to a block.
func (c *cache) clear() bool {
	if c.active() > 0 {
		return false
	}
	fresh := newCache(len(c.blocks), c.size)
	fresh.log, fresh.clock, fresh.twins, fresh.window = c.log, c.clock, c.twins, c.window
	*c = *fresh
	c.log.add(Event{Kind: Cleared})
	return true
}

// snapshot is the index as stored events, parents before children, chains without forks in one event each.
func (c *cache) snapshot() []Event {
	children := make(map[int32][]int32)
	var starts []int32
	for i := range c.blocks {
		switch b := &c.blocks[i]; {
		case b.indexed && b.chained:
			parent := c.index[b.before]
			children[parent] = append(children[parent], int32(i))
		case b.indexed:
			starts = append(starts, int32(i))
		}
	}
	var events []Event
	for len(starts) > 0 {
		i := starts[len(starts)-1]
		starts = starts[:len(starts)-1]
		e := Event{Kind: Stored, BlockSize: c.size, Group: c.fullGroup()}
		e.Parent, e.HasParent = c.blocks[i].before, c.blocks[i].chained
		known := true
		for {
			e.Hashes = append(e.Hashes, c.blocks[i].hash)
			if known = known && c.blocks[i].known; known {
				e.TokenIDs = append(e.TokenIDs, c.ids[int(i)*c.size:int(i+1)*c.size]...)
			}
			next := children[i]
			if len(next) != 1 {
				starts = append(starts, next...)
				break
			}
			i = next[0]
		}
		if !known {
			e.TokenIDs = nil
		}
		events = append(events, e)
	}
	return events
}

// retain adds a reference.
func (c *cache) retain(i int32) {
	b := &c.blocks[i]
	if b.refs == 0 {
		c.inactive--
		if b.leaf != none {
			c.leaves.remove(i)
		}
	}
	b.refs++
}

// evict frees the leaf that was unused for longest.
func (c *cache) evict() {
	i := c.leaves.pop()
	b := &c.blocks[i]
	switch first := c.index[b.hash]; {
	case first != i:
		for c.blocks[first].twin != i {
			first = c.blocks[first].twin
		}
		c.blocks[first].twin = b.twin
	case b.twin != none:
		c.index[b.hash] = b.twin
	default:
		delete(c.index, b.hash)
	}
	if other, ok := c.index[b.hash]; b.windowed && ok && !c.blocks[other].windowed {
		c.blocks[other].windowed = true // the window's own block is used, and stays, as long as any
	} else if b.windowed {
		c.log.removed(b.hash, 0)
	}
	c.log.removed(b.hash, c.fullGroup())
	c.inactive--
	if p := b.parent; p != none {
		c.blocks[p].children--
		if c.blocks[p].children == 0 && c.blocks[p].refs == 0 {
			c.leaves.push(p)
		}
	}
	*b = block{parent: none, leaf: none, twin: none}
	c.free = append(c.free, i)
}
