package placement

import "time"

// Slicing turns prompt slices off for a minute if engines lose too much of them before the next slice: their prefix
// cache is off or too small. The zero value has them on. Its owner guards it.
type Slicing struct {
	computed, lost float64 // tokens, of late
	off            time.Time
}

const (
	// maxLost is the share of the tokens computed in slices that may be computed again.
	maxLost = .03
	// leastSliced is how many tokens make that share significant.
	leastSliced = 1 << 16
	// slicingPause is how long slices stay off.
	slicingPause = time.Minute
)

// On reports whether prompts may be sliced.
func (s *Slicing) On(now time.Time) bool {
	return !now.Before(s.off)
}

// Note records a slice of so many tokens, and how many of them the next slice found missing from the cache.
func (s *Slicing) Note(tokens, lost int, now time.Time) {
	s.computed += float64(tokens)
	s.lost += float64(lost)
	if s.computed < leastSliced {
		return
	}
	if s.lost > maxLost*s.computed {
		s.off = now.Add(slicingPause)
		s.computed, s.lost = 0, 0
	} else if s.computed > 16*leastSliced {
		s.computed, s.lost = s.computed/2, s.lost/2
	}
}
