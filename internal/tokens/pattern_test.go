package tokens

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Load does it for the rest of the program; tests of patterns load nothing.
func init() { fillPlane0() }

// twin is the slow and obvious form of a pattern: its alternatives in order,
// each by Go's regexp, and the one with a look-ahead spelled out.
type twin []*regexp.Regexp

const lookAhead = `\s+(?!\S)`

func newTwin(source string) twin {
	var w twin
	// Go's \s knows ASCII only.
	space := `\x{09}-\x{0d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}`
	for _, alternative := range splitAlternatives(source) {
		if alternative == lookAhead {
			w = append(w, nil)
			continue
		}
		alternative = strings.ReplaceAll(alternative, `[^\s`, `[^`+space)
		alternative = strings.ReplaceAll(alternative, `\s`, `[`+space+`]`)
		w = append(w, regexp.MustCompile(`^(?:`+alternative+`)`))
	}
	return w
}

// splitAlternatives cuts a pattern at the bars outside brackets.
func splitAlternatives(source string) []string {
	var all []string
	depth, from := 0, 0
	for i, c := range source {
		switch c {
		case '(', '[':
			depth++
		case ')', ']':
			depth--
		case '|':
			if depth == 0 {
				all, from = append(all, source[from:i]), i+1
			}
		}
	}
	return append(all, source[from:])
}

// next is pattern.next.
func (w twin) next(s string, i int) int {
	for _, re := range w {
		if re != nil {
			if m := re.FindStringIndex(s[i:]); m != nil {
				return i + m[1]
			}
			continue
		}
		m := w[len(w)-1].FindStringIndex(s[i:]) // \s+
		if m == nil {
			continue
		}
		run := s[i : i+m[1]]
		if i+len(run) == len(s) {
			return len(s)
		}
		chars := []rune(run)
		if short := len(run) - len(string(chars[len(chars)-1])); short > 0 {
			return i + short
		}
	}
	return -1
}

func piecesOf(s string, next func(string, int) int) []string {
	var pieces []string
	for i := 0; i < len(s); {
		end := next(s, i)
		pieces = append(pieces, s[i:end])
		i = end
	}
	return pieces
}

// isolated is a Split as it is defined, on each of the pieces that the Splits before have left: a match is a piece, and
// so is what lies between two.
func (w twin) isolated(pieces []string) (cut []string) {
	for _, p := range pieces {
		from := 0
		for i := 0; i < len(p); {
			end := w.next(p, i)
			if end <= i {
				_, width := utf8.DecodeRuneInString(p[i:])
				i += width
				continue
			}
			if from < i {
				cut = append(cut, p[from:i])
			}
			cut = append(cut, p[i:end])
			i, from = end, end
		}
		if from < len(p) {
			cut = append(cut, p[from:])
		}
	}
	return cut
}

func TestPatternsEqualTheirSource(t *testing.T) {
	for _, k := range known {
		p, ok := patternOf(k.sources)
		require.True(t, ok && p == k.pattern, "%s is not known by its own source", patternName(k.pattern))
		var twins []twin
		for _, source := range k.sources {
			twins = append(twins, newTwin(source))
		}
		rng := seeded(t, 3)
		for range 6000 {
			s := randomText(rng, 12)
			want := []string{s}
			for _, w := range twins {
				want = w.isolated(want)
			}
			require.True(t, slices.Equal(piecesOf(s, k.pattern.next), want), "%s: pieces of %q, want %q", patternName(k.pattern), s, want)
		}
	}
}

func TestPatternExamples(t *testing.T) {
	for _, c := range []struct {
		pattern pattern
		text    string
		want    string // pieces, with bars between
	}{
		{gpt2, "I'll've 12345  ok", "I|'ll|'ve| 12345| | ok"},
		{gpt2, "I'LL", "I|'|LL"},
		{gpt2, "a\n\n b", "a|\n\n| b"},
		{cl100k, "I'LL've 12345  ok", "I|'LL|'ve| |123|45| | ok"},
		{cl100k, "a();\r\n\r\n\tb \n\n  c", "a|();\r\n\r\n|\tb| \n\n| | c"},
		{qwen2, "x=123", "x|=|1|2|3"},
		{qwen2, "#tag (yes) 'ſ", "#tag| (|yes|)| '|ſ"},
		{qwen2, "it'ſ", "it|'ſ"},
		{o200k, "camelCaseHTTP's 1234", "camel|Case|HTTP's| |123|4"},
		{o200k, "A中B", "A中|B"},
		{o200k, "and/or //x/\n/y", "and|/or| //|x|/\n/|y"},
		{o200k, "\u0301ABC", "\u0301|ABC"},
		{qwen35, "हिन्दी 12", "हिन्दी| |1|2"},
		{qwen2, "हिन्दी", "ह|िन|्द|ी"},
		{tekken, "camelCase's 1234", "camel|Case|'s| |1|2|3|4"},
		{deepSeek, "It's 12345  ok", "It|'s| |123|45| | ok"},
		{deepSeek, "a  1  ア・イ b", "a|  |1|  |ア|・|イ| b"},
		{deepSeek, "x=漢字かな+1", "x|=|漢字かな|+|1"},
		{deepSeek, "\x00\x01\x02go\n\n x", "\x00\x01|\x02go|\n\n| x"},
		{deepSeek, "f(x);\r\n\tif", "f|(x|);\r\n|\tif"},
	} {
		assert.Equal(t, c.want, strings.Join(piecesOf(c.text, c.pattern.next), "|"), "pattern %d: pieces of %q", c.pattern, c.text)
	}
}

// TestSafeCuts proves on random texts what Cache rests on: cut at every place that is allowed, a text has the same
// tokens, for every pattern, with and without normalisation, and for every family, with all that is in a text.
func TestSafeCuts(t *testing.T) {
	all := variants(t)
	for _, f := range families() {
		all["family "+f.name] = f.load(t)
	}
	for name, tok := range all {
		rng, cuts := seeded(t, 5), 0
		if tok.seams.alone {
			continue
		}
		for range 3000 {
			s := randomText(rng, 10)
			want := tok.Encode(nil, s)
			var got []uint32
			from, at := 0, first
			for i := 1; i < len(s); i++ {
				if tok.cuttable(s, i) {
					got = tok.encode(got, s[from:i], at, true)
					from, at = i, within
					cuts++
				}
			}
			require.True(t, slices.Equal(tok.encode(got, s[from:], at, true), want), "%s: %q cut at safe places, want %v", name, s, want)
		}
		assert.GreaterOrEqual(t, cuts, 1500, "%s: safe cuts in 3,000 texts", name)
	}
}

func TestSafeCutExamples(t *testing.T) {
	for _, c := range []struct {
		before, after string
		want          bool
	}{
		{"word", " next", true},
		{"word", "\n", true},
		{"文", "。", true},
		{"42", ",", true},
		{"42", "x", true},
		{"word", "'s", false},  // o200k takes it along
		{"word", "s", false},   // one run
		{"42", "3", false},     // groups of three
		{"e", "\u0301", false}, // composes
		{"\u0958", ".", false}, // decomposes to a mark, which goes with the stop
		{";", "\n", false},     // symbols take line breaks along
		{" ", "word", false},   // goes with the word
		{"x", "\u037e", false}, // becomes another character
		{"\xe6\x96", " ", false},
		{"a", "\xff", false},
	} {
		assert.Equal(t, c.want, safeCut(c.before+c.after, len(c.before)), "between %q and %q", c.before, c.after)
	}
}
