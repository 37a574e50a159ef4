package fault

// nearest returns the known name with the least edit distance to name, the
// first of them where several are as near.
func nearest(name string, known []string) string {
	best, least := "", 0
	for _, k := range known {
		if d := distance(clip(name), k); best == "" || d < least {
			best, least = k, d
		}
	}
	return best
}

// distance is Levenshtein's edit distance in bytes.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			change := diagonal
			if a[i-1] != b[j-1] {
				change++
			}
			diagonal = row[j]
			row[j] = min(row[j]+1, row[j-1]+1, change)
		}
	}
	return row[len(b)]
}

// clip keeps a name that somebody wrote short enough for a message.
func clip(name string) string {
	const longest = 60
	if len(name) <= longest {
		return name
	}
	return name[:longest] + "…"
}
