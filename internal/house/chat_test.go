package house

import (
	"flag"
	"go/ast"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var profiles = flag.String("chat", "", "coverage profiles of 8 and of 88 chats, as few,many: write testdata/chat.txt again")

// mostChatTypes is how many types one streamed chat over two legs may meet. It only falls.
const mostChatTypes = 231

// The types of a chat are the module's named structs and interfaces that are receivers or parameters of the functions that
// it runs. testdata/chat.txt lists these functions, of the product alone: those that run once more for each chat more.
//
//	bench='go test ./cmd/gateway/e2e/real -run ^$ -bench TwoLegs -covermode atomic -coverpkg ./...'
//	$bench -benchtime 8x -coverprofile /tmp/few && $bench -benchtime 88x -coverprofile /tmp/many
//	go test ./internal/house -run TestTypesOfAChat -chat /tmp/few,/tmp/many
func TestTypesOfAChat(t *testing.T) {
	tr, list := load(t), filepath.Join("testdata", "chat.txt")
	if *profiles != "" {
		few, many, _ := strings.Cut(*profiles, ",")
		require.NoError(t, os.WriteFile(list, []byte(strings.Join(ranPerChat(t, tr, few, many), "\n")+"\n"), 0o644))
	}
	raw, err := os.ReadFile(list)
	require.NoError(t, err)
	ran := map[string]bool{}
	for line := range strings.Lines(string(raw)) {
		ran[strings.TrimSpace(line)] = true
	}
	found, types := 0, map[string]bool{}
	declared := structsOf(tr)
	for _, s := range tr.sources {
		for _, d := range s.ast.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && !s.test && ran[nameOf(s, f)] {
				found++
				signature(s, f, declared, types)
			}
		}
	}
	assert.Greater(t, found, len(ran)*3/4, "functions of testdata/chat.txt that are left: write it again, see TestTypesOfAChat")
	assert.LessOrEqual(t, len(types), mostChatTypes, "types that one chat meets: %s", strings.Join(slices.Sorted(maps.Keys(types)), " "))
}

// nameOf is a function's folder and name, with the type of a method.
func nameOf(s *source, f *ast.FuncDecl) string {
	name := f.Name.Name
	if f.Recv != nil {
		ast.Inspect(f.Recv.List[0].Type, func(n ast.Node) bool {
			if of, ok := n.(*ast.Ident); ok && !strings.Contains(name, ".") {
				name = of.Name + "." + name
			}
			return true
		})
	}
	return s.room + " " + name
}

// structsOf is the struct and interface types of each folder.
func structsOf(tr *tree) map[string]bool {
	all := map[string]bool{}
	for _, s := range tr.sources {
		ast.Inspect(s.ast, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok || s.test {
				return true
			}
			switch spec.Type.(type) {
			case *ast.StructType, *ast.InterfaceType:
				all[s.room+"."+spec.Name.Name] = true
			}
			return false
		})
	}
	return all
}

// signature adds the types of f's receiver and parameters to types.
func signature(s *source, f *ast.FuncDecl, declared, types map[string]bool) {
	from := map[string]string{}
	for _, i := range s.ast.Imports {
		of, _ := strconv.Unquote(i.Path.Value)
		name := path.Base(of)
		if i.Name != nil {
			name = i.Name.Name
		}
		from[name] = strings.TrimPrefix(of, module+"/")
	}
	add := func(name string) {
		if declared[name] {
			types[name] = true
		}
	}
	look := func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok {
				add(from[x.Name] + "." + n.Sel.Name)
			}
			return false
		case *ast.Field:
			return n.Type != nil
		case *ast.Ident:
			add(s.room + "." + n.Name)
		}
		return true
	}
	for _, fields := range []*ast.FieldList{f.Recv, f.Type.Params} {
		if fields == nil {
			continue
		}
		for _, field := range fields.List {
			ast.Inspect(field.Type, look)
		}
	}
}

// ranPerChat is the product's functions with a statement that ran for each of the 80 chats that two profiles differ by.
func ranPerChat(t *testing.T, tr *tree, few, many string) (names []string) {
	counts := map[string]int{}
	for profile, sign := range map[string]int{few: -1, many: 1} {
		raw, err := os.ReadFile(profile)
		require.NoError(t, err)
		for line := range strings.Lines(string(raw)) { // path:line.column,line.column statements count
			place, rest, _ := strings.Cut(strings.TrimPrefix(line, module+"/"), ",")
			fields := strings.Fields(rest)
			if len(fields) == 3 {
				n, err := strconv.Atoi(fields[2])
				require.NoError(t, err)
				place, _, _ = strings.Cut(place, ".go:")
				at, _, _ := strings.Cut(line[strings.Index(line, ".go:")+4:], ".")
				counts[place+".go:"+at] += sign * n
			}
		}
	}
	for _, s := range tr.sources {
		if s.test || strings.HasPrefix(s.path, "lab/") || strings.Contains(s.path, "testkit") || strings.Contains(s.path, "e2e") {
			continue
		}
		for _, d := range s.ast.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Body == nil {
				continue
			}
			for line := s.fset.Position(f.Body.Lbrace).Line; line <= s.fset.Position(f.Body.Rbrace).Line; line++ {
				if counts[s.path+":"+strconv.Itoa(line)] >= 72 {
					names = append(names, nameOf(s, f))
					break
				}
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
