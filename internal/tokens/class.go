package tokens

import (
	"unicode"
	"unicode/utf8"
)

// class is the set of bracket expressions of the known split patterns that match a character. A character without a bit
// of word is a symbol, which [^\s\p{L}\p{N}] matches.
type class uint8

const (
	upper   class = 1 << iota // [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]
	lower                     // [\p{Ll}\p{Lm}\p{Lo}\p{M}]
	letter                    // \p{L}
	number                    // \p{N}
	space                     // \s, which is Unicode's White_Space
	newline                   // [\r\n], in addition to space
	point                     // [\p{P}\p{S}]: punctuation and symbols
	eastern                   // [一-龥぀-ゟ゠-ヿ], in addition to its other bits

	cased = upper | lower // [\p{L}\p{M}]: a letter or a mark
	word  = letter | number | space
)

// plane0 holds the classes of the characters below U+10000. It is filled once, by the first Load, and only read
// afterwards.
var plane0 [1 << 16]class

// makePlane0 fills it.
func makePlane0() {
	mark := func(t *unicode.RangeTable, k class) {
		for _, r := range t.R16 {
			for c := uint32(r.Lo); c <= uint32(r.Hi); c += uint32(r.Stride) {
				plane0[c] |= k
			}
		}
	}
	mark(unicode.Lu, upper|letter)
	mark(unicode.Lt, upper|letter)
	mark(unicode.Ll, lower|letter)
	mark(unicode.Lm, upper|lower|letter)
	mark(unicode.Lo, upper|lower|letter)
	mark(unicode.M, upper|lower)
	mark(unicode.N, number)
	mark(unicode.White_Space, space)
	mark(unicode.P, point)
	mark(unicode.S, point)
	for _, r := range [][2]rune{{'一', '龥'}, {'぀', 'ヿ'}} {
		for c := r[0]; c <= r[1]; c++ {
			plane0[c] |= eastern
		}
	}
	plane0['\r'] |= newline
	plane0['\n'] |= newline
}

// classAt returns the class of the character of s that begins at byte i, and its width in bytes. A byte that is not
// UTF-8 is a symbol one byte wide.
func classAt(s string, i int) (class, int) {
	if c := s[i]; c < utf8.RuneSelf {
		return plane0[c], 1
	}
	r, w := utf8.DecodeRuneInString(s[i:])
	if r < 1<<16 {
		return plane0[r], w // an invalid byte reads as U+FFFD, a symbol too
	}
	return classOfHigh(r), w
}

// classOfHigh is classAt's way for characters from U+10000 up.
func classOfHigh(r rune) class {
	switch {
	case unicode.In(r, unicode.Lu, unicode.Lt):
		return upper | letter
	case unicode.Is(unicode.Ll, r):
		return lower | letter
	case unicode.Is(unicode.L, r):
		return upper | lower | letter
	case unicode.Is(unicode.M, r):
		return upper | lower
	case unicode.Is(unicode.N, r):
		return number
	case unicode.Is(unicode.White_Space, r):
		return space
	case unicode.In(r, unicode.P, unicode.S):
		return point
	}
	return 0
}

// skip returns the end of the run of characters at i that have a class of set.
func skip(s string, i int, set class) int {
	for i < len(s) {
		c := s[i]
		if c < utf8.RuneSelf {
			if plane0[c]&set == 0 {
				return i
			}
			i++
			continue
		}
		k, w := classAt(s, i)
		if k&set == 0 {
			return i
		}
		i += w
	}
	return i
}

// skipSymbols returns the end of the run of characters at i that have no class of set, such as [^\s\p{L}\p{N}] for
// word.
func skipSymbols(s string, i int, set class) int {
	for i < len(s) {
		k, w := classAt(s, i)
		if k&set != 0 {
			return i
		}
		i += w
	}
	return i
}
