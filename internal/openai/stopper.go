package openai

import "strings"

// Stopper cuts an answer before the first stop string and holds back whatever may still become one, so that no part of a
// stop string is ever shown. Engines do it; the gateway does it for an answer that another engine goes on with.
type Stopper struct {
	// Stops are the stop strings, none of them empty. Include shows the one that ends the answer.
	Stops   []string
	Include bool

	held string // not shown yet
}

// Push adds text and returns what can be shown of the answer now. When a stop string is complete, stop is that string and
// everything after it is gone.
func (s *Stopper) Push(text string) (shown, stop string) {
	if len(s.Stops) == 0 {
		return text, ""
	}
	s.held += text
	at := -1
	for _, candidate := range s.Stops {
		if i := strings.Index(s.held, candidate); i >= 0 && (at < 0 || i < at) {
			at, stop = i, candidate
		}
	}
	if at >= 0 {
		if s.Include {
			at += len(stop)
		}
		shown, s.held = s.held[:at], ""
		return shown, stop
	}
	keep := 0
	for _, candidate := range s.Stops {
		keep = max(keep, stopBegins(s.held, candidate))
	}
	shown, s.held = s.held[:len(s.held)-keep], s.held[len(s.held)-keep:]
	return shown, ""
}

// Pass adds text in which no stop string counts (min_tokens).
func (s *Stopper) Pass(text string) string {
	shown := s.held + text
	s.held = ""
	return shown
}

// Rest returns the held-back text of an answer that ended without a stop string.
func (s *Stopper) Rest() string { return s.Pass("") }

// stopBegins is the length of the longest end of text that begins stop without
// being all of it.
func stopBegins(text, stop string) int {
	for n := min(len(text), len(stop)-1); n > 0; n-- {
		if strings.HasSuffix(text, stop[:n]) {
			return n
		}
	}
	return 0
}
