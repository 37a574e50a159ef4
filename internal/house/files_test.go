package house

import (
	"go/ast"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// A package is introduced once: by one comment, in the form that go doc lists.
func TestPackagesHaveOneComment(t *testing.T) {
	comments := map[string][]string{}
	for _, s := range load(t).sources {
		if !s.code() {
			continue
		}
		if _, seen := comments[s.room]; !seen {
			comments[s.room] = nil
		}
		if s.ast.Doc == nil {
			continue
		}
		comments[s.room] = append(comments[s.room], s.at(s.ast.Doc.Pos()))
		want := "Package " + s.ast.Name.Name + " "
		if s.ast.Name.Name == "main" {
			want = "Command " + path.Base(s.room) + " "
		}
		assert.True(t, strings.HasPrefix(s.ast.Doc.Text(), want), "%s: the package comment begins with %.30q, not with %q", s.path,
			s.ast.Doc.Text(), want)
	}
	for room, places := range comments {
		assert.Len(t, places, 1, "package comments of %s", room)
	}
}

// go doc lists an exported name by the first word of its comment.
func TestExportedNamesBeginTheirComments(t *testing.T) {
	for _, s := range load(t).sources {
		if !s.code() {
			continue
		}
		for _, d := range s.ast.Decls {
			var name string
			var doc *ast.CommentGroup
			switch d := d.(type) {
			case *ast.FuncDecl:
				name, doc = d.Name.Name, d.Doc
			case *ast.GenDecl:
				if spec, ok := d.Specs[0].(*ast.TypeSpec); ok && len(d.Specs) == 1 {
					name, doc = spec.Name.Name, d.Doc
				}
			}
			if ast.IsExported(name) && doc != nil {
				first := strings.FieldsFunc(doc.Text(), func(r rune) bool { return strings.ContainsRune(" \n,.:;'", r) })[0]
				assert.Equal(t, name, first, "%s: the comment's first word", s.at(doc.Pos()))
			}
		}
	}
}

// nameless are package names without meaning, where anything ends up.
var nameless = []string{"types", "common", "util", "utils", "helper", "helpers", "misc", "shared", "base", "core", "interfaces"}

func TestPackagesAreNamedForWhatTheyAre(t *testing.T) {
	for _, s := range load(t).sources {
		for part := range strings.SplitSeq(s.room, "/") {
			assert.False(t, slices.Contains(nameless, part),
				"%s lies in a package called %s: name it for what it is, or give each part to whoever uses it", s.path, part)
		}
		if name := strings.TrimSuffix(s.ast.Name.Name, "_test"); slices.Contains(nameless, name) {
			t.Errorf("%s is in package %s: name it for what it is", s.path, name)
		}
	}
}

// ends are the files that end the process, one of each command, once each: the
// one place, so that every defer before it runs.
var ends = []string{"cmd/gateway/main.go", "bench/main.go", "deploy/compose/run/main.go",
	"deploy/release/main.go"}

func TestOnlyMainExits(t *testing.T) {
	found := map[string]int{}
	for _, s := range load(t).sources {
		if !s.code() {
			continue
		}
		for _, exit := range exits(s) {
			found[s.path]++
			assert.True(t, slices.Contains(ends, s.path),
				"%s: return an error; only a command's main.go ends the process: %s", exit, strings.Join(ends, ", "))
		}
	}
	for _, place := range ends {
		assert.Equal(t, 1, found[place], "%s ends the process in N places, not one", place)
	}
}

// exits lists where a file ends the process.
func exits(s *source) []string {
	return slices.Concat(uses(s, "os", "Exit"), uses(s, "log", "Fatal", "Fatalf", "Fatalln"), uses(s, "syscall", "Exit"))
}

// unfinished matches words that promise a change instead of being one. They are
// taken apart here so that this file does not contain them.
var unfinished = regexp.MustCompile(`(?i)\b(TO` + `DO|FIX` + `ME|X` + `XX|HA` + `CK|not imple` + `mented|place` + `holder|st` +
	`ub(bed)?|for ` + `now)\b`)

func TestNothingIsLeftUnfinished(t *testing.T) {
	tree := load(t)
	texts := maps.Clone(tree.texts)
	for _, s := range tree.sources {
		texts[s.path] = s.text
	}
	for name, text := range texts {
		for i, line := range strings.Split(text, "\n") {
			assert.Empty(t, unfinished.FindString(line), "%s:%d says X: finish it, or say what is absent and why", name, i+1)
		}
	}
}

// Tests wait for conditions. Inside a synctest bubble a sleep is one: it ends when everything else has come to rest.
func TestTestsDoNotSleepOnTheWallClock(t *testing.T) {
	bubbles := map[string]bool{} // rooms whose tests run in one
	for _, s := range load(t).sources {
		for _, p := range s.imports() {
			bubbles[s.room] = bubbles[s.room] || s.test && p == "testing/synctest"
		}
	}
	for _, s := range load(t).sources {
		if !s.test || bubbles[s.room] {
			continue
		}
		for _, place := range uses(s, "time", "Sleep") {
			t.Errorf("%s: wait for what should happen, or put the test into a synctest bubble", place)
		}
	}
}

// A test that skips checks nothing. The one reason is data that lies beside the
// checkout and is not shipped; the message names it.
func TestTestsSkipOnlyForAbsentData(t *testing.T) {
	for _, s := range load(t).sources {
		if !s.test {
			continue
		}
		ast.Inspect(s.ast, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || !slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, sel.Sel.Name) {
				return true
			}
			from, to := s.fset.Position(call.Pos()).Offset, s.fset.Position(call.End()).Offset
			if !strings.Contains(s.text[from:to], "absent") || !strings.Contains(s.text, "../shared") {
				t.Errorf("%s: the test skips, and not because ../shared is absent", s.at(n.Pos()))
			}
			return true
		})
	}
}

// A path to ../shared leads there from its own folder: after a move it would lead elsewhere, and the test would skip.
func TestPathsLeadToShared(t *testing.T) {
	for _, s := range load(t).sources {
		ast.Inspect(s.ast, func(n ast.Node) bool {
			lit, ok := n.(*ast.BasicLit)
			if !ok || !strings.HasPrefix(lit.Value, `"../`) || strings.HasSuffix(lit.Value, `shared/"`) || !strings.Contains(lit.Value, "../shared/") {
				return true
			}
			if to := path.Join(s.room, strings.Trim(lit.Value, `"`)); !strings.HasPrefix(to, "../shared/") {
				t.Errorf("%s: %s is %s from the root", s.at(n.Pos()), lit.Value, to)
			}
			return true
		})
	}
}

// uses lists where a file uses one of the names of a package.
func uses(s *source, importPath string, names ...string) []string {
	var found []string
	imported := s.imports()
	ast.Inspect(s.ast, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok && slices.Contains(names, sel.Sel.Name) {
			if pkg, ok := sel.X.(*ast.Ident); ok && imported[pkg.Name] == importPath {
				found = append(found, s.at(n.Pos())+": "+importPath+"."+sel.Sel.Name)
			}
		}
		return true
	})
	return found
}
