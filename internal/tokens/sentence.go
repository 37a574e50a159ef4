package tokens

import (
	"strings"
	"unicode/utf8"
)

// spaceMark is SentencePiece's character for a space.
const spaceMark = "▁"

// sentence is specific to SentencePiece's family: a text is merged as a whole, from its characters, with ▁ for a space.
// Here a space stands for either instead: then a text need not be copied, and words are shorter. No token has a space
// of its own that could match.
//
// A text is cut between two characters that no merge spans, which does not change its merges.
type sentence struct {
	lead  lead
	early bool // spaces become ▁ before late added tokens are looked for
	apart bool // a word begins at each ▁: no merge reaches across

	// The pairs of neighbours that a merge spans: the last character of its left part, the first of its right.
	ascii  [utf8.RuneSelf][2]uint64 // a bit for the second
	others map[[2]rune]struct{}     // pairs with one beyond ASCII
}

// join enters the neighbours of a merge.
func (s *sentence) join(left, right string) {
	a, _ := utf8.DecodeLastRuneInString(left)
	b, _ := utf8.DecodeRuneInString(right)
	switch {
	case s.apart && b == ' ':
	case a < utf8.RuneSelf && b < utf8.RuneSelf:
		s.ascii[a][b>>6] |= 1 << (b & 63)
	default:
		if s.others == nil {
			s.others = make(map[[2]rune]struct{})
		}
		s.others[[2]rune{a, b}] = struct{}{}
	}
}

// joined reports whether a merge reaches across between a and b.
func (s *sentence) joined(a, b rune) bool {
	if uint32(a) < utf8.RuneSelf && uint32(b) < utf8.RuneSelf {
		return s.ascii[a][b>>6]>>(b&63)&1 != 0
	}
	_, ok := s.others[[2]rune{a, b}]
	return ok
}

// next returns the end of the piece of text that begins at byte i < len(text).
func (s *sentence) next(text string, i int) int {
	a, w := charAt(text, i)
	for i += w; i < len(text); i += w {
		var b rune
		if b, w = charAt(text, i); !s.joined(a, b) {
			return i
		}
		a = b
	}
	return i
}

// safeCut is the function of that name, for text that may have ▁ for a space.
func (s *sentence) safeCut(text string, i int) bool {
	if !utf8.RuneStart(text[i]) {
		return false
	}
	a, w := utf8.DecodeLastRuneInString(text[:i])
	if a == utf8.RuneError && w == 1 {
		a = -1
	}
	b, _ := charAt(text, i)
	space := func(r rune) rune {
		if r == '▁' {
			return ' '
		}
		return r
	}
	return !s.joined(space(a), space(b))
}

// leads reports whether a ▁ goes before a text between added tokens.
func (s *sentence) leads(text string, at place) bool {
	switch {
	case s.lead == leadNone || at == within || s.lead == leadFirst && at != first:
		return false
	case s.lead == leadText:
		return true
	}
	return text[0] != ' ' && !strings.HasPrefix(text, spaceMark)
}

// plainSentence is plain for SentencePiece's families, with a ▁ before the text if leading is set.
func (t *Tokenizer) plainSentence(dst []uint32, text string, leading bool) []uint32 {
	if strings.Contains(text, spaceMark) {
		text = strings.ReplaceAll(text, spaceMark, " ")
	}
	i := 0
	if leading && text != "" {
		if a, _ := charAt(text, 0); t.sentence.joined(' ', a) {
			i = t.sentence.next(text, 0)
		}
		first := " " + text[:i]
		dst = t.piece(dst, first, 0, len(first))
	}
	for i < len(text) {
		end := t.sentence.next(text, i)
		dst = t.piece(dst, text, i, end)
		i = end
	}
	return dst
}

// charAt returns the character of s that begins at byte i, -1 for a byte that is not UTF-8, and its width in bytes.
func charAt(s string, i int) (rune, int) {
	if c := s[i]; c < utf8.RuneSelf {
		return rune(c), 1
	}
	r, w := utf8.DecodeRuneInString(s[i:])
	if r == utf8.RuneError && w == 1 {
		return -1, 1
	}
	return r, w
}

// chars gives the id of a character's token.
type chars struct {
	ascii  [utf8.RuneSelf]uint32 // noChar for none
	others map[rune]uint32
}

const noChar = ^uint32(0)

func newChars() *chars {
	c := &chars{others: make(map[rune]uint32)}
	for i := range c.ascii {
		c.ascii[i] = noChar
	}
	return c
}

func (c *chars) add(r rune, id uint32) {
	if r < utf8.RuneSelf {
		c.ascii[r] = id
	} else {
		c.others[r] = id
	}
}

// append appends the unmerged ids of a piece of text: of its characters, and of the bytes of those that the
// vocabulary lacks.
func (c *chars) append(dst []uint32, bytes *[256]uint32, piece string) []uint32 {
	for i := 0; i < len(piece); {
		r, w := charAt(piece, i)
		id := noChar
		if uint32(r) < utf8.RuneSelf {
			id = c.ascii[r]
		} else if known, ok := c.others[r]; ok {
			id = known
		}
		if id != noChar {
			dst = append(dst, id)
		} else {
			for _, b := range []byte(piece[i : i+w]) {
				dst = append(dst, bytes[b])
			}
		}
		i += w
	}
	return dst
}
