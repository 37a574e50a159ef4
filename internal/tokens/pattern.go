package tokens

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// pattern is one regular expression, or several in turn, that split a text into pieces before byte pairs are merged.
// Each is identified by its exact source and matched by a scanner written for it: the expressions need a look-ahead
// that Go's regexp lacks, and the scanner is some thirty times as fast. Every scanner takes linear time.
type pattern uint8

const (
	gpt2     pattern = iota // GPT-2, and ByteLevel with use_regex
	cl100k                  // GPT-4, Llama 3
	qwen2                   // Qwen 2, 2.5 and 3: cl100k with one digit a piece
	qwen35                  // Qwen 3.5: qwen2 with marks as letters
	o200k                   // GPT-4o, gpt-oss, Llama 4
	tekken                  // Mistral: o200k with one digit a piece, contractions as any other word
	deepSeek                // DeepSeek V3 and R1: three Splits, one after the other
)

const (
	contractions = `(?i:'s|'t|'re|'ve|'m|'ll|'d)`
	tail         = `|\s*[\r\n]+|\s+(?!\S)|\s+`

	gpt2Source   = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
	cl100kSource = contractions + `|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*` + tail
	qwen2Source  = contractions + `|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*` + tail
	qwen35Source = contractions + `|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*` + tail
	o200kSource  = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+` + contractions + `?` +
		`|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*` + contractions + `?` +
		`|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*` + tail
	tekkenSource = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+` +
		`|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*` +
		`|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*` + tail
)

// known lists the patterns by the sources of their Splits.
var known = []struct {
	pattern pattern
	sources []string
}{
	{gpt2, []string{gpt2Source}},
	{cl100k, []string{cl100kSource}},
	{qwen2, []string{qwen2Source}},
	{qwen35, []string{qwen35Source}},
	{o200k, []string{o200kSource}},
	{tekken, []string{tekkenSource}},
	{deepSeek, []string{deepSeekNumbers, deepSeekEastern, deepSeekWords}},
}

// patternOf finds the pattern with the given sources. A second spelling of the contractions, which matches the same,
// is taken too.
func patternOf(sources []string) (pattern, bool) {
	for _, k := range known {
		same := func(known, source string) bool {
			return known == strings.ReplaceAll(source, `'(?i:[sdmt]|ll|ve|re)`, contractions)
		}
		if slices.EqualFunc(k.sources, sources, same) {
			return k.pattern, true
		}
	}
	return 0, false
}

// next returns the end of the piece of s that begins at byte i < len(s). Where pieces end depends on nothing before i.
func (p pattern) next(s string, i int) int {
	switch p {
	case gpt2:
		return nextGPT2(s, i)
	case cl100k:
		return nextCl100k(s, i, 3, letter)
	case qwen2:
		return nextCl100k(s, i, 1, letter)
	case qwen35:
		return nextCl100k(s, i, 1, cased)
	case o200k:
		return nextO200k(s, i)
	case tekken:
		return nextTekken(s, i)
	default:
		return nextDeepSeek(s, i)
	}
}

func nextGPT2(s string, i int) int {
	k, w := classAt(s, i)
	if s[i] == '\'' {
		if end := contraction(s, i); end > 0 && !strings.ContainsAny(s[i:end], "SDMTLVREſ") {
			return end
		}
	}
	if s[i] == ' ' && i+1 < len(s) { // " ?" before letters, numbers or symbols
		if after, aw := classAt(s, i+1); after&space == 0 {
			i, k, w = i+1, after, aw
		}
	}
	switch {
	case k&letter != 0:
		return skip(s, i+w, letter)
	case k&number != 0:
		return skip(s, i+w, number)
	case k&space != 0:
		return blank(s, i, false)
	default:
		return skipSymbols(s, i+w, word)
	}
}

// nextCl100k cuts numbers after the given count of digits; words are of characters of the given class.
func nextCl100k(s string, i, digits int, words class) int {
	if s[i] == ' ' && i+1 < len(s) && s[i+1] < utf8.RuneSelf && plane0[s[i+1]]&letter != 0 {
		return skip(s, i+2, words) // most of any prose
	}
	k, w := classAt(s, i)
	switch {
	case k&words != 0:
		return skip(s, i+w, words)
	case k&number != 0:
		return digitGroup(s, i, digits)
	case k&newline != 0:
		return blank(s, i, true)
	}
	if s[i] == '\'' {
		if end := contraction(s, i); end > 0 {
			return end
		}
	}
	if i+w < len(s) { // one character of any other kind goes with the letters after it
		after, aw := classAt(s, i+w)
		if after&words != 0 {
			return skip(s, i+w+aw, words)
		}
		if s[i] == ' ' && after&(word|words) == 0 {
			return skip(s, skipSymbols(s, i+1+aw, word|words), newline)
		}
	}
	if k&space != 0 {
		return blank(s, i, true)
	}
	return skip(s, skipSymbols(s, i+w, word|words), newline)
}

func nextO200k(s string, i int) int {
	k, w := classAt(s, i)
	if end := casedWord(s, i, k, w); end > 0 {
		if end < len(s) && s[end] == '\'' {
			return max(end, contraction(s, end))
		}
		return end
	}
	return afterCasedWord(s, i, k, 3)
}

func nextTekken(s string, i int) int {
	k, w := classAt(s, i)
	if end := casedWord(s, i, k, w); end > 0 {
		return end
	}
	return afterCasedWord(s, i, k, 1)
}

// afterCasedWord matches the rest of o200k after its first two alternatives at i, at a character of class k.
func afterCasedWord(s string, i int, k class, digits int) int {
	switch {
	case k&number != 0:
		return digitGroup(s, i, digits)
	case s[i] == ' ' && i+1 < len(s):
		if after, _ := classAt(s, i+1); after&word == 0 {
			return symbolsAndSlashes(s, i+1)
		}
		return blank(s, i, true)
	case k&space != 0:
		return blank(s, i, true)
	default:
		return symbolsAndSlashes(s, i)
	}
}

// casedWord matches the first two alternatives of o200k, without the contraction that may follow, at i, at a character
// of class k and width w. It returns 0 without a match. It tries the alternatives in the order of a backtracking
// matcher: the lower-case-ending form before the upper-case one, each with the leading character before without it.
func casedWord(s string, i int, k class, w int) int {
	lead := k&(letter|number|newline) == 0
	if lead {
		if end := lowerEnding(s, i+w); end > 0 {
			return end
		}
	}
	if k&cased != 0 {
		if end := lowerEnding(s, i); end > 0 {
			return end
		}
	}
	if lead {
		if end := skip(s, i+w, upper); end > i+w {
			return end
		}
	}
	if end := skip(s, i, upper); end > i {
		return end
	}
	return 0
}

// lowerEnding matches U*L+ at i, where U is upper and L is lower; marks and letters without case are both. It returns 0
// without a match. If no L follows the longest run of U, it backtracks until L+ can begin with a character that is
// both.
func lowerEnding(s string, i int) int {
	both := 0
	for i < len(s) {
		k, w := classAt(s, i)
		if k&upper == 0 {
			if k&lower != 0 {
				return skip(s, i+w, lower)
			}
			break
		}
		i += w
		if k&lower != 0 {
			both = i
		}
	}
	return both
}

// symbolsAndSlashes matches [^\s\p{L}\p{N}]+[\r\n/]* at i.
func symbolsAndSlashes(s string, i int) int {
	i = skipSymbols(s, i, word)
	for i < len(s) && (s[i] == '\r' || s[i] == '\n' || s[i] == '/') {
		i++
	}
	return i
}

// contraction matches (?i:'s|'t|'re|'ve|'m|'ll|'d) at the apostrophe at i, or returns 0. As in Unicode, the long s
// folds to s.
func contraction(s string, i int) int {
	if i+1 >= len(s) {
		return 0
	}
	switch s[i+1] | 0x20 {
	case 's', 't', 'm', 'd':
		return i + 2
	case 'r', 'v':
		if i+2 < len(s) && s[i+2]|0x20 == 'e' {
			return i + 3
		}
	case 'l':
		if i+2 < len(s) && s[i+2]|0x20 == 'l' {
			return i + 3
		}
	default:
		if strings.HasPrefix(s[i+1:], "ſ") {
			return i + 1 + len("ſ")
		}
	}
	return 0
}

// digitGroup returns the end of at most n numbers, the first at i.
func digitGroup(s string, i, n int) int {
	for ; n > 0 && i < len(s); n-- {
		k, w := classAt(s, i)
		if k&number == 0 {
			break
		}
		i += w
	}
	return i
}

// blank returns the end of the piece of white space at i: with newlines, up to the run's last line break if it has
// one (\s*[\r\n]+); otherwise the run without its last character when something follows (\s+(?!\S)), or the whole run
// (\s+).
func blank(s string, i int, newlines bool) int {
	end, last, broken := blanks(s, i)
	switch {
	case newlines && broken > 0:
		return broken
	case end == len(s) || last == i:
		return end
	default:
		return last
	}
}

// blanks measures the run of white space at i: its end, the begin of its last character, and the end of its last line
// break, 0 without one.
func blanks(s string, i int) (end, last, broken int) {
	end, last = i, i
	for end < len(s) {
		k, w := classAt(s, end)
		if k&space == 0 {
			break
		}
		last, end = end, end+w
		if k&newline != 0 {
			broken = end
		}
	}
	return end, last, broken
}
