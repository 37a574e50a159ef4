package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/cmd/gateway/settings"
	"github.com/tandem-pd/tandem/fault"
)

// docs/reference/settings.md is made of the tags of every command's settings.
func TestSettingsReference(t *testing.T) {
	golden(t, "../../docs/reference/settings.md", settingsReference())
}

// settingsReference is docs/reference/settings.md: the settings of every command.
func settingsReference() string {
	var b bytes.Buffer
	b.WriteString("# Settings\n\nEvery setting of every command, made of the program's own help by `go test ./cmd/gateway -run TestSettingsReference -update`.\n" +
		"[Operating](../operating.md#settings) explains how flags, variables and files go together.\n")
	shared := settings.New(new(serveSettings))
	for _, name := range documented {
		fmt.Fprintf(&b, "\n## gateway %s\n", name)
		if set := commandNamed(name).set(); name == "serve" {
			set.Reference(&b, nil)
		} else {
			set.Reference(&b, shared)
		}
	}
	return b.String()
}

// golden compares a text with a file, or writes the file again with -update.
func golden(t *testing.T, path, got string) {
	t.Helper()
	if *fleet.Update {
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, string(want), got, "write %s again by go test ./cmd/gateway -run %s -update, and read every changed line", path, t.Name())
}

// The help of every command as a terminal of 80 columns shows it, and that of one setting and of a group.
func TestHelp(t *testing.T) {
	t.Parallel()
	pages := map[string][]string{
		"gateway": {"--help"}, "serve-router-mode": {"serve", "--help", "router-mode"}, "serve-queue": {"serve", "--help", "queue"},
		"serve-word": {"help", "serve", "timeout"},
	}
	for _, c := range commands() {
		pages[c.name] = []string{c.name, "--help"}
	}
	for name, args := range pages {
		status, text, _ := inside(t, nil, args...)
		assert.Zero(t, status, "%v: status", args)
		golden(t, filepath.Join("testdata", "help", name+".txt"), text)
		for line := range strings.Lines(text) {
			if utf8.RuneCountInString(line) > 81 && !strings.Contains(line, "kv-events-config") { // one word of an example
				t.Errorf("%v: a line is longer than 80 columns: %s", args, line)
			}
			assert.Equal(t, strings.TrimSuffix(line, "\n"), strings.TrimRight(line, " \n"),
				"%v: a line ends in a blank: %q", args, line)
		}
		assert.LessOrEqual(t, strings.Count(text, "\n"), 160, "%v lines", args)
	}
}

// Help shows at most 15 settings first, each of which the command has, and names all of them.
func TestFirstSettings(t *testing.T) {
	t.Parallel()
	for _, c := range commands() {
		_, short, _ := inside(t, nil, c.name, "--help")
		shown := 0
		for _, g := range c.set().Groups() {
			for _, row := range g.Rows {
				name := settings.Flag(row, row.Name)
				assert.True(t, len(c.most) <= 0 || strings.Contains(short, strings.TrimPrefix(name, "--")),
					"%s: --help does not name %s", c.name, name)
				if slices.Contains(c.most, row.Name) {
					shown++
				}
			}
		}
		assert.True(t, shown == len(c.most) && shown <= 15,
			"%s: of %d first settings it has %d; more than 15 are too many", c.name, len(c.most), shown)
	}
}

var docCode = regexp.MustCompile("^\\| (4xx|[0-9]{3}) \\| `([a-z_]+)` \\| [^|]+ \\| [^|]+ \\|$")

// docs/operating.md has every code that an error can have, with its status, and
// no other.
func TestOperatingErrorCodes(t *testing.T) {
	t.Parallel()
	operating, err := os.ReadFile("../../docs/operating.md")
	require.NoError(t, err)
	got := map[string]string{}
	for line := range strings.Lines(string(operating)) {
		if m := docCode.FindStringSubmatch(strings.TrimRight(line, "\n")); m != nil {
			assert.Empty(t, got[m[2]], "docs/operating.md has %s twice", m[2])
			got[m[2]] = m[1]
		}
	}
	want := errorCodes(t, "../../internal/openai", "../../cmd/gateway/edge", "../../handoff", "stack")
	for class := fault.None; class <= fault.Truncated; class++ {
		if class.Blames() || class == fault.GatewayError || class == fault.TooLarge {
			want[class.String()] = strconv.Itoa(class.Status())
		}
	}
	assert.Equal(t, want, got, "codes and statuses that the sources answer, and those of docs/operating.md")
}

// errorCodes collects, from the sources in folders, each code that an
// openai.Error is made with and its status; "4xx" is an engine's own.
func errorCodes(t *testing.T, folders ...string) map[string]string {
	t.Helper()
	c := codes{t: t, makers: map[string]string{}, found: map[string]string{}}
	var funcs []*ast.FuncDecl
	for _, folder := range folders {
		paths, err := filepath.Glob(filepath.Join(folder, "*.go"))
		require.True(t, err == nil && len(paths) != 0, "no sources in %s: %v", folder, err)
		for _, path := range paths {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			require.NoError(t, err)
			for _, d := range file.Decls {
				if f, ok := d.(*ast.FuncDecl); ok {
					funcs = append(funcs, f)
				}
			}
		}
	}
	for _, f := range funcs { // first those that make errors, for their statuses
		c.maker(f)
	}
	for _, f := range funcs {
		c.collect(f)
	}
	require.GreaterOrEqual(t, len(c.found), 20, "only N codes were found in the sources")
	return c.found
}

type codes struct {
	t      *testing.T
	makers map[string]string // status by the func of internal/openai that makes an error
	found  map[string]string // status by code
}

// maker notes the status of the error that f returns, if it makes one.
func (c *codes) maker(f *ast.FuncDecl) {
	ast.Inspect(f, func(n ast.Node) bool {
		if lit, ok := n.(*ast.CompositeLit); ok && isError(lit.Type) && c.makers[f.Name.Name] == "" {
			c.makers[f.Name.Name] = statusOf(member(lit, "Status"))
		}
		return true
	})
}

// collect finds the codes in f: in literals, in assignments to an error that a
// func made, and in calls of those funcs that take a code.
func (c *codes) collect(f *ast.FuncDecl) {
	made := map[string]string{} // status by the variable's name
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CompositeLit:
			if isError(n.Type) {
				c.note(member(n, "Code"), statusOf(member(n, "Status")))
			}
		case *ast.CallExpr:
			if name := nameOf(n); slices.Contains([]string{"BadGateway", "Unavailable", "GatewayTimeout"}, name) && len(n.Args) > 0 {
				c.note(n.Args[0], c.makers[name])
			}
		case *ast.AssignStmt:
			for i, left := range n.Lhs {
				if i >= len(n.Rhs) {
					break
				}
				switch left := left.(type) {
				case *ast.Ident:
					if call, ok := n.Rhs[i].(*ast.CallExpr); ok {
						made[left.Name] = c.makers[nameOf(call)]
					}
				case *ast.SelectorExpr:
					if of, ok := left.X.(*ast.Ident); ok && left.Sel.Name == "Code" {
						c.note(n.Rhs[i], made[of.Name])
					}
				}
			}
		}
		return true
	})
}

// note takes in a code that is a literal. Codes that come from elsewhere are
// fault classes, or another error's.
func (c *codes) note(code ast.Expr, status string) {
	lit, ok := code.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return
	}
	name, err := strconv.Unquote(lit.Value)
	require.NoError(c.t, err)
	if status == "" {
		status = "4xx" // an engine's own
	}
	if before := c.found[name]; before != "" && before != status {
		c.t.Errorf("the code %s has the statuses %s and %s", name, before, status)
	}
	c.found[name] = status
}

// isError reports whether a literal's type is openai.Error, by whatever name its
// package has it.
func isError(of ast.Expr) bool {
	if of, ok := of.(*ast.SelectorExpr); ok && nameOf(of.X) != "openai" {
		return false
	}
	return nameOf(of) == "Error"
}

// member is the value of a literal's field; nil where it is absent.
func member(lit *ast.CompositeLit, name string) ast.Expr {
	for _, e := range lit.Elts {
		if kv, ok := e.(*ast.KeyValueExpr); ok && nameOf(kv.Key) == name {
			return kv.Value
		}
	}
	return nil
}

// nameOf is the last name of what is used or called.
func nameOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.CallExpr:
		return nameOf(e.Fun)
	}
	return ""
}

// statusOf is the number behind http.StatusX; empty for anything else.
func statusOf(e ast.Expr) string {
	for n := 100; n < 600; n++ {
		if text := http.StatusText(n); text != "" && nameOf(e) == "Status"+strings.ReplaceAll(text, " ", "") {
			return strconv.Itoa(n)
		}
	}
	return ""
}

// set is the command's settings.
func (c *command) set() *settings.Set { return settingsOf()[c.name] }

var settingsOf = sync.OnceValue(func() map[string]*settings.Set {
	all := map[string]*settings.Set{}
	for _, c := range commands() {
		all[c.name] = settings.New(c.of, everySettings()...)
	}
	return all
})
