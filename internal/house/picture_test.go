package house

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"math"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

var update = flag.Bool("update", false, "draw docs/architecture.svg again")

// picture is where the import picture is kept, from the root.
const picture = "docs/architecture.svg"

// undrawn are the rows that the picture leaves out: packages of tests alone, and
// commands that import nothing of ours.
var undrawn = []string{"internal/house", "internal/kvevents", "internal/kvevents/eventstest", "internal/otlp/otlptest", "cmd/gateway/e2e", "cmd/gateway/openaiclient", "lab/porttest", "deploy/compose/images/nats", "deploy/compose/images/etcd"}

func drawn(name string) bool {
	return !slices.Contains(undrawn, name) && !strings.HasPrefix(name, "cmd/gateway/e2e/")
}

// The picture shows the imports as they are: storeys, packages, and the arrows
// that do not follow from others.
func TestPictureShowsTheImports(t *testing.T) {
	g := importsOf(load(t), drawn)
	if cycles := g.cycles(); len(cycles) > 0 {
		t.Fatalf("packages import each other in a circle: %v", cycles)
	}
	var back []string
	for from, direct := range g {
		_, place, ok := find(from)
		if !ok {
			t.Fatalf("%s stands in no storey", from)
		}
		for to := range direct {
			if _, below, _ := find(to); below > place {
				back = append(back, from+" -> "+to)
			}
		}
	}
	if len(back) > 0 {
		t.Fatalf("arrows that run up: %v", slices.Sorted(slices.Values(back)))
	}
	want := draw(g)
	file := path.Join(root, picture)
	if *update {
		if err := os.WriteFile(file, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s shows other imports than the code has (%v): draw it again by go test ./internal/house -update", picture, err)
	}
}

// What the picture measures, in pixels.
const (
	boxHeight = 26
	rowHeight = 58
	bandPad   = 16 // above and below the boxes of a storey
	margin    = 96 // at the left, for the storeys' names
	letter    = 6.7
)

// draw returns the picture of the imports.
func draw(g imports) []byte {
	shown := g.reduced()
	row, bands := map[string]int{}, make([]int, len(storeys)) // bands: rows of each storey
	first := 0
	for place, s := range storeys {
		own := func(name string) bool { _, ok := s.storey[name]; return ok }
		for name := range g {
			if own(name) {
				row[name] = first + g.height(name, own)
				bands[place] = max(bands[place], 1+row[name]-first)
			}
		}
		first += bands[place]
	}
	l := arrange(shown, row, func(name string) float64 { return 18 + letter*float64(utf8.RuneCountInString(label(name))) })

	y, heights, width := make([]float64, len(l)), make([]float64, len(storeys)), 0.
	top := 44.
	for place := len(storeys) - 1; place >= 0; place-- {
		above := 0
		for _, n := range bands[place+1:] {
			above += n
		}
		heights[place] = top
		for k := range bands[place] {
			y[len(l)-1-above-k] = top + bandPad + float64(k)*rowHeight
		}
		top += float64(bands[place])*rowHeight - (rowHeight - boxHeight) + 2*bandPad + 8
	}
	for _, nodes := range l {
		end := nodes[len(nodes)-1]
		width = max(width, end.x+end.wide/2)
	}
	full := width + margin + 24

	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,monospace" font-size="11">
<title>Packages and imports</title>
<style>
.page{fill:#fff}.band{fill:#f3f4f6}.name{fill:#4b5563;font-weight:bold}.note{fill:#4b5563}
.box{fill:#fff;stroke:#6b7280}.text{fill:#111827}.way{fill:none;stroke-width:1.2;stroke-opacity:.75}.tip{stroke:none}
%s@media(prefers-color-scheme:dark){.page{fill:#0d1117}.band{fill:#161b22}.name,.note{fill:#9ca3af}.box{fill:#0d1117;stroke:#8b949e}.text{fill:#e6edf3}
%s}
</style>
<rect class="page" width="100%%" height="100%%"/>
`, full, top+8, colours("#0f766e", "#1d4ed8", "#b45309", "#7e22ce", "#be123c"), colours("#2dd4bf", "#79a8ff", "#f5b452", "#c792ea", "#ff8fa3"))
	fmt.Fprintf(&b, "<text class=\"note\" x=\"16\" y=\"26\">%d packages, %d imports: the %d drawn imply the others. Back arrows 0, cycles 0.</text>\n", len(g), g.count(), shown.count())
	for place, s := range storeys {
		h := float64(bands[place])*rowHeight - (rowHeight - boxHeight) + 2*bandPad
		fmt.Fprintf(&b, "<rect class=\"band\" x=\"8\" y=\"%.0f\" width=\"%.0f\" height=\"%.0f\" rx=\"6\"/><text class=\"name\" x=\"20\" y=\"%.0f\">%s</text>\n",
			heights[place], full-16, h, heights[place]+h/2+4, s.name)
	}
	middle := func(n *node) float64 { return margin + n.x }
	for _, nodes := range l {
		for _, n := range nodes {
			for _, to := range n.down {
				x1, y1, x2, y2 := middle(n), y[n.row]+boxHeight, middle(to), y[to.row]
				if n.bend {
					y1 = y[n.row] + boxHeight/2
				}
				if to.bend {
					y2 = y[to.row] + boxHeight/2
				}
				_, colour, _ := find(to.name)
				fmt.Fprintf(&b, "<path class=\"way s%d\" d=\"M%.0f %.0fC%.0f %.0f %.0f %.0f %.0f %.0f\"/>\n", colour, x1, y1, x1, (y1+y2)/2, x2, (y1+y2)/2, x2, y2)
				if !to.bend {
					fmt.Fprintf(&b, "<path class=\"tip f%d\" d=\"M%.0f %.0fl-3.5 -7h7z\"/>\n", colour, x2, y2)
				}
			}
		}
	}
	for _, nodes := range l {
		for _, n := range nodes {
			if n.bend {
				continue
			}
			left := math.Round(middle(n) - n.wide/2)
			fmt.Fprintf(&b, "<rect class=\"box\" x=\"%.0f\" y=\"%.0f\" width=\"%.0f\" height=\"%d\" rx=\"4\"/><text class=\"text\" x=\"%.0f\" y=\"%.0f\" text-anchor=\"middle\">%s</text>\n",
				left, y[n.row], n.wide, boxHeight, middle(n), y[n.row]+17, label(n.name))
		}
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

// colours are the style's rules for the arrows to each storey.
func colours(of ...string) string {
	var b strings.Builder
	for i, c := range of {
		fmt.Fprintf(&b, ".s%d{stroke:%s}.f%d{fill:%s}", i, c, i, c)
	}
	return b.String() + "\n"
}

// label is a package's name in the picture: its storey says the rest.
func label(name string) string {
	for _, prefix := range []string{"internal/", "cmd/gateway/"} {
		if rest, ok := strings.CutPrefix(name, prefix); ok {
			return rest
		}
	}
	return name
}

// Drawing the same imports twice gives the same bytes.
func TestPictureIsStable(t *testing.T) {
	g := importsOf(load(t), drawn)
	first := draw(g)
	for range 3 {
		if !bytes.Equal(draw(maps.Clone(g)), first) {
			t.Fatal("the same imports were drawn in two ways")
		}
	}
}
