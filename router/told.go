package router

import (
	"cmp"
	"slices"
	"strings"
)

// Told is what an index elsewhere says of one prompt. Of the ranks that it knows it
// is believed before the router's own index and its predictions; those are for the
// others.
type Told struct {
	// Layout is which ranks Held is about.
	Layout *Layout
	// Held has an element for each rank of Layout, in its order. It must not be
	// written to.
	Held []Held
}

// Held is how much of a prompt one rank holds, in blocks: the leading ones on its
// device, and what each slower tier adds to that run.
type Held struct {
	Known                      bool // else nothing is said of the rank
	Device, Host, Disk, Remote int32
}

// Layout is an order of ranks, made once for many answers: a router works out once
// for a layout and a snapshot of its pool which candidate is told of where.
type Layout struct{ ranks []Rank }

// NewLayout returns the layout of some ranks, which it sorts by worker and rank.
// None may be there twice.
func NewLayout(ranks []Rank) *Layout {
	ranks = slices.Clone(ranks)
	slices.SortFunc(ranks, Rank.compare)
	return &Layout{ranks}
}

// Len is how many ranks there are.
func (l *Layout) Len() int { return len(l.ranks) }

// Rank returns the i-th rank.
func (l *Layout) Rank(i int) Rank { return l.ranks[i] }

func (r Rank) compare(o Rank) int {
	return cmp.Or(strings.Compare(r.Worker, o.Worker), cmp.Compare(r.Rank, o.Rank))
}

// placing is where a layout tells of each seat of a view.
type placing struct {
	layout *Layout
	at     []int32 // by seat; -1 nowhere
}

// place finds the seats of a view in a layout. Both are in one order.
func (v *view) place(l *Layout) *placing {
	if p := v.placed.Load(); p != nil && p.layout == l {
		return p
	}
	p := &placing{l, make([]int32, len(v.seats))}
	next := 0
	for i := range v.seats {
		is := Rank{v.seats[i].worker.ID, int(v.seats[i].rank)}
		for next < len(l.ranks) && l.ranks[next].compare(is) < 0 {
			next++
		}
		p.at[i] = -1
		if next < len(l.ranks) && l.ranks[next] == is {
			p.at[i] = int32(next)
		}
	}
	v.placed.Store(p)
	return p
}

// hear takes in what the request was told, and reports whether that is of every
// seat.
func (c *choice) hear(told *Told) (whole bool) {
	if told == nil || told.Layout == nil || len(told.Held) != told.Layout.Len() {
		return false
	}
	c.others, c.placed = told.Held, c.view.place(told.Layout)
	for _, at := range c.placed.at {
		if at < 0 || !c.others[at].Known {
			return false
		}
	}
	return true
}

// heard is what was told of the i-th seat, nil where nothing was.
func (c *choice) heard(i int) *Held {
	if c.placed == nil {
		return nil
	}
	if at := c.placed.at[i]; at >= 0 && c.others[at].Known {
		return &c.others[at]
	}
	return nil
}

// Blind reports whether what is cached changes no choice and no booking of this
// router: nothing need be looked up for it.
func (r *Router) Blind() bool { return r.blind }
