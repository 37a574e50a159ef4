package tokens

import "sync/atomic"

// pieceCache caches the merges of pieces of at most maxKey bytes that are not one token. It always has 1 MB: a new
// piece replaces the one in its slot. Each slot is one cache line, guarded by its own sequence number, so that readers
// neither lock nor wait; a reader that meets a writer merges the piece itself. It halves the time of prose with a
// vocabulary of 4,096.
type pieceCache [1 << 14]pieceSlot

// pieceSlot's words are: the sequence, odd while it is written, over the piece's length and the count of its tokens;
// the piece; its tokens, two a word.
type pieceSlot [8]atomic.Uint64

// maxPieceTokens is how many tokens a slot holds.
const maxPieceTokens = 10

func (c *pieceCache) slot(hash uint64) *pieceSlot { return &c[hash>>(64-14)] }

// append appends the tokens of the piece, if it is there.
func (s *pieceSlot) append(dst []uint32, k pieceKey) ([]uint32, bool) {
	head := s[0].Load()
	if head>>16&1 != 0 || uint8(head>>8) != k.n || s[1].Load() != k.lo || s[2].Load() != k.hi {
		return dst, false
	}
	kept := len(dst)
	for left, w := int(uint8(head)), 3; left > 0; left, w = left-2, w+1 {
		two := s[w].Load()
		dst = append(dst, uint32(two))
		if left > 1 {
			dst = append(dst, uint32(two>>32))
		}
	}
	if s[0].Load() != head {
		return dst[:kept], false
	}
	return dst, true
}

// put stores the tokens of the piece, unless another writer has the slot or there are too many.
func (s *pieceSlot) put(k pieceKey, ids []uint32) {
	head := s[0].Load()
	if len(ids) > maxPieceTokens || head>>16&1 != 0 || !s[0].CompareAndSwap(head, head+1<<16) {
		return
	}
	s[1].Store(k.lo)
	s[2].Store(k.hi)
	for i := 0; i < len(ids); i += 2 {
		two := uint64(ids[i])
		if i+1 < len(ids) {
			two |= uint64(ids[i+1]) << 32
		}
		s[3+i/2].Store(two)
	}
	seq := head>>16 + 2
	s[0].Store(seq<<16 | uint64(k.n)<<8 | uint64(len(ids)))
}
