package replay

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Table is a table of a report. A heading's prefix selects its column's style: "#" numbers, "?" explanations, "!" what is
// bad.
type Table struct {
	Title string
	Head  []string
	Rows  [][]string
}

// columns are the looks by their prefix.
var columns = map[byte]string{'#': "n", '?': "faint", '!': "bad"}

// Class is the look of a column.
func (t Table) Class(column int) string {
	if h := t.Head[column]; h != "" {
		return columns[h[0]]
	}
	return ""
}

// Name is the title, or what stands for one.
func (t Table) Name() string {
	if t.Title != "" {
		return t.Title
	}
	return "Table by " + t.Label(0)
}

// Label is the heading of a column without its prefix.
func (t Table) Label(column int) string { return strings.TrimLeft(t.Head[column], "#?!") }

// WriteText writes the table for a terminal, numbers flush right.
func (t Table) WriteText(w io.Writer) {
	head := make([]string, len(t.Head))
	width := make([]int, len(t.Head))
	for i := range head {
		head[i] = t.Label(i)
	}
	rows := append([][]string{head}, t.Rows...)
	for _, row := range rows {
		for i, cell := range row {
			width[i] = max(width[i], utf8.RuneCountInString(cell))
		}
	}
	if t.Title != "" {
		fmt.Fprintf(w, "%s:\n", t.Title)
	}
	for _, row := range rows {
		line := ""
		for i, cell := range row {
			room := strings.Repeat(" ", width[i]-utf8.RuneCountInString(cell))
			if t.Class(i) == "n" {
				line += room + cell + "  "
			} else {
				line += cell + room + "  "
			}
		}
		fmt.Fprintln(w, strings.TrimRight(line, " "))
	}
}
