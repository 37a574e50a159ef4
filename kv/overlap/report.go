package overlap

import (
	"cmp"
	"slices"
	"strings"
)

// Report is a remote index's result for one prompt. For its ranks it replaces the router's own index and predictions.
type Report struct {
	Layout *Layout // the ranks that Tiers is about
	Tiers  []Tiers // an element for each rank of Layout, in its order; read-only
}

// Tiers is how much of a prompt one rank has cached, in blocks: the leading ones
// on its device, and what each slower tier adds to that run.
type Tiers struct {
	Known                      bool // false: nothing is known of the rank
	Device, Host, Disk, Shared int32
}

// Rank is one data-parallel rank of a worker.
type Rank struct {
	Worker string // its id
	Rank   int    // from 0
}

// compare orders ranks by worker, then by rank.
func (r Rank) compare(o Rank) int {
	return cmp.Or(strings.Compare(r.Worker, o.Worker), cmp.Compare(r.Rank, o.Rank))
}

// Layout is an immutable order of ranks, shared by many reports: a router works
// out once for a layout and a snapshot of its pool where each slot stands.
type Layout struct{ ranks []Rank }

// NewLayout returns the layout of some ranks, sorted. No rank may be there twice.
func NewLayout(ranks []Rank) *Layout {
	ranks = slices.Clone(ranks)
	slices.SortFunc(ranks, Rank.compare)
	return &Layout{ranks}
}

// Len is the number of ranks.
func (l *Layout) Len() int { return len(l.ranks) }

// Rank returns the i-th rank.
func (l *Layout) Rank(i int) Rank { return l.ranks[i] }
