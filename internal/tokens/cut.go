package tokens

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// seams are the places at which an input can be split without looking at the rest: a Cache uses them.
type seams struct {
	marks          *addedMatcher  // tokens at which a text is cut: found anywhere, and without stripping around them
	inside         [256][4]uint64 // pairs of bytes that are neighbours in some added token, a bit for the second
	last           [256]bool      // bytes with which one ends
	lstrip, rstrip bool           // one takes along white space before, after it
	alone          bool           // one looks at its neighbours
}

// load reads them off the added tokens. One that is matched in normal form counts with both.
func (s *seams) load(f *file) {
	s.marks = newAddedMatcher()
	for i := range f.AddedTokens {
		a := &f.AddedTokens[i]
		s.lstrip, s.rstrip, s.alone = s.lstrip || a.LStrip, s.rstrip || a.RStrip, s.alone || a.SingleWord
		if a.Special && !a.Normalized && !a.LStrip && !a.RStrip && !a.SingleWord && plane0[a.Content[0]]&space == 0 {
			s.marks.add(a.Content, addedToken{id: a.ID, special: true})
		}
		s.enter(a.Content)
		if a.Normalized {
			s.enter(nfc(a.Content))
			s.enter(" " + strings.ReplaceAll(a.Content, spaceMark, " "))
			s.enter(spaceMark + strings.ReplaceAll(a.Content, " ", spaceMark))
		}
	}
}

func (s *seams) enter(content string) {
	for i := 1; i < len(content); i++ {
		b := content[i]
		s.inside[content[i-1]][b>>6] |= 1 << (b & 63)
	}
	s.last[content[len(content)-1]] = true
}

// through reports whether an added token may reach from text[:i] into text[i:].
func (s *seams) through(text string, i int) bool {
	b := text[i]
	return s.inside[text[i-1]][b>>6]>>(b&63)&1 != 0
}

// seam finds the next special token at or after from that matches regardless of its neighbours. start is the text's
// length without one.
func (t *Tokenizer) seam(text string, from int) (start, stop int, id uint32) {
	for at := from; ; {
		m := t.seams.marks.find(text, at, at, true)
		if !m.ok {
			return len(text), len(text), 0
		}
		token, end := t.added.longest(text, m.start)
		if end == m.stop && t.added.tokens[token].id == m.id && (m.start == from || !t.seams.through(text, m.start)) {
			return m.start, m.stop, m.id
		}
		at = m.start + 1
	}
}

// cut returns the length of the first part of s, at least size bytes long, that may be encoded apart from the rest: up
// to the first safe cut from size on, or all of s. It depends only on the part and one character after it.
func (t *Tokenizer) cut(s string, size int) int {
	if t.seams.alone {
		return len(s)
	}
	for i := size; i < len(s); i++ {
		if t.cuttable(s, i) {
			return i
		}
	}
	return len(s)
}

// cuttable reports whether s[:i] and s[i:] may be encoded apart, with all that is in them.
func (t *Tokenizer) cuttable(s string, i int) bool {
	if t.seams.through(s, i) {
		return false
	}
	if t.sentence == nil {
		// A safe cut has no white space before it.
		return (!t.seams.rstrip || !beginsBlank(s[i:])) && safeCut(s, i)
	}
	if t.sentence.lead != leadNone && t.seams.last[s[i-1]] {
		return false // an added token may end here, which puts a ▁ before the rest
	}
	if (t.seams.lstrip || t.seams.rstrip) && (beginsBlank(s[i:]) || endsBlank(s[:i])) {
		return false
	}
	return t.sentence.safeCut(s, i)
}

func beginsBlank(s string) bool {
	r, _ := utf8.DecodeRuneInString(s)
	return unicode.IsSpace(r)
}

func endsBlank(s string) bool {
	r, _ := utf8.DecodeLastRuneInString(s)
	return unicode.IsSpace(r)
}

// safeCut reports whether s[:i] and s[i:], encoded apart by a byte-level family, give the tokens of s. It is true
//   - after a letter, before anything but a letter, mark or apostrophe;
//   - after a number, before anything but a number or mark.
//
// In every known pattern a piece with a letter ends with the run of letters (and marks), except for o200k's
// contraction; a piece with a number ends with the run of numbers at the latest. So a piece ends here; no earlier match
// looked further, because only white space has look-ahead; and the next begins as at the start of a text. Normalisation
// must not cross the cut either, so characters beyond ASCII have to be inert on both sides.
func safeCut(s string, i int) bool {
	next, before := s[i], class(0)
	if c := s[i-1]; c < utf8.RuneSelf {
		if before = plane0[c] & (letter | number); before == 0 {
			return false
		}
	}
	if !utf8.RuneStart(next) {
		return false
	}
	after, width := classAt(s, i)
	if next >= utf8.RuneSelf {
		if r, _ := utf8.DecodeRuneInString(s[i:]); width == 1 || !inert(r) {
			return false
		}
	}
	if before == 0 {
		r, w := utf8.DecodeLastRuneInString(s[:i])
		if before, _ = classAt(s, i-w); before&(letter|number) == 0 || !inert(r) {
			return false
		}
	}
	if before&letter != 0 {
		return after&(letter|cased) == 0 && next != '\''
	}
	return after&(number|cased) == 0 || after&letter != 0
}
