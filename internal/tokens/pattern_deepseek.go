package tokens

import "unicode/utf8"

// The three Splits of DeepSeek V3 and R1, each applied to the pieces that the ones before left whole.
const (
	deepSeekNumbers = `\p{N}{1,3}`
	deepSeekEastern = `[一-龥぀-ゟ゠-ヿ]+`
	deepSeekWords   = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+" +
		`|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*` + tail
)

// nextDeepSeek splits within a stretch, which ends before a number and where eastern characters begin or end: no
// match or
// look-ahead of the third expression crosses that. Unmatched characters, such as control characters, are a piece up
// to the
// next match.
func nextDeepSeek(s string, i int) int {
	k, w := classAt(s, i)
	if k&number != 0 {
		return digitGroup(s, i, 3)
	}
	side := k & eastern
	if end := deepSeekWord(s, i, k, w); end > 0 {
		return end
	}
	for i += w; i < len(s); i += w {
		k, w = classAt(s, i)
		if k&number != 0 || k&eastern != side || deepSeekWord(s, i, k, w) > 0 {
			break
		}
	}
	return i
}

// deepSeekWord matches the third expression at i, at a character of class k and width w, and returns 0 without a match.
func deepSeekWord(s string, i int, k class, w int) int {
	side := k & eastern
	after, aw := class(0), 0
	if i+w < len(s) {
		if after, aw = classAt(s, i+w); after&eastern != side {
			after, aw = 0, 0 // as at the end
		}
	}
	switch {
	case k&point != 0:
		if s[i] < utf8.RuneSelf && i+1 < len(s) && isASCIILetter(s[i+1]) {
			for i += 2; i < len(s) && isASCIILetter(s[i]); i++ {
			}
			return i
		}
		return deepSeekPoints(s, i, side)
	case k&cased != 0:
		return skipWithin(s, i, cased, side)
	case k&newline == 0 && after&cased != 0: // any one other character goes with the letters after it
		return skipWithin(s, i+w+aw, cased, side)
	case s[i] == ' ' && after&point != 0:
		return deepSeekPoints(s, i+1, side)
	case k&space == 0:
		return 0
	}
	end, last, broken := blanks(s, i)
	if broken > 0 {
		return broken
	}
	if end == len(s) || last == i {
		return end
	}
	if next, _ := classAt(s, end); next&(number|eastern) != 0 {
		return end // where the stretch ends too
	}
	return last
}

// deepSeekPoints matches [\p{P}\p{S}]+[\r\n]* at i.
func deepSeekPoints(s string, i int, side class) int {
	i = skipWithin(s, i, point, side)
	if side != 0 {
		return i
	}
	return skip(s, i, newline)
}

// skipWithin is skip within a stretch of eastern characters, or of others.
func skipWithin(s string, i int, set, side class) int {
	for i < len(s) {
		k, w := classAt(s, i)
		if k&set == 0 || k&eastern != side {
			return i
		}
		i += w
	}
	return i
}

func isASCIILetter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }
