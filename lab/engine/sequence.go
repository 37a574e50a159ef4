package engine

import (
	"slices"
	"time"
)

// phase is the state of a live sequence.
type phase uint8

const (
	waiting   phase = iota // for its first or next turn
	expecting              // for a decode engine to ask for it (Hold.GuestFirst)
	fetching               // holds blocks, its prompt's KV is on the way
	running
	staged // finished; its last output waits for its blocks' release (Hold.HandFirst)
	ended
)

// sequence is one prompt and its answer so far.
type sequence struct {
	Request
	phase phase

	out      []uint32 // the answer so far
	state    State    // of prompt and answer
	hashes   []uint64 // of the leading full blocks, as far as known
	blocks   []int32  // the block table
	computed int      // leading tokens whose KV is in the blocks
	indexed  int      // leading blocks that are in the cache's index
	shared   int      // leading blocks that were cached but for their sliding window
	cached   int      // prompt tokens that were not computed here; -1 before the first turn
	handed   bool     // cached is from the producer of its blocks

	needs int       // while waiting: blocks that must be available before another look
	ready time.Time // while fetching: the transfer's end; zero while the producer was not heard

	loading  int       // while fetching from a store: the tokens that are there then
	meeting  *meeting  // prefill's half of which it is, nil for none
	gone     bool      // it has ended, and its blocks linger
	asked    bool      // the producer of its blocks has the request
	deadline time.Time // while expecting or fetching: when it gives up; zero for never

	prev, next *sequence // neighbours in the waiting line
}

func newSequence(r Request) *sequence {
	return &sequence{Request: r, state: r.state, hashes: slices.Clip(r.Hashes), cached: -1}
}

// tokens is the length of prompt and answer.
func (s *sequence) tokens() int { return s.length() + len(s.out) }

// last is the newest token, 0 where the prompt's are not known.
func (s *sequence) last() uint32 {
	switch {
	case len(s.out) > 0:
		return s.out[len(s.out)-1]
	case len(s.Prompt) > 0:
		return s.Prompt[len(s.Prompt)-1]
	}
	return 0
}

// hash returns the chained hash of full block i, whose known tokens are ids; the hashes of all blocks before it are
// known.
func (s *sequence) hash(i int, ids []uint32, cfg *Config) uint64 {
	if i < len(s.hashes) {
		return s.hashes[i]
	}
	parent := s.seed(cfg)
	if i > 0 {
		parent = s.hashes[i-1]
	}
	if s.Prompt == nil {
		// The tokens after the prompt's last full block are unknown; the prompt's state replaces them.
		parent ^= uint64(s.Request.state)
	}
	h := blockHash(parent, ids)
	s.hashes = append(s.hashes, h)
	return h
}

// extend adds full block i to a stored event that ends with the block before it. Hashes and, within the prompt, tokens
// are the sequence's own, which are never written to again.
func (s *sequence) extend(e *Event, i int, ids []uint32) {
	first := i - len(e.Hashes)
	e.Hashes = s.hashes[first : i+1 : i+1]
	to := (i + 1) * e.BlockSize
	switch {
	case len(ids) == 0:
	case to <= len(s.Prompt):
		e.TokenIDs = s.Prompt[first*e.BlockSize : to : to]
	default:
		e.TokenIDs = append(e.TokenIDs, ids...)
	}
}

// ids is the tokens of full block i, shared with the prompt where it lies
// within it; without a prompt, only those of the answer.
func (s *sequence) ids(i, blockSize int) []uint32 {
	from, to, n := i*blockSize, (i+1)*blockSize, s.length()
	if to <= n {
		if s.Prompt == nil {
			return nil
		}
		return s.Prompt[from:to:to]
	}
	ids := make([]uint32, 0, blockSize)
	if s.Prompt != nil && from < n {
		ids = append(ids, s.Prompt[from:]...)
	}
	return append(ids, s.out[max(0, from-n):to-n]...)
}

// line is the waiting sequences in order of arrival.
type line struct {
	first, last *sequence
	n           int
}

func (l *line) pushBack(s *sequence) {
	s.prev, s.next = l.last, nil
	if l.last == nil {
		l.first = s
	} else {
		l.last.next = s
	}
	l.last = s
	l.n++
}

func (l *line) pushFront(s *sequence) {
	s.prev, s.next = nil, l.first
	if l.first == nil {
		l.last = s
	} else {
		l.first.prev = s
	}
	l.first = s
	l.n++
}

func (l *line) remove(s *sequence) {
	if s.prev == nil {
		l.first = s.next
	} else {
		s.prev.next = s.next
	}
	if s.next == nil {
		l.last = s.prev
	} else {
		s.next.prev = s.prev
	}
	s.prev, s.next = nil, nil
	l.n--
}
