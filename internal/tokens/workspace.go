package tokens

import (
	"slices"
)

// workspace is the memory for merging one long piece, kept between calls.
type workspace struct {
	ids   []uint32 // the unmerged ids of the piece
	links []link
	heap  []uint64 // rank<<32 | place, least first
}

// link is one token of the piece, at its position among the unmerged ids.
type link struct {
	id, rank   uint32 // rank is of the pair this link begins
	prev, next int32  // -1 before the first, the piece's length after the last
}

// maxKept bounds the piece, in unmerged ids, whose workspace is kept: about 1.8 MB.
const maxKept = 64 << 10

// reset makes room for a piece of n tokens.
func (w *workspace) reset(n int) {
	if cap(w.links) > maxKept && n <= maxKept {
		*w = workspace{ids: slices.Clone(w.ids)}
	}
	w.links = slices.Grow(w.links[:0], n)[:n]
	w.heap = slices.Grow(w.heap[:0], n)
}

// rerank looks up the pair that begins at place at, and adds it to the heap's array where a merge joins it. The
// heap's order is not restored.
func (w *workspace) rerank(m *merges, at int32) bool {
	l := &w.links[at]
	l.rank = m.rank(l.id, w.links[l.next].id)
	if l.rank == noRank {
		return false
	}
	w.heap = append(w.heap, uint64(l.rank)<<32|uint64(at))
	return true
}

// push is rerank, keeping the heap's order.
func (w *workspace) push(m *merges, at int32) {
	if !w.rerank(m, at) {
		return
	}
	h := w.heap
	i := len(h) - 1
	for i > 0 {
		up := (i - 1) / 2
		if h[up] <= h[i] {
			break
		}
		h[up], h[i] = h[i], h[up]
		i = up
	}
}

// pop takes the pair with the lowest rank, the leftmost of equals.
func (w *workspace) pop() (rank uint32, at int32) {
	top := w.heap[0]
	last := len(w.heap) - 1
	w.heap[0] = w.heap[last]
	w.heap = w.heap[:last]
	w.sink(0)
	return uint32(top >> 32), int32(uint32(top))
}

// heapify orders an array filled by rerank.
func (w *workspace) heapify() {
	for i := len(w.heap)/2 - 1; i >= 0; i-- {
		w.sink(i)
	}
}

func (w *workspace) sink(i int) {
	h := w.heap
	for {
		down := 2*i + 1
		if down >= len(h) {
			return
		}
		if down+1 < len(h) && h[down+1] < h[down] {
			down++
		}
		if h[i] <= h[down] {
			return
		}
		h[i], h[down] = h[down], h[i]
		i = down
	}
}
