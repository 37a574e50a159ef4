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
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var profiles = flag.String("chat", "", "coverage profiles of 8 and of 88 chats, as few,many: write testdata/chat.txt again")

// mostCrossing bounds the types that cross packages on one streamed chat over two legs, and mostMet all types it meets.
const mostCrossing, mostMet = 45, 240

// chatTypes begins the list of the types in ARCHITECTURE.md.
const chatTypes = "Types that cross packages on a streamed two-leg chat: "

// A chat meets the module's named structs and interfaces that are receivers or parameters of the functions that it runs. A type
// crosses packages if a function of another package takes it. testdata/chat.txt lists the functions: those of the product
// that run once more for each chat more, KV events left out.
//
//	bench='go test ./cmd/gateway/e2e/real -run ^$ -bench TwoLegs -covermode atomic -coverpkg ./...'
//	$bench -benchtime 8x -coverprofile /tmp/few && $bench -benchtime 88x -coverprofile /tmp/many
//	go test ./internal/house -run TestTypesOfAChat -update -chat /tmp/few,/tmp/many
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
	found, met, crossing := 0, map[string]bool{}, map[string]bool{}
	declared := structsOf(tr)
	for _, s := range tr.sources {
		for _, d := range s.ast.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && !s.test && ran[nameOf(s, f)] {
				found++
				signature(s, f, declared, met, crossing)
			}
		}
	}
	assert.Greater(t, found, len(ran)*3/4, "functions of testdata/chat.txt that are left: write it again, see TestTypesOfAChat")
	assert.LessOrEqual(t, len(crossing), mostCrossing, "types that cross packages on a chat")
	assert.LessOrEqual(t, len(met), mostMet, "types that a chat meets: %s", strings.Join(slices.Sorted(maps.Keys(met)), " "))
	file := path.Join(root, "ARCHITECTURE.md")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	before, rest, ok := strings.Cut(string(text), chatTypes)
	_, after, ended := strings.Cut(rest, ".\n")
	require.True(t, ok && ended, "ARCHITECTURE.md has no list of a chat's types")
	want := before + wrapped(chatTypes+grouped(crossing)+".") + "\n" + after
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(want), 0o644))
	} else if want != string(text) {
		t.Error("ARCHITECTURE.md lists other types of a chat than cross packages: write them again by go test ./internal/house -update")
	}
}

// grouped lists types by package: "decode: Call, Transcript · fault: Error".
func grouped(types map[string]bool) string {
	by := map[string][]string{}
	for _, name := range slices.Sorted(maps.Keys(types)) {
		room, name, _ := strings.Cut(path.Base(name), ".")
		by[room] = append(by[room], name)
	}
	var all []string
	for _, room := range slices.Sorted(maps.Keys(by)) {
		all = append(all, room+": "+strings.Join(by[room], ", "))
	}
	return strings.Join(all, " · ")
}

// wrapped breaks text into lines of up to 138 letters.
func wrapped(text string) string {
	var b strings.Builder
	used := 0
	for word := range strings.FieldsSeq(text) {
		if n := utf8.RuneCountInString(word); used > 0 && used+1+n > 138 {
			b.WriteByte('\n')
			used = 0
		} else if used > 0 {
			b.WriteByte(' ')
			used++
		}
		b.WriteString(word)
		used += utf8.RuneCountInString(word)
	}
	return b.String()
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

// signature adds the types of f's receiver and parameters to met, and those of other packages to crossing.
func signature(s *source, f *ast.FuncDecl, declared, met, crossing map[string]bool) {
	from := map[string]string{}
	for _, i := range s.ast.Imports {
		of, _ := strconv.Unquote(i.Path.Value)
		name := path.Base(of)
		if i.Name != nil {
			name = i.Name.Name
		}
		from[name] = strings.TrimPrefix(of, module+"/")
	}
	look := func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok {
				if name := from[x.Name] + "." + n.Sel.Name; declared[name] {
					met[name], crossing[name] = true, true
				}
			}
			return false
		case *ast.Ident:
			if name := s.room + "." + n.Name; declared[name] {
				met[name] = true
			}
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

// events are the packages that KV events pass.
var events = map[string]bool{"kv/follow": true, "kv/view": true, "kv/wire": true, "kv/zmq": true}

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
		if s.test || strings.HasPrefix(s.path, "lab/") || strings.Contains(s.path, "testkit") || strings.Contains(s.path, "e2e") ||
			events[s.room] {
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
