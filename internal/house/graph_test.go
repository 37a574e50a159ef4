package house

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "draw the imports in ARCHITECTURE.md again")

// imports is which packages of ours each package's code imports.
type imports map[string]map[string]bool

// reached returns the packages that one or more arrows lead to from the package from.
func (g imports) reached(from string) map[string]bool {
	seen := map[string]bool{}
	var walk func(at string)
	walk = func(at string) {
		for to := range g[at] {
			if !seen[to] {
				seen[to] = true
				walk(to)
			}
		}
	}
	walk(from)
	return seen
}

// cycles returns the packages that import themselves through others.
func (g imports) cycles() []string {
	var found []string
	for _, name := range slices.Sorted(maps.Keys(g)) {
		if g.reached(name)[name] {
			found = append(found, name)
		}
	}
	return found
}

// reduced returns the graph without the arrows that follow from others: a package's import that it also reaches through
// another import.
func (g imports) reduced() imports {
	out := imports{}
	for from, direct := range g {
		out[from] = map[string]bool{}
		for to := range direct {
			indirect := false
			for over := range direct {
				indirect = indirect || over != to && g.reached(over)[to]
			}
			if !indirect {
				out[from][to] = true
			}
		}
	}
	return out
}

func TestGraph(t *testing.T) {
	graph := func(arrows string) imports {
		g := imports{"a": {}, "b": {}, "c": {}, "d": {}}
		for arrow := range strings.FieldsSeq(arrows) {
			g[arrow[:1]][arrow[1:]] = true
		}
		return g
	}
	g := graph("ab ac ad bd")
	assert.Equal(t, graph("ab ac bd"), g.reduced())
	assert.Empty(t, g.cycles())
	assert.Equal(t, []string{"a", "b", "d"}, graph("ab ac ad bd da").cycles())
}

// drawing begins the picture in ARCHITECTURE.md, which a fence ends.
const drawing = "```mermaid\n"

// The picture shows the imports among the packages of a request's way and above as they are: storeys, packages, and the arrows that do not
// follow from others.
func TestPictureShowsTheImports(t *testing.T) {
	shown := []string{"roof", "rooms"}
	g, in := imports{}, map[string][]string{}
	for _, s := range storeys {
		if slices.Contains(shown, s.name) {
			in[s.name] = slices.DeleteFunc(slices.Sorted(maps.Keys(s.storey)), func(name string) bool { return strings.HasSuffix(name, "test") })
			for _, name := range in[s.name] {
				g[name] = map[string]bool{}
			}
		}
	}
	for _, s := range load(t).sources {
		for _, p := range s.imports() {
			if to, ok := ours(p); ok && s.code() && g[s.room] != nil && g[to] != nil {
				g[s.room][to] = true
			}
		}
	}
	id := strings.NewReplacer("/", "_", "cmd/gateway/", "")
	ids := func(names []string) (all []string) {
		for _, name := range names {
			all = append(all, id.Replace(name))
		}
		return all
	}
	var b strings.Builder
	b.WriteString(drawing + "flowchart TD\n")
	for _, name := range shown {
		fmt.Fprintf(&b, "  subgraph %s\n    %s\n  end\n", name, strings.Join(ids(in[name]), "; "))
	}
	arrows := g.reduced()
	for _, from := range slices.Sorted(maps.Keys(arrows)) {
		if to := slices.Sorted(maps.Keys(arrows[from])); len(to) > 0 {
			fmt.Fprintf(&b, "  %s --> %s\n", id.Replace(from), strings.Join(ids(to), " & "))
		}
	}
	file := path.Join(root, "ARCHITECTURE.md")
	raw, err := os.ReadFile(file)
	require.NoError(t, err)
	before, rest, ok := strings.Cut(string(raw), drawing)
	_, after, ended := strings.Cut(rest, "```\n")
	require.True(t, ok && ended, "ARCHITECTURE.md has no picture of the imports")
	want := before + b.String() + "```\n" + after
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(want), 0o644))
	} else if want != string(raw) {
		t.Error("ARCHITECTURE.md shows other imports than the code has: draw them again by go test ./internal/house -update")
	}
}
