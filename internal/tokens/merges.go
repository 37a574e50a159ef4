package tokens

import "math/bits"

// noRank marks a pair that no merge joins. It is above every rank.
const noRank = ^uint32(0)

// maxShort is the greatest length, in bytes, of a piece that is merged by looking for the best pair in a plain array,
// step by step. That is quadratic, and faster than a heap up to about here.
const maxShort = 48

// merges maps two tokens to their merged one and its rank: the pair with the lowest rank is merged first, and of equal
// pairs the leftmost. It is a flat table with open addressing, at most half full.
type merges struct {
	pairs  []mergedPair
	shift  uint8
	joined []uint32    // token id by rank
	single [256]uint32 // token id by byte
	chars  *chars      // token id by character, for SentencePiece's family; nil: text is merged from bytes
}

type mergedPair struct{ left, right, rank uint32 }

// newMerges returns an empty table with room for n merges.
func newMerges(n int) *merges {
	size := bits.Len(uint(2*n + 1))
	m := &merges{pairs: make([]mergedPair, 1<<size), shift: uint8(64 - size), joined: make([]uint32, 0, n)}
	for i := range m.pairs {
		m.pairs[i].rank = noRank
	}
	return m
}

// add appends a merge, ranked after all before it. A repeated pair keeps its later rank.
func (m *merges) add(left, right, id uint32) {
	p := &m.pairs[m.find(left, right)]
	*p = mergedPair{left, right, uint32(len(m.joined))}
	m.joined = append(m.joined, id)
}

// rank returns the rank of a pair of tokens, or noRank.
func (m *merges) rank(left, right uint32) uint32 {
	return m.pairs[m.find(left, right)].rank
}

// find returns the slot of the pair, or the empty slot where it belongs.
func (m *merges) find(left, right uint32) uint64 {
	mask := uint64(len(m.pairs) - 1)
	at := (uint64(left)<<32 | uint64(right)) * 0x9e3779b97f4a7c15 >> m.shift
	for {
		p := &m.pairs[at&mask]
		if p.left == left && p.right == right || p.rank == noRank {
			return at & mask
		}
		at++
	}
}

// begin appends the tokens that a piece is merged from, at most one a byte.
func (m *merges) begin(dst []uint32, piece string) []uint32 {
	if m.chars != nil {
		return m.chars.append(dst, &m.single, piece)
	}
	for i := range len(piece) {
		dst = append(dst, m.single[piece[i]])
	}
	return dst
}

func (m *merges) append(dst []uint32, piece string) []uint32 {
	if len(piece) > maxShort {
		return m.appendLong(dst, piece)
	}
	var ids, ranks [maxShort + 1]uint32 // ranks[i] is of the pair i, i+1
	n := len(m.begin(ids[:0], piece))
	for i := 1; i < n; i++ {
		ranks[i-1] = m.rank(ids[i-1], ids[i])
	}
	for n > 1 {
		best, at := noRank, 0
		for i, r := range ranks[:n-1] {
			if r < best {
				best, at = r, i
			}
		}
		if best == noRank {
			break
		}
		ids[at] = m.joined[best]
		n--
		copy(ids[at+1:n], ids[at+2:n+1])
		copy(ranks[at:n-1], ranks[at+1:n])
		if at+1 < n {
			ranks[at] = m.rank(ids[at], ids[at+1])
		}
		if at > 0 {
			ranks[at-1] = m.rank(ids[at-1], ids[at])
		}
	}
	return append(dst, ids[:n]...)
}

// appendLong is append for pieces of any length, in n log n steps: the pieces are a doubly linked list, the pairs a
// heap ordered by rank and position. The rank identifies a pair that has changed since it was pushed.
func (m *merges) appendLong(dst []uint32, piece string) []uint32 {
	w := workspaces.Get().(*workspace)
	defer workspaces.Put(w)
	w.ids = m.begin(w.ids[:0], piece)
	w.reset(len(w.ids))
	for i := range w.links {
		l := &w.links[i]
		l.id, l.rank = w.ids[i], noRank
		l.prev, l.next = int32(i-1), int32(i+1)
		if i > 0 {
			w.rerank(m, int32(i-1))
		}
	}
	w.heapify()
	for len(w.heap) > 0 {
		rank, at := w.pop()
		left := &w.links[at]
		if left.rank != rank {
			continue
		}
		gone := &w.links[left.next]
		left.id, left.next = m.joined[rank], gone.next
		gone.rank = noRank
		if int(left.next) < len(w.links) {
			w.links[left.next].prev = at
			w.push(m, at)
		} else {
			left.rank = noRank
		}
		if left.prev >= 0 {
			w.push(m, left.prev)
		}
	}
	for at := int32(0); int(at) < len(w.links); at = w.links[at].next {
		dst = append(dst, w.links[at].id)
	}
	return dst
}
