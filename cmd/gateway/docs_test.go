package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/tandem-pd/tandem/cmd/gateway/settings"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/openai"
)

func operating(t *testing.T) string {
	t.Helper()
	raw, err := os.ReadFile("../../docs/operating.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

var (
	helpFlag    = regexp.MustCompile(`^  --([a-z0-9-]+)`)
	helpDefault = regexp.MustCompile(`Default: (.*?)\.( From | At least | At most | Environment: )`)
	docHeading  = regexp.MustCompile(`^### (.+)$`)
	docFlag     = regexp.MustCompile("^\\| `--([a-z0-9-]+)` \\| ([^|]*) \\| ([^|]+) \\| ([^|]+) \\|$")
)

// flagEntry is a flag as help or a table shows it: in its group, in order.
type flagEntry struct{ group, flag, value string }

// flagsInHelp reads the flags of `gateway serve --help`.
func flagsInHelp(help string) []flagEntry {
	var found []flagEntry
	group, text := "", ""
	end := func() {
		if m := helpDefault.FindStringSubmatch(strings.Join(strings.Fields(text), " ")); m != nil && len(found) > 0 {
			found[len(found)-1].value = m[1]
		}
		text = ""
	}
	for line := range strings.Lines(help) {
		line = strings.TrimRight(line, "\n")
		m := helpFlag.FindStringSubmatch(line)
		switch {
		case m != nil:
			end()
			found = append(found, flagEntry{group: group, flag: m[1]})
		case line != "" && line[0] != ' ':
			end()
			group = line
		default:
			text += " " + line
		}
	}
	end()
	return slices.DeleteFunc(found, func(e flagEntry) bool { return e.flag == "config" })
}

// flagsInDocs reads the flags' tables of docs/operating.md.
func flagsInDocs(text string) []flagEntry {
	var found []flagEntry
	group := ""
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if m := docHeading.FindStringSubmatch(line); m != nil {
			group = m[1]
		}
		if m := docFlag.FindStringSubmatch(line); m != nil {
			found = append(found, flagEntry{group, m[1], m[2]})
		}
	}
	return found
}

// docs/operating.md has every flag of serve, under its heading, with its
// default, and no other.
func TestOperatingFlags(t *testing.T) {
	var help bytes.Buffer
	if err := settings.NewSet(append(gatewayGroups(), serveGroup())...).Usage(&help); err != nil {
		t.Fatal(err)
	}
	want, got := flagsInHelp(help.String()), flagsInDocs(operating(t))
	if len(want) < 50 {
		t.Fatalf("only %d flags were found in the help", len(want))
	}
	for _, w := range want {
		if !slices.Contains(got, w) {
			t.Errorf("docs/operating.md lacks --%s under %q with the default %q", w.flag, w.group, w.value)
		}
	}
	for _, g := range got {
		if !slices.Contains(want, g) {
			t.Errorf("docs/operating.md has --%s under %q with the default %q, which is no such flag of serve", g.flag, g.group, g.value)
		}
	}
	if !t.Failed() && !slices.Equal(want, got) {
		t.Error("docs/operating.md has the flags in another order than --help")
	}
}

var docCode = regexp.MustCompile("^\\| (4xx|[0-9]{3}) \\| `([a-z_]+)` \\| [^|]+ \\| [^|]+ \\|$")

// docs/operating.md has every code that an error can have, with its status, and
// no other.
func TestOperatingErrorCodes(t *testing.T) {
	got := map[string]string{}
	for line := range strings.Lines(operating(t)) {
		if m := docCode.FindStringSubmatch(strings.TrimRight(line, "\n")); m != nil {
			if got[m[2]] != "" {
				t.Errorf("docs/operating.md has %s twice", m[2])
			}
			got[m[2]] = m[1]
		}
	}
	want := errorCodes(t, "../../internal/openai", "../../internal/edge", "../../handoff", "stack")
	for _, class := range fault.Classes() {
		if class.Blames() || class == fault.GatewayError {
			want[class.String()] = strconv.Itoa(class.Status())
		}
	}
	for _, code := range slices.Sorted(maps.Keys(want)) {
		if got[code] != want[code] {
			t.Errorf("docs/operating.md has %s with the status %q, not %q", code, got[code], want[code])
		}
	}
	for _, code := range slices.Sorted(maps.Keys(got)) {
		if want[code] == "" {
			t.Errorf("docs/operating.md has %s, which nothing answers", code)
		}
	}
}

// errorCodes collects, from the sources in folders, each code that an
// openai.Error is made with and its status; "4xx" is an engine's own.
func errorCodes(t *testing.T, folders ...string) map[string]string {
	t.Helper()
	c := codes{t: t, makers: map[string]string{}, found: map[string]string{}}
	var funcs []*ast.FuncDecl
	for _, folder := range folders {
		paths, err := filepath.Glob(filepath.Join(folder, "*.go"))
		if err != nil || len(paths) == 0 {
			t.Fatalf("no sources in %s: %v", folder, err)
		}
		for _, path := range paths {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
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
	if len(c.found) < 20 {
		t.Fatalf("only %d codes were found in the sources", len(c.found))
	}
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
			if name := called(n); slices.Contains([]string{"BadGateway", "Unavailable", "GatewayTimeout"}, name) && len(n.Args) > 0 {
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
						made[left.Name] = c.statusOfCall(call)
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

func (c *codes) statusOfCall(call *ast.CallExpr) string { return c.makers[called(call)] }

// note takes in a code that is a literal. Codes that come from elsewhere are
// fault classes, or another error's.
func (c *codes) note(code ast.Expr, status string) {
	lit, ok := code.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return
	}
	name, err := strconv.Unquote(lit.Value)
	if err != nil {
		c.t.Fatal(err)
	}
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
	switch of := of.(type) {
	case *ast.Ident:
		return of.Name == "Error"
	case *ast.SelectorExpr:
		x, ok := of.X.(*ast.Ident)
		return ok && x.Name == "openai" && of.Sel.Name == "Error"
	}
	return false
}

// member is the value of a literal's field; nil where it is absent.
func member(lit *ast.CompositeLit, name string) ast.Expr {
	for _, e := range lit.Elts {
		if kv, ok := e.(*ast.KeyValueExpr); ok {
			if key, ok := kv.Key.(*ast.Ident); ok && key.Name == name {
				return kv.Value
			}
		}
	}
	return nil
}

// called is the name of the func that is called.
func called(call *ast.CallExpr) string {
	switch fun := call.Fun.(type) {
	case *ast.Ident:
		return fun.Name
	case *ast.SelectorExpr:
		return fun.Sel.Name
	}
	return ""
}

// statusOf is the number behind http.StatusX; empty for anything else.
func statusOf(e ast.Expr) string {
	name := ""
	switch e := e.(type) {
	case *ast.SelectorExpr:
		name = e.Sel.Name
	case *ast.Ident:
		name = e.Name
	}
	if name == "StatusOverloaded" {
		return strconv.Itoa(openai.StatusOverloaded)
	}
	for n := 100; n < 600; n++ {
		if text := http.StatusText(n); text != "" && name == "Status"+strings.ReplaceAll(text, " ", "") {
			return strconv.Itoa(n)
		}
	}
	return ""
}

// The readers of help and tables find what is there.
func TestFlagReaders(t *testing.T) {
	help := "Every setting is …\n\n  --config FILE\n      A file.\n\nHTTP\n\n  --http-port N\n      Port.\n      Default: 8000. From 0 to\n      65535. Environment: X.\n" +
		"\nFaults\n\n  --no-fallback\n      Off.\n      Default: on. Environment: X.\n"
	docs := "### HTTP\n\n| flag | default | what | when |\n|---|---|---|---|\n| `--http-port` | 8000 | Port. | never |\n\n### Faults\n\n| `--no-fallback` | on | Off. | never |\n"
	want := "[{HTTP http-port 8000} {Faults no-fallback on}]"
	if got := fmt.Sprint(flagsInHelp(help)); got != want {
		t.Errorf("help: %s, want %s", got, want)
	}
	if got := fmt.Sprint(flagsInDocs(docs)); got != want {
		t.Errorf("docs: %s, want %s", got, want)
	}
}
