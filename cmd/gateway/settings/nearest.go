package settings

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// unknown is the error for a name that is in no table: it offers the nearest
// that is. A "no-" in front of a known name is explained, because the flag has
// it and the variable and the key do not. spell writes a known name the way the
// unknown one would have to be written.
func unknown(name string, known []string, spell func(string) string) error {
	if rest, ok := strings.CutPrefix(name, "no-"); ok && slices.Contains(known, rest) {
		return fmt.Errorf("there is no such name: --no-%[1]s is the flag, elsewhere set %[2]s to false", rest, spell(rest))
	}
	best := Nearest(name, known)
	if best == "" {
		return errors.New("there is no such setting")
	}
	return fmt.Errorf("there is no such setting; the nearest is %s", spell(best))
}

// Nearest returns the name that was most likely meant, the first of several;
// empty when none resembles it. It is the one that is the fewest edits away, at most
// one in three letters; else the shortest one that begins or ends with the whole
// name: --port means --worker-port.
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
