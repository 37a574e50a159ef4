package console

import (
	"fmt"

	"github.com/tandem-pd/tandem/pools"
)

// maxDrawnWorkers bounds the drawn workers of a pool; the table has them all.
const maxDrawnWorkers = 12

// diagram is the picture of one model's fleet: client, queue, pools and the paths between them.
type diagram struct {
	Narrow        bool
	Width, Height int
	Client, Queue node
	Columns       []column
	Ways          []way
}

type node struct{ X, Y, W, H int }

// Right, Bottom, CX and CY position a node's parts.
func (n node) Right() int  { return n.X + n.W }
func (n node) CX() int     { return n.X + n.W/2 }
func (n node) CY() int     { return n.Y + n.H/2 }
func (n node) Bottom() int { return n.Y + n.H }

type column struct {
	Title string
	X, Y  int
	Nodes []workerNode
	More  int // workers not drawn
	MoreY int
}

type workerNode struct {
	node
	*worker
}

// BarX, BarY and BarW position the bar in the node.
func (n workerNode) BarX() int { return n.X + 12 }
func (n workerNode) BarY() int { return n.Bottom() - 12 }
func (n workerNode) BarW() int { return n.W - 24 }

// way is a curve between two nodes.
type way struct{ Path, From, To string }

// Diagrams are the picture for wide and for narrow screens.
func (m *model) Diagrams() []diagram { return []diagram{m.diagram(false), m.diagram(true)} }

var titles = map[pools.Role]string{pools.Prefill: "Prefill", pools.Decode: "Decode", pools.Both: "Prefill and decode"}

func (m *model) diagram(narrow bool) diagram {
	d := diagram{Narrow: narrow, Width: 1080}
	top, high, gap, rows := 46, 62, 14, 1
	if narrow {
		d.Width, top = 366, 140
	}
	var present []*pool
	for i := range m.Pools {
		if p := &m.Pools[i]; len(p.Workers) > 0 {
			present = append(present, p)
			rows = max(rows, min(len(p.Workers), maxDrawnWorkers))
		}
	}
	more := 0
	for i, p := range present {
		c := column{Title: titles[p.Role], Y: top - 18}
		width := 270
		switch {
		case narrow && len(present) == 1:
			c.X, width = 4, 358
		case narrow:
			width = (d.Width - 8 - (len(present)-1)*12) / len(present)
			c.X = 4 + i*(width+12)
		default:
			c.X = 400 + i*(width+120)
			if len(present) > 2 {
				width = 200
				c.X = 380 + i*(width+40)
			}
		}
		drawn := p.Workers
		if len(drawn) > maxDrawnWorkers { // those that need a look come first
			drawn = view{}.arrange(p).Groups[0].Workers
		}
		for k := range drawn {
			if k == maxDrawnWorkers {
				c.More, more = len(p.Workers)-k, 26
				c.MoreY = top + k*(high+gap) + 8
				break
			}
			c.Nodes = append(c.Nodes, workerNode{node{c.X, top + k*(high+gap), width, high}, &drawn[k]})
		}
		d.Columns = append(d.Columns, c)
	}
	d.Height = top + rows*(high+gap) + more
	middle := top + (rows*(high+gap)-gap)/2
	if narrow {
		d.Client, d.Queue = node{d.Width - 154, 8, 150, 66}, node{4, 8, 150, 66}
	} else {
		d.Client, d.Queue = node{2, middle - 33, 120, 66}, node{200, middle - 33, 120, 66}
	}
	d.join()
	return d
}

// join draws the paths: client to queue, queue to the first pool, each pool to the next. A narrow screen has room for
// one path down from the queue, and one between neighbours.
func (d *diagram) join() {
	add := func(a, b string, format string, at ...any) {
		d.Ways = append(d.Ways, way{fmt.Sprintf(format, at...), a, b})
	}
	across := func(from, to node, a, b string) {
		middle := (from.Right() + to.X) / 2
		add(a, b, "M%d %d C%d %d %d %d %d %d", from.Right(), from.CY(), middle, from.CY(), middle, to.CY(), to.X, to.CY())
	}
	if d.Narrow {
		add("client", "queue", "M%d %d H%d", d.Client.X, d.Client.CY(), d.Queue.Right())
		if len(d.Columns) > 0 {
			add("queue", "pool", "M%d %d V%d", d.Queue.CX(), d.Queue.Bottom(), d.Columns[0].Nodes[0].Y)
		}
	} else {
		across(d.Client, d.Queue, "client", "queue")
	}
	for i := range d.Columns {
		for k, n := range d.Columns[i].Nodes {
			switch {
			case i == 0 && !d.Narrow:
				across(d.Queue, n.node, "queue", n.ID)
			case i > 0 && d.Narrow && k < len(d.Columns[i-1].Nodes):
				before := d.Columns[i-1].Nodes[k]
				across(before.node, n.node, before.ID, n.ID)
			case i > 0 && !d.Narrow:
				for _, before := range d.Columns[i-1].Nodes {
					across(before.node, n.node, before.ID, n.ID)
				}
			}
		}
	}
}
