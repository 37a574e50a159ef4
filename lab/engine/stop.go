package engine

import "strings"

// stopper cuts an answer before the first stop string and holds back whatever
// may still become one, so that no part of a stop string is ever shown.
type stopper struct {
	stops   []string
	include bool   // the stop string is shown
	held    string // not shown yet
}

// push adds text and returns what can be shown of the answer now. When a stop
// string is complete, stop is that string and everything after it is gone.
func (s *stopper) push(text string) (shown, stop string) {
	if len(s.stops) == 0 {
		return text, ""
	}
	s.held += text
	at := -1
	for _, candidate := range s.stops {
		if i := strings.Index(s.held, candidate); i >= 0 && (at < 0 || i < at) {
			at, stop = i, candidate
		}
	}
	if at >= 0 {
		if s.include {
			at += len(stop)
		}
		shown, s.held = s.held[:at], ""
		return shown, stop
	}
	keep := 0
	for _, candidate := range s.stops {
		keep = max(keep, overlap(s.held, candidate))
	}
	shown, s.held = s.held[:len(s.held)-keep], s.held[len(s.held)-keep:]
	return shown, ""
}

// pass adds text in which no stop string counts (min_tokens).
func (s *stopper) pass(text string) string {
	shown := s.held + text
	s.held = ""
	return shown
}

// rest returns the held-back text of an answer that ended without a stop string.
func (s *stopper) rest() string { return s.pass("") }

// overlap is the length of the longest end of text that begins stop without
// being all of it.
func overlap(text, stop string) int {
	for n := min(len(text), len(stop)-1); n > 0; n-- {
		if strings.HasSuffix(text, stop[:n]) {
			return n
		}
	}
	return 0
}
