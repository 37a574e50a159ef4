package overlap

import (
	"cmp"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/pools"
)

// Source is one place where overlaps come from.
type Source interface {
	// Add adds the source's blocks of l's prompt to l.Blocks. Sources run in order; each sees the earlier ones'
	// results.
	Add(l *Lookup)
}

// Prompt is what overlaps are looked up for.
type Prompt struct {
	Hashes []uint64 // the sequence hashes of its full blocks
	// Text means that Hashes name granules of its text ([index.GranuleBlocks]), since its tokens are unknown. KV events
	// do not match them: overlaps are predicted for every slot.
	Text   bool
	Remote *Report // a remote index's report, nil for none
}

// Lookup is one prompt's overlaps with the slots of a pool. Its memory is used again: the zero value is ready.
type Lookup struct {
	Blocks   []uint32 // how many leading blocks of the prompt each slot is taken to have cached on its device
	Reported []uint32 // the part of Blocks that workers or a remote index reported

	prompt   Prompt
	granules []uint64 // of the prompt, where something is assumed
	room     []uint64 // memory of granules
	slots    *Slots
	base     []uint32 // memory of Reported

	tiers []Tiers // of the remote index; nil where none was asked
	at    []int32 // by slot: its place in tiers, -1 none
	whole bool    // the remote index reported every slot

	matched                   bool // the prompt was looked up in the events' index
	events, predicted, recent index.Matches
}

func (l *Lookup) start(slots *Slots, p Prompt) {
	l.prompt, l.slots = p, slots
	l.tiers, l.at, l.whole, l.matched = nil, nil, false, false
	if n := len(slots.ranks); cap(l.Blocks) < n {
		l.Blocks = make([]uint32, n)
	} else {
		l.Blocks = l.Blocks[:n]
		clear(l.Blocks)
	}
	l.Reported = l.Blocks
}

// End drops the prompt and the slots. Blocks stays for the next lookup.
func (l *Lookup) End() {
	l.prompt, l.granules, l.slots, l.Reported, l.tiers, l.at = Prompt{}, nil, nil, nil, nil, nil
}

// cut makes the prompt's granules.
func (l *Lookup) cut() {
	l.granules = l.prompt.Hashes
	if !l.prompt.Text {
		l.room = index.AppendGranules(l.room[:0], l.prompt.Hashes)
		l.granules = l.room
	}
}

// place applies a remote index's report.
func (l *Lookup) place() {
	r := l.prompt.Remote
	if r == nil || r.Layout == nil || len(r.Tiers) != r.Layout.Len() {
		return
	}
	l.tiers, l.at, l.whole = r.Tiers, l.slots.place(r.Layout), true
	for _, at := range l.at {
		if at < 0 || !l.tiers[at].Known {
			l.whole = false
			return
		}
	}
}

// report returns the remote index's report of slot i, nil for none.
func (l *Lookup) report(i int) *Tiers {
	if l.at == nil {
		return nil
	}
	if at := l.at[i]; at >= 0 && l.tiers[at].Known {
		return &l.tiers[at]
	}
	return nil
}

// Slower returns how many blocks each tier below the device adds to slot i's run,
// as workers or a remote index reported.
func (l *Lookup) Slower(i int) (host, disk, shared int32) {
	if r := l.report(i); r != nil {
		return r.Host, r.Disk, r.Shared
	}
	if o := l.slots.events[i]; o != index.NoOwner && l.matched {
		m := &l.events
		return int32(m.Tier(o, index.Host)), int32(m.Tier(o, index.Disk)), int32(m.Tier(o, index.Shared))
	}
	return 0, 0, 0
}

// events is the source of workers' KV events.
type events struct{ idx *index.Index }

func (e events) Add(l *Lookup) {
	if l.whole || l.prompt.Text || !l.slots.followed {
		return
	}
	e.idx.Match(l.prompt.Hashes, &l.events)
	l.events.Raise(l.Blocks, l.slots.counted)
	l.matched = true
}

// remote is the source of the request's remote report. It replaces the events.
type remote struct{}

func (remote) Add(l *Lookup) {
	if l.place(); l.at == nil {
		return
	}
	for i := range l.Blocks {
		if r := l.report(i); r != nil {
			l.Blocks[i] = uint32(max(0, r.Device))
		}
	}
}

// Slots are the ranks of a pool's workers in one snapshot, and their owner in each source's index. They are immutable
// but for the last layout.
type Slots struct {
	ranks []Rank
	epoch uint64             // of the events' index when its owners were looked up
	stale *map[Rank]struct{} // ranks whose events are stale

	// By slot, its owner in each source's index; NoOwner without one.
	events, predicted, recent []index.Owner
	text                      []index.Owner // in that of predictions, for prompts of text
	counted                   []index.Owner // events, of the slots whose overlap counts

	followed     bool // prompts are looked up in the events' index
	anyPredicted bool
	anyRecent    bool

	placed atomic.Pointer[placement]
}

// Predicted reports whether any slot is predicted rather than tracked by events.
func (s *Slots) Predicted() bool { return s.anyPredicted }

// placement is where a layout has each slot.
type placement struct {
	layout *Layout
	at     []int32 // by slot; -1 nowhere
}

// place finds the slots in a layout. Both are in one order.
func (s *Slots) place(l *Layout) []int32 {
	if p := s.placed.Load(); p != nil && p.layout == l {
		return p.at
	}
	p := &placement{l, make([]int32, len(s.ranks))}
	next := 0
	for i, is := range s.ranks {
		for next < l.Len() && l.ranks[next].compare(is) < 0 {
			next++
		}
		p.at[i] = -1
		if next < l.Len() && l.ranks[next] == is {
			p.at[i] = int32(next)
		}
	}
	s.placed.Store(p)
	return p.at
}

func publishes(w *pools.Worker) bool { return w.KVEvents != "" && w.KVEvents != "none" }

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
