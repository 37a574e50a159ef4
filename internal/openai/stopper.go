package openai

import "strings"

// Stopper finds the stop string that ends an answer that another engine continues, as engines do: it is complete in new
// text, and may begin in text that was already sent.
type Stopper struct {
	// Stops are the stop strings, none of them empty. Include shows the one that ends the answer.
	Stops   []string
	Include bool
	// InOrder: of several in the same text the first of Stops counts (SGLang), else the one that is complete first
	// (vLLM).
	InOrder bool

	text string // the end of the answer's text, as much as matters
	held int    // bytes at its end that are held back
}

// Push adds text and returns what can be sent now: all but a possible start of a stop string to hide. When one is
// complete, stop is that string, everything after it is dropped, and dropped is how many bytes of text followed it.
func (s *Stopper) Push(text string) (shown, stop string, dropped int) {
	if len(s.Stops) == 0 {
		return text, "", 0
	}
	before := len(s.text)
	s.text += text
	at, end := 0, -1
	for _, candidate := range s.Stops {
		from := max(0, before-len(candidate)+1)
		if i := strings.Index(s.text[from:], candidate); i >= 0 && (end < 0 || !s.InOrder && from+i+len(candidate) < end) {
			at, end, stop = from+i, from+i+len(candidate), candidate
		}
	}
	begin := before - s.held
	if end >= 0 {
		dropped = len(s.text) - end
		if s.Include {
			at = end
		}
		shown = s.text[min(begin, at):at] // nothing where the client has its beginning
		s.text, s.held = "", 0
		return shown, stop, dropped
	}
	return s.show(begin), "", 0
}

// Skip is Push of text in which no stop string counts that is complete in it (min_tokens).
func (s *Stopper) Skip(text string) (shown string) {
	s.text += text
	return s.show(len(s.text) - len(text) - s.held)
}

// show returns the text from begin on except what is held back.
func (s *Stopper) show(begin int) string {
	s.held = 0
	for _, candidate := range s.Stops {
		if !s.Include {
			s.held = max(s.held, min(len(s.text)-begin, stopBegins(s.text, candidate)))
		}
	}
	shown := s.text[begin : len(s.text)-s.held]
	s.forget()
	return shown
}

// Pass adds text that is sent in any case, and returns it with all that was held back.
func (s *Stopper) Pass(text string) string {
	s.text += text
	shown := s.text[len(s.text)-len(text)-s.held:]
	s.held = 0
	s.forget()
	return shown
}

// Rest returns the held-back text of an answer that ended without a stop string.
func (s *Stopper) Rest() string { return s.Pass("") }

// forget keeps as much text as a stop string may have begun in.
func (s *Stopper) forget() {
	keep := s.held
	for _, candidate := range s.Stops {
		keep = max(keep, len(candidate)-1)
	}
	s.text = s.text[max(0, len(s.text)-keep):]
}

// stopBegins returns the length of text's longest suffix that is a proper prefix of stop.
func stopBegins(text, stop string) int {
	for n := min(len(text), len(stop)-1); n > 0; n-- {
		if strings.HasSuffix(text, stop[:n]) {
			return n
		}
	}
	return 0
}
