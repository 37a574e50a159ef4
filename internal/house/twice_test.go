package house

import (
	"fmt"
	"go/scanner"
	"go/token"
	"maps"
	"slices"
	"strings"
	"testing"
)

// twiceLimit is from how many equal lines on a block counts as standing twice.
const twiceLimit = 12

// codeLine is a line of code as it is compared: its tokens, without comment and indentation.
type codeLine struct {
	text   string
	path   string
	number int
}

// No block of the product stands twice: what two places need has one home.
func TestNoBlockStandsTwice(t *testing.T) {
	var files [][]codeLine
	for _, s := range load(t).sources {
		if s.code() && !inLab(s.room) {
			files = append(files, codeLines(s))
		}
	}
	for _, found := range twice(files, twiceLimit) {
		t.Errorf("%s: write it once, where both can import it", found)
	}
}

// codeLines returns the lines of a file below its imports that hold code.
func codeLines(s *source) []codeLine {
	begin := 0
	for _, spec := range s.ast.Imports {
		begin = max(begin, s.fset.Position(spec.End()).Line+1)
	}
	byNumber := map[int][]string{}
	var sc scanner.Scanner
	fset := token.NewFileSet()
	file := fset.AddFile(s.path, -1, len(s.text))
	sc.Init(file, []byte(s.text), nil, 0)
	for {
		pos, tok, literal := sc.Scan()
		if tok == token.EOF {
			break
		}
		if tok == token.SEMICOLON && literal == "\n" {
			continue
		}
		if literal == "" {
			literal = tok.String()
		}
		line := file.Line(pos)
		byNumber[line] = append(byNumber[line], literal)
	}
	var lines []codeLine
	for _, n := range slices.Sorted(maps.Keys(byNumber)) {
		if n > begin {
			lines = append(lines, codeLine{strings.Join(byNumber[n], " "), s.path, n})
		}
	}
	return lines
}

// twice lists the runs of at least limit equal lines, the longest that each pair of places begins, in order.
func twice(files [][]codeLine, limit int) []string {
	type place struct{ file, line int }
	first := map[string]place{}
	var found []string
	end := place{-1, 0} // of the run that was reported last
	for f, lines := range files {
		for i := 0; i+limit <= len(lines); i++ {
			var key strings.Builder
			for _, l := range lines[i : i+limit] {
				key.WriteString(l.text + "\n")
			}
			before, again := first[key.String()]
			if !again {
				first[key.String()] = place{f, i}
				continue
			}
			if end.file == f && i < end.line || before.file == f && i < before.line+limit {
				continue
			}
			n := limit
			for other := files[before.file]; i+n < len(lines) && before.line+n < len(other) && lines[i+n].text == other[before.line+n].text; n++ {
			}
			end = place{f, i + n}
			at := files[before.file][before.line]
			found = append(found, fmt.Sprintf("%s:%d repeats %d lines of %s:%d", lines[i].path, lines[i].number, n, at.path, at.number))
		}
	}
	return found
}
