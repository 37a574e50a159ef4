package house

import (
	"cmp"
	"maps"
	"slices"
	"testing"
)

// imports is which packages of ours each package's code imports.
type imports map[string]map[string]bool

// importsOf reads the imports of the code, without tests, between the packages
// that drawn accepts.
func importsOf(tree *tree, drawn func(name string) bool) imports {
	g := imports{}
	for _, s := range tree.sources {
		if !s.code() || !drawn(s.room) {
			continue
		}
		if g[s.room] == nil {
			g[s.room] = map[string]bool{}
		}
		for _, p := range s.imports() {
			if to, ok := ours(p); ok && drawn(to) {
				g[s.room][to] = true
			}
		}
	}
	return g
}

// count returns the number of arrows.
func (g imports) count() int {
	n := 0
	for _, to := range g {
		n += len(to)
	}
	return n
}

// reached returns the packages that one or more arrows lead to from the package
// from.
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

// reduced returns the graph without the arrows that follow from others: a
// package's import that it also reaches through another import.
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

// height returns the length of the longest way down from the package, counted in
// arrows to packages that within accepts.
func (g imports) height(from string, within func(name string) bool) int {
	most := 0
	for to := range g[from] {
		if within(to) {
			most = max(most, 1+g.height(to, within))
		}
	}
	return most
}

func TestGraph(t *testing.T) {
	set := func(names ...string) map[string]bool {
		m := map[string]bool{}
		for _, n := range names {
			m[n] = true
		}
		return m
	}
	g := imports{"a": set("b", "c", "d"), "b": set("d"), "c": set(), "d": set()}
	if got := g.reduced(); !maps.EqualFunc(got, imports{"a": set("b", "c"), "b": set("d"), "c": set(), "d": set()}, maps.Equal[map[string]bool, map[string]bool]) {
		t.Errorf("reduced: %v", got)
	}
	if got := g.cycles(); len(got) != 0 {
		t.Errorf("cycles without one: %v", got)
	}
	g["d"]["a"] = true
	if got := g.cycles(); !slices.Equal(got, []string{"a", "b", "d"}) {
		t.Errorf("cycles: %v", got)
	}
	if got := imports.height(imports{"a": set("b"), "b": set("c")}, "a", func(name string) bool { return name != "c" }); got != 1 {
		t.Errorf("height %d, want 1", got)
	}
}

// node is a place in a row of the picture: a package, or a point that the arrows
// to a package of a lower row pass.
type node struct {
	name string // of the package, or of the one that the arrows lead to
	bend bool
	row  int // 0 is the lowest
	wide float64
	x    float64 // of its middle
	down []*node
	up   []*node
}

// layout is the picture's nodes by row, in their order from left to right.
type layout [][]*node

// arrange places the packages on their rows and orders each row so that few
// arrows cross. Arrows to one package join on their way to it.
func arrange(g imports, row map[string]int, wide func(name string) float64) layout {
	rows := make(layout, 1+slices.Max(slices.Collect(maps.Values(row))))
	type key struct {
		name string
		row  int
	}
	nodes := map[key]*node{}
	at := func(name string, bend bool, row int) *node {
		if n, ok := nodes[key{name, row}]; ok {
			return n
		}
		n := &node{name: name, bend: bend, row: row, wide: 10}
		if !bend {
			n.wide = wide(name)
		}
		nodes[key{name, row}] = n
		rows[row] = append(rows[row], n)
		return n
	}
	for _, from := range slices.Sorted(maps.Keys(g)) {
		at(from, false, row[from])
	}
	for _, from := range slices.Sorted(maps.Keys(g)) {
		for _, to := range slices.Sorted(maps.Keys(g[from])) {
			above := at(from, false, row[from])
			for r := row[from] - 1; r >= row[to]; r-- {
				n := at(to, r > row[to], r)
				if !slices.Contains(above.down, n) {
					above.down, n.up = append(above.down, n), append(n.up, above)
				}
				above = n
			}
		}
	}
	best, fewest := rows.clone(), rows.crossings()
	for range 40 {
		for _, downwards := range []bool{true, false} {
			rows.sweep(downwards)
			if n := rows.crossings(); n < fewest {
				best, fewest = rows.clone(), n
			}
		}
	}
	for best.swap() {
	}
	best.place()
	return best
}

func (l layout) clone() layout {
	out := make(layout, len(l))
	for i, row := range l {
		out[i] = slices.Clone(row)
	}
	return out
}

// sweep orders each row by where its nodes' neighbours stand in the row before.
func (l layout) sweep(downwards bool) {
	l.number()
	for i := range l {
		row := l[i]
		if downwards {
			row = l[len(l)-1-i]
		}
		slices.SortStableFunc(row, func(a, b *node) int { return cmp.Compare(a.middle(downwards), b.middle(downwards)) })
		l.number()
	}
}

// number sets x to the places in the rows, as shares of their lengths.
func (l layout) number() {
	for _, row := range l {
		for i, n := range row {
			n.x = (float64(i) + .5) / float64(len(row))
		}
	}
}

// middle is the mean of the neighbours above, or below, and the node's own place
// where it has none.
func (n *node) middle(above bool) float64 {
	near := n.down
	if above {
		near = n.up
	}
	if len(near) == 0 {
		return n.x
	}
	sum := 0.
	for _, m := range near {
		sum += m.x
	}
	return sum / float64(len(near))
}

// crossings counts the arrows that cross between two rows.
func (l layout) crossings() int {
	l.number()
	n := 0
	for _, row := range l {
		for i, a := range row {
			for _, b := range row[i+1:] {
				n += crossed(a.down, b.down)
			}
		}
	}
	return n
}

// crossed counts the arrows that cross, of a node with the neighbours left and of
// another to its right with the neighbours right.
func crossed(left, right []*node) int {
	n := 0
	for _, p := range left {
		for _, q := range right {
			if p.x > q.x {
				n++
			}
		}
	}
	return n
}

// swap exchanges nodes that stand next to each other where fewer arrows cross
// then, and reports whether it did.
func (l layout) swap() bool {
	l.number()
	swapped := false
	for _, row := range l {
		for i := range len(row) - 1 {
			a, b := row[i], row[i+1]
			if crossed(b.down, a.down)+crossed(b.up, a.up) < crossed(a.down, b.down)+crossed(a.up, b.up) {
				row[i], row[i+1] = b, a
				a.x, b.x = b.x, a.x
				swapped = true
			}
		}
	}
	return swapped
}

// gap is the least space between two nodes of a row.
const gap = 18

// place sets x so that arrows run as straight as the order of the rows and the
// nodes' widths allow. The leftmost edge comes to 0.
func (l layout) place() {
	for _, row := range l {
		x := 0.
		for _, n := range row {
			n.x = x + n.wide/2
			x += n.wide + gap
		}
		for _, n := range row {
			n.x -= x / 2
		}
	}
	for round := range 120 {
		for i := range l {
			row := l[i]
			if round%2 == 0 {
				row = l[len(l)-1-i]
			}
			spread(row)
		}
	}
	left := 0.
	for _, row := range l {
		left = min(left, row[0].x-row[0].wide/2)
	}
	for _, row := range l {
		for _, n := range row {
			n.x -= left
		}
	}
}

// spread moves each node of a row to the mean of its neighbours in other rows,
// as near as order and gaps allow: an isotonic regression.
func spread(row []*node) {
	type block struct {
		sum   float64
		count int
	}
	var blocks []block
	offsets := make([]float64, len(row))
	for i, n := range row {
		if i > 0 {
			offsets[i] = offsets[i-1] + (row[i-1].wide+n.wide)/2 + gap
		}
		wish, near := n.x, slices.Concat(n.up, n.down)
		if len(near) > 0 {
			wish = 0
			for _, m := range near {
				wish += m.x / float64(len(near))
			}
		}
		blocks = append(blocks, block{wish - offsets[i], 1})
		for k := len(blocks) - 1; k > 0 && blocks[k].sum/float64(blocks[k].count) < blocks[k-1].sum/float64(blocks[k-1].count); k-- {
			blocks[k-1].sum += blocks[k].sum
			blocks[k-1].count += blocks[k].count
			blocks = blocks[:k]
		}
	}
	i := 0
	for _, b := range blocks {
		for range b.count {
			row[i].x = b.sum/float64(b.count) + offsets[i]
			i++
		}
	}
}
