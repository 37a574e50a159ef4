package tokens

import (
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// nfc returns s in Unicode's composed normal form, itself where it is already. Bytes that are not UTF-8 stay as they
// are.
func nfc(s string) string {
	if isASCII(s) || allInert(s) || norm.NFC.IsNormalString(s) {
		return s
	}
	const joiner = "\u034f"
	composed := norm.NFC.String(s)
	if strings.Count(composed, joiner) != strings.Count(s, joiner) {
		// x/text also makes its text stream-safe: it puts a joiner between more than 30 combining marks in a row.
		// Normal form C has none.
		return composeAll(s)
	}
	return composed
}

// isASCII reports whether s has no byte above 0x7f.
func isASCII(s string) bool {
	const high = 0x8080808080808080
	i := 0
	for ; i+8 <= len(s); i += 8 {
		if word64(s, i)&high != 0 {
			return false
		}
	}
	for ; i < len(s); i++ {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// composeAll is normal form C with no bound on the marks in a row, straight from Unicode's definition (UAX #15):
// decompose, order the marks of each run by combining class, compose. It is slow, and used only where x/text departs.
func composeAll(s string) string {
	type char struct {
		r   rune // negative: the byte -r-1, which is not UTF-8
		ccc uint8
	}
	var cs []char
	for i := 0; i < len(s); {
		r, w := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && w == 1 {
			cs = append(cs, char{r: -rune(s[i]) - 1})
		} else {
			for _, d := range norm.NFD.String(s[i : i+w]) {
				cs = append(cs, char{d, norm.NFD.PropertiesString(string(d)).CCC()})
			}
		}
		i += w
	}
	for i := 0; i < len(cs); i++ {
		from := i
		for i < len(cs) && cs[i].ccc != 0 {
			i++
		}
		slices.SortStableFunc(cs[from:i], func(a, b char) int { return int(a.ccc) - int(b.ccc) })
	}
	out := cs[:0]
	starter := -1 // of out
	for _, c := range cs {
		if starter >= 0 {
			last := out[len(out)-1]
			blocked := len(out)-1 > starter && last.ccc >= c.ccc
			if joined, ok := compose(out[starter].r, c.r); ok && !blocked {
				out[starter].r = joined
				continue
			}
		}
		if c.ccc == 0 {
			starter = len(out)
		}
		out = append(out, c)
	}
	b := make([]byte, 0, len(s))
	for _, c := range out {
		if c.r < 0 {
			b = append(b, byte(-c.r-1))
		} else {
			b = utf8.AppendRune(b, c.r)
		}
	}
	return string(b)
}

// compose returns the one character that the canonical pair a, b composes to.
func compose(a, b rune) (rune, bool) {
	if a < 0 || b < 0 {
		return 0, false
	}
	var pair, one [2 * utf8.UTFMax]byte
	n := utf8.AppendRune(utf8.AppendRune(pair[:0], a), b)
	c := norm.NFC.Append(one[:0], n...)
	r, w := utf8.DecodeRune(c)
	return r, w == len(c)
}

// inertPlane0 has a bit for each inert character below U+10000. It is filled once, by the first Load, and only read
// afterwards.
var inertPlane0 [1 << 16 / 64]uint64

// makeInert fills it.
func makeInert() {
	for r := range rune(1 << 16) {
		if (r < 0xd800 || r > 0xdfff) && inertBy(r) {
			inertPlane0[r/64] |= 1 << (r % 64)
		}
	}
}

// inert reports whether normalisation keeps the character r, whatever precedes it.
func inert(r rune) bool {
	if r < 1<<16 {
		return inertPlane0[r/64]>>(r%64)&1 != 0
	}
	return inertBy(r)
}

// inertBy uses Unicode's tables.
func inertBy(r rune) bool {
	var b [utf8.UTFMax]byte
	c := utf8.AppendRune(b[:0], r)
	return norm.NFC.IsNormal(c) && norm.NFC.Properties(c).BoundaryBefore()
}

// allInert reports whether the text's characters are all inert: then it is in normal form. Most text, Chinese included,
// is decided quickly.
func allInert(s string) bool {
	for _, r := range s {
		if !inert(r) {
			return false
		}
	}
	return true
}
