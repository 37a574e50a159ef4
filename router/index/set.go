package index

import "math/bits"

// hashSet is a set of hashes in one array without pointers: open addressing,
// linear probing, and deletion that closes the gap, so that a set which churns
// for a year looks like one made today. Zero marks an empty place, so the hash
// zero is kept beside the array. The zero value is an empty set.
type hashSet struct {
	keys []uint64
	n    int  // hashes in keys
	zero bool // the set holds the hash zero
}

func (s *hashSet) len() int {
	if s.zero {
		return s.n + 1
	}
	return s.n
}

func (s *hashSet) bytes() int { return cap(s.keys) * 8 }

// add puts h into the set and reports whether it was new.
func (s *hashSet) add(h uint64) bool {
	if h == 0 {
		was := s.zero
		s.zero = true
		return !was
	}
	if (s.n+1)*5 > len(s.keys)*4 {
		s.resize(s.n*3/2 + 16)
	}
	i := place(h, len(s.keys))
	for s.keys[i] != 0 {
		if s.keys[i] == h {
			return false
		}
		i = after(i, len(s.keys))
	}
	s.keys[i] = h
	s.n++
	return true
}

// remove takes h out of the set and reports whether it was there.
func (s *hashSet) remove(h uint64) bool {
	if h == 0 {
		was := s.zero
		s.zero = false
		return was
	}
	if s.n == 0 {
		return false
	}
	i := place(h, len(s.keys))
	for s.keys[i] != h {
		if s.keys[i] == 0 {
			return false
		}
		i = after(i, len(s.keys))
	}
	s.close(i)
	s.n--
	if len(s.keys) > 64 && s.n*4 < len(s.keys) {
		s.resize(s.n*3/2 + 16)
	}
	return true
}

// each calls f with every hash of the set, which f must not change.
func (s *hashSet) each(f func(h uint64)) {
	if s.zero {
		f(0)
	}
	for _, h := range s.keys {
		if h != 0 {
			f(h)
		}
	}
}

// close empties place i and moves up those behind it that would no longer be
// found.
func (s *hashSet) close(i int) {
	n := len(s.keys)
	for j := after(i, n); s.keys[j] != 0; j = after(j, n) {
		// The hash at j may move to i unless its own place lies in (i, j].
		if home := place(s.keys[j], n); (j-home+n)%n >= (j-i+n)%n {
			s.keys[i] = s.keys[j]
			i = j
		}
	}
	s.keys[i] = 0
}

// resize moves the set into an array of n places.
func (s *hashSet) resize(n int) {
	old := s.keys
	s.keys = make([]uint64, n)
	for _, h := range old {
		if h == 0 {
			continue
		}
		i := place(h, n)
		for s.keys[i] != 0 {
			i = after(i, n)
		}
		s.keys[i] = h
	}
}

// place maps a hash to one of n places, in the order of the hashes, for any n.
func place(h uint64, n int) int {
	hi, _ := bits.Mul64(h, uint64(n))
	return int(hi)
}

// after is the place behind i, round the end.
func after(i, n int) int {
	if i++; i == n {
		return 0
	}
	return i
}
