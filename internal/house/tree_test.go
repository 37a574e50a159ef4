package house

import (
	"go/ast"
	"go/build/constraint"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// module is the import path of the tree's root.
const module = "github.com/tandem-pd/tandem"

// root is where the tree begins, from this folder.
const root = "../.."

// source is one Go file.
type source struct {
	path  string // from the root, with slashes
	room  string // its folder: the import path below the module's, "." for the root
	test  bool   // a _test.go file
	lines int
	text  string
	ast   *ast.File
	fset  *token.FileSet
}

// tree is everything that is checked. It is read once.
type tree struct {
	sources []*source
	texts   map[string]string // path to content of the other files that people write
	paths   map[string]bool   // every file and folder
}

// textual are the endings, and names without one, of the files in tree.texts.
var textual = map[string]bool{".md": true, ".yaml": true, ".yml": true, ".sh": true, ".conf": true, "Makefile": true, "run": true}

var readTree = sync.OnceValues(func() (*tree, error) {
	t := &tree{texts: map[string]string{}, paths: map[string]bool{}}
	err := filepath.WalkDir(root, func(full string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, full)
		if err != nil {
			return err
		}
		name = filepath.ToSlash(name)
		t.paths[name] = true
		if d.IsDir() {
			if d.Name() == ".git" || d.Name() == "testdata" || d.Name() == "bin" {
				return filepath.SkipDir
			}
			return nil
		}
		kind := path.Ext(name)
		if kind == "" {
			kind = path.Base(name)
		}
		if kind != ".go" && !textual[kind] {
			return nil
		}
		data, err := os.ReadFile(full)
		if err != nil {
			return err
		}
		if kind != ".go" {
			t.texts[name] = string(data)
			return nil
		}
		s, err := parse(name, string(data))
		if err != nil || ast.IsGenerated(s.ast) { // no one reads or edits those
			return err
		}
		t.sources = append(t.sources, s)
		return nil
	})
	return t, err
})

// load returns the tree, or ends the test.
func load(t *testing.T) *tree {
	t.Helper()
	read, err := readTree()
	require.NoError(t, err)
	require.NotEmpty(t, read.sources, "no Go file under %s", root)
	return read
}

// parse reads one Go file; name is its path from the root.
func parse(name, text string) (*source, error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	return &source{
		path: name, room: path.Dir(name), test: strings.HasSuffix(name, "_test.go"),
		lines: strings.Count(text, "\n"), text: text, ast: file, fset: fset,
	}, nil
}

// mustParse parses a file that a test wrote.
func mustParse(t *testing.T, name, text string) *source {
	t.Helper()
	s, err := parse(name, text)
	require.NoError(t, err)
	return s
}

// code reports whether the file is part of the program on some system: not a
// test, and not a generator that only runs by hand.
func (s *source) code() bool { return !s.test && !s.generator() }

// generator reports whether a build constraint keeps the file out of every build.
func (s *source) generator() bool {
	for _, group := range s.ast.Comments {
		if group.Pos() > s.ast.Package {
			break
		}
		for _, c := range group.List {
			if !constraint.IsGoBuild(c.Text) {
				continue
			}
			expr, err := constraint.Parse(c.Text)
			if err == nil && !expr.Eval(func(tag string) bool { return tag != "ignore" }) {
				return true
			}
		}
	}
	return false
}

// at is a place in the file as an editor jumps to it.
func (s *source) at(pos token.Pos) string {
	return s.path + ":" + strconv.Itoa(s.fset.Position(pos).Line)
}

// imports returns the import paths of the file, by the local name.
func (s *source) imports() map[string]string {
	found := map[string]string{}
	for _, spec := range s.ast.Imports {
		p := importPath(spec)
		name := path.Base(p)
		if len(name) > 1 && name[0] == 'v' && strings.Trim(name[1:], "0123456789") == "" {
			name = path.Base(path.Dir(p)) // math/rand/v2 is called rand
		}
		if spec.Name != nil {
			name = spec.Name.Name
		}
		found[name] = p
	}
	return found
}

func importPath(spec *ast.ImportSpec) string {
	p, err := strconv.Unquote(spec.Path.Value)
	if err != nil {
		panic(err) // the parser accepted it
	}
	return p
}

// ours returns the room that an import path names, and whether it is ours.
func ours(importPath string) (string, bool) {
	if importPath == module {
		return ".", true
	}
	return strings.CutPrefix(importPath, module+"/")
}

// functions returns the names of the file's functions, without methods.
func functions(s *source) []string {
	var names []string
	for _, d := range s.ast.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil {
			names = append(names, f.Name.Name)
		}
	}
	return names
}
