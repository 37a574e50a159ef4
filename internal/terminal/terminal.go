// Package terminal reports whether a person reads an output and how wide and high it is, and shows the progress of a
// long job there: on a terminal as a bar, elsewhere as a line now and then.
package terminal

import (
	"io"
	"os"
)

// Columns is the assumed width without a terminal.
const Columns = 80

// Is reports whether out is a terminal.
func Is(out io.Writer) bool {
	_, _, ok := size(out)
	return ok
}

// Rewrites reports whether out is a terminal on which a line can be erased and written again. TERM=dumb is none.
func Rewrites(out io.Writer) bool { return Is(out) && os.Getenv("TERM") != "dumb" }

// Size returns the terminal's width and height in characters; Columns and 0 where out is no terminal, or one without a
// known size.
func Size(out io.Writer) (columns, rows int) {
	columns, rows, ok := size(out)
	if !ok || columns <= 0 {
		return Columns, 0
	}
	return columns, rows
}

// Cut shortens a line to so many columns, with an ellipsis where something is missing. A character counts as one
// column.
func Cut(line string, columns int) string {
	seen, end := 0, 0
	for i := range line {
		if seen == columns-1 {
			end = i
		}
		if seen++; seen > columns {
			return line[:end] + "…"
		}
	}
	return line
}

// file is out as a file; nil for another writer.
func file(out io.Writer) *os.File {
	f, _ := out.(*os.File)
	return f
}
