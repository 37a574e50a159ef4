package load

import (
	"sort"

	"github.com/tandem-pd/tandem/kv/index"
)

// tree is the chains of blocks that open bookings hold, merged where they begin alike. So a prefix that many requests
// of one worker share counts once for it, as in the worker's cache (router-semantics: "refcounted compressed path
// store"; traces.md §4 shows what becomes of a router that counts it for each).
//
// Blocks are named by sequence hashes, each of which covers all blocks before its own: two chains that agree at a
// place agree everywhere before it. So where they part is found by bisection, and one map finds the node that goes on
// from any place. Entering, leaving and looking up cost a few steps for each fork on the way, whatever the chain's
// length.
type tree struct {
	from  map[uint64]*node // by the hash of a node's first block
	spare []*node          // to be used again, so that booking at a steady pace allocates nothing
}

// node is a run of blocks without a fork: chain[start:end].
type node struct {
	parent     *node
	children   []*node
	place      int      // among the parent's children
	chain      []uint64 // of a request that came this way; never written to
	start, end int
	unit       index.Unit
	ends       int // bookings whose chain ends with this node
	refs       []ref
}

// ref is how many of a page's bookings hold a node.
type ref struct {
	page *Page
	n    int
}

// enter holds chain, which is not empty, for a page. It returns the node in which the chain ends and how many of its
// blocks the page did not hold before. The chain must not be written to again.
func (t *tree) enter(chain []uint64, unit index.Unit, p *Page) (last *node, fresh int) {
	if t.from == nil {
		t.from = map[uint64]*node{}
	}
	for at := 0; at < len(chain); at = last.end {
		n := t.from[chain[at]]
		if n == nil {
			n = t.node(chain, unit, at, len(chain))
			t.from[chain[at]] = n
			last.adopt(n)
		} else if upTo := n.agrees(chain); upTo < n.end {
			n = t.split(n, upTo)
		}
		if n.hold(p) {
			fresh += n.blocks()
		}
		last = n
	}
	last.ends++
	return last, fresh
}

// leave ends what enter began, and returns how many blocks the page no longer holds.
func (t *tree) leave(last *node, p *Page) (freed int) {
	last.ends--
	var lowest *node // that stays
	first := len(t.spare)
	for n := last; n != nil; n = n.parent {
		if n.release(p) {
			freed += n.blocks()
		}
		switch {
		case len(n.refs) == 0:
			delete(t.from, n.chain[n.start])
			n.parent.disown(n)
			t.spare = append(t.spare, n)
		case lowest == nil:
			lowest = n
		}
	}
	if lowest != nil && lowest.ends == 0 && len(lowest.children) == 1 {
		t.join(lowest)
	}
	for _, n := range t.spare[first:] {
		n.parent, n.chain = nil, nil
	}
	return freed
}

// blocks is how many the node has.
func (n *node) blocks() int { return n.unit.Blocks(n.end) - n.unit.Blocks(n.start) }

// alone is how many blocks at the end of a chain that ends with n one booking of
// the page alone holds: no booking holds a block of it without those before.
func (n *node) alone(p *Page) (blocks int) {
	for ; n != nil && n.count(p) == 1; n = n.parent {
		blocks += n.blocks()
	}
	return blocks
}

// count is how many of the page's bookings hold n.
func (n *node) count(p *Page) int {
	for i := range n.refs {
		if n.refs[i].page == p {
			return n.refs[i].n
		}
	}
	return 0
}

// node returns one without holders.
func (t *tree) node(chain []uint64, unit index.Unit, start, end int) *node {
	last := len(t.spare) - 1
	if last < 0 {
		return &node{chain: chain, unit: unit, start: start, end: end}
	}
	n := t.spare[last]
	t.spare = t.spare[:last]
	*n = node{chain: chain, unit: unit, start: start, end: end, children: n.children[:0], refs: n.refs[:0]}
	return n
}

// look calls mark with how many leading blocks of chain it holds.
func (t *tree) look(chain []uint64, mark func(p *Page, blocks int)) {
	for at := 0; at < len(chain); {
		n := t.from[chain[at]]
		if n == nil {
			return
		}
		upTo := n.agrees(chain)
		for _, r := range n.refs {
			mark(r.page, n.unit.Blocks(upTo))
		}
		if at = upTo; upTo < n.end {
			return
		}
	}
}

// agrees is the place up to which the node and a chain that has its first block are the same.
func (n *node) agrees(chain []uint64) int {
	end := min(n.end, len(chain))
	if n.chain[end-1] == chain[end-1] {
		return end // by far the most common: the whole node
	}
	return n.start + sort.Search(end-n.start, func(i int) bool { return n.chain[n.start+i] != chain[n.start+i] })
}

// split cuts a node in two and returns the upper part. Bookings that end with
// the node keep pointing to the lower one.
func (t *tree) split(n *node, at int) *node {
	upper := t.node(n.chain, n.unit, n.start, at)
	upper.refs = append(upper.refs, n.refs...)
	n.parent.disown(n)
	n.parent.adopt(upper)
	upper.adopt(n)
	n.start = at
	t.from[upper.chain[upper.start]] = upper
	t.from[n.chain[n.start]] = n
	return upper
}

// join is split undone, for a node with which no booking ends and which has one
// child: the holders of the one hold the other.
func (t *tree) join(upper *node) {
	n := upper.children[0]
	delete(t.from, n.chain[n.start])
	upper.parent.disown(upper)
	upper.parent.adopt(n)
	n.start = upper.start
	t.from[n.chain[n.start]] = n
	clear(upper.refs)
	upper.parent, upper.chain, upper.refs = nil, nil, upper.refs[:0]
	clear(upper.children)
	upper.children = upper.children[:0]
	t.spare = append(t.spare, upper)
}

// adopt makes c a child of n, which may be nil: c is then a beginning.
func (n *node) adopt(c *node) {
	c.parent = n
	if n != nil {
		c.place = len(n.children)
		n.children = append(n.children, c)
	}
}

// disown is adopt undone.
func (n *node) disown(c *node) {
	if n == nil {
		return
	}
	last := len(n.children) - 1
	n.children[c.place] = n.children[last]
	n.children[c.place].place = c.place
	n.children[last] = nil
	n.children = n.children[:last]
}

// hold adds a booking of the page and reports whether it is its first.
func (n *node) hold(p *Page) bool {
	for i := range n.refs {
		if n.refs[i].page == p {
			n.refs[i].n++
			return false
		}
	}
	n.refs = append(n.refs, ref{p, 1})
	return true
}

// release removes a booking of the page and reports whether it was its last.
func (n *node) release(p *Page) bool {
	for i := range n.refs {
		if n.refs[i].page != p {
			continue
		}
		if n.refs[i].n--; n.refs[i].n > 0 {
			return false
		}
		last := len(n.refs) - 1
		n.refs[i] = n.refs[last]
		n.refs[last] = ref{}
		n.refs = n.refs[:last]
		return true
	}
	return false
}
