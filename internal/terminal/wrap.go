package terminal

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Paragraph writes text wrapped at width columns, every line after the first indented; term stands in the indent of
// the first, or on a line of its own where it is too long for that.
func Paragraph(w io.Writer, term string, indent, width int, text string) {
	words := strings.Fields(text)
	if len(words) == 0 {
		if term != "" {
			fmt.Fprintln(w, term)
		}
		return
	}
	if term != "" && utf8.RuneCountInString(term) > indent-2 {
		fmt.Fprintln(w, term)
		term = ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%-*s", indent, term)
	column := indent
	for i, word := range words {
		long := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case column+1+long > width:
			fmt.Fprintf(&b, "\n%*s", indent, "")
			column = indent
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += long
	}
	b.WriteByte('\n')
	_, _ = io.WriteString(w, b.String())
}

// Prose writes text wrapped at width columns: lines that follow each other are one paragraph. Lines that begin with a
// blank are examples and stay as they are; a command among them that is too long goes on after a backslash.
func Prose(w io.Writer, width int, text string) {
	var open []string
	flush := func() {
		Paragraph(w, "", 0, width, strings.Join(open, " "))
		open = nil
	}
	for line := range strings.SplitSeq(text, "\n") {
		switch {
		case strings.HasPrefix(line, " "):
			flush()
			example(w, width, line)
		case strings.TrimSpace(line) == "":
			flush()
			fmt.Fprintln(w)
		default:
			open = append(open, line)
		}
	}
	flush()
}

// example writes a line of an example. A command that does not fit goes on in the next line, broken before a flag, so
// that it can still be pasted.
func example(w io.Writer, width int, line string) {
	const more = "      "
	for utf8.RuneCountInString(line) > width {
		at := strings.LastIndex(line[:min(width-2, len(line))], " --")
		if at <= len(more) {
			break
		}
		fmt.Fprintln(w, line[:at]+" \\")
		line = more + line[at+1:]
	}
	fmt.Fprintln(w, line)
}
