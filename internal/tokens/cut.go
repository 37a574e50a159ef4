package tokens

import "unicode/utf8"

// cut returns the length of the first part of s, at least size bytes long, that may be encoded apart from the rest:
// up to the first safe cut from size on, or all of s where there is none. Where it falls depends on nothing but the
// part and one character after it.
func (t *Tokenizer) cut(s string, size int) int {
	safe := safeCut
	if t.sentence != nil {
		safe = t.sentence.safeCut
	}
	for i := size; i < len(s); i++ {
		if safe(s, i) {
			return i
		}
	}
	return len(s)
}

// safeCut reports whether s[:i] and s[i:], encoded apart by a byte-level family, give the tokens of s. It says yes
//   - after a letter, before what is no letter, mark or apostrophe;
//   - after a number, before what is no number or mark.
//
// In every known pattern a piece with a letter in it ends with the run of letters (and marks), but for the
// contraction that o200k takes along; a piece with a number in it ends with the run of numbers at the latest. So a
// piece ends here; nothing before was decided by looking further, because the only look-ahead is for white space; and
// the next begins as at the start of a text. Normalisation must not reach across either, so that characters beyond
// ASCII have to be inert on both sides.
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
