package setting

import (
	"fmt"
	"strconv"
	"strings"
)

// Unknown returns the error for a name that is not among the known ones of what
// ("key", "fault"): it offers the nearest, or all of them where none resembles.
func Unknown(what, name string, known []string) error {
	if near := Nearest(name, known); near != "" {
		return fmt.Errorf("there is no such %s; the nearest is %s", what, near)
	}
	return fmt.Errorf("there is no such %s; there are %s", what, strings.Join(known, ", "))
}

// Nearest returns the name that was most likely meant, the first of several; empty when none resembles it. It is the
// one that is the fewest edits away, at most one in three letters; else the shortest one that begins or ends with the
// whole name: --port means --worker-port.
func Nearest(name string, known []string) string {
	best, least := "", len(name)/3+1
	for _, k := range known {
		if d := distance(name, k); d < least {
			best, least = k, d
		}
	}
	if best != "" || name == "" {
		return best
	}
	for _, k := range known {
		if (strings.HasSuffix(k, "-"+name) || strings.HasPrefix(k, name+"-")) && (best == "" || len(k) < len(best)) {
			best = k
		}
	}
	return best
}

// distance is the edit distance of Levenshtein with the swap of two neighbours
// counted as one edit (optimal string alignment), in bytes. Names longer than a
// line are cut: they resemble nothing anyway.
func distance(a, b string) int {
	const line = 100
	a, b = a[:min(len(a), line)], b[:min(len(b), line)]
	before, above, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		before, above, row = above, row, before
		row[0] = i
		for j := 1; j <= len(b); j++ {
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			row[j] = min(above[j]+1, row[j-1]+1, above[j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
	}
	return row[len(b)]
}

// Clip returns a user's text for a message: as it is where it is short and plain, else as [Quote] has it.
func Clip(s string) string {
	if q := Quote(s); q != `"`+s+`"` {
		return q
	}
	return s
}

// Quote returns a user's text for a message, in quotes, and cut where a whole file was given by mistake.
func Quote(s string) string {
	const most = 64
	if len(s) > most {
		return strconv.Quote(s[:most]) + "…"
	}
	return strconv.Quote(s)
}
