package models

import (
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/tandem-pd/tandem/pools"
)

const (
	// distrustAfter is how many consecutive disagreements on one kind of prompt, with any processes, end routing by the
	// language's tokens. A single one may be that process's fault.
	distrustAfter = 3
	// provenBy is how many agreements with a process, and no disagreement, a kind needs before its prompts are sent
	// there as tokens.
	provenBy = 3
	// compareEvery: one in so many prompts of a proven kind, at random, is still rendered by the process and compared.
	compareEvery = 16
)

// trust records how a language's tokens compare with those that engines report. Each engine process counts by itself: a
// restarted one may have another template or other defaults.
type trust struct {
	mu        sync.Mutex // guards all below
	state     TrustState
	all       ledger
	processes map[incarnation]*ledger
	lives     map[incarnation]bool // the model's latest processes
}

// TrustState sums up a language's comparisons.
type TrustState struct {
	// Agreed and Disagreed count comparisons.
	Agreed    uint64 `json:"agreed"`
	Disagreed uint64 `json:"disagreed"`
	// Distrusted reports that one kind of prompt disagreed too often: the language is not used for it.
	Distrusted bool `json:"distrusted,omitempty"`
	// Disagreeing are the workers whose present process computed other tokens, although others computed these.
	Disagreeing []string `json:"disagreeing_workers,omitempty"`
}

// ledger has the comparisons of at most sets × ways kinds of prompts, since clients can invent any number. A new kind
// replaces one that was not used for a while, which starts over when it returns.
type ledger struct {
	kinds  [sets][ways]verdict
	warned bool
}

const (
	sets = 64
	ways = 4
)

// verdict counts the comparisons of one kind of prompt.
type verdict struct {
	kind         uint64
	right, wrong uint8
	uses         uint8 // recent
}

// decides reports whether it is known if the kind may be pinned.
func (v *verdict) decides() bool { return v.right >= provenBy || v.wrong > 0 }

// weight orders the kinds of a set: the lightest is replaced.
func (v *verdict) weight() int {
	if v.decides() {
		return 256 + int(v.uses)
	}
	return int(v.uses)
}

// of returns a kind's verdict, nil for none.
func (l *ledger) of(kind uint64) *verdict {
	if l == nil {
		return nil
	}
	set := &l.kinds[kind%sets]
	for i := range set {
		if v := &set[i]; v.kind == kind && v.right|v.wrong > 0 {
			v.uses = min(v.uses, 254) + 1
			return v
		}
	}
	return nil
}

// note adds a comparison. It returns nil if the kind has no place; it then ages the least used kind of the set, one that
// decides only now and then.
func (l *ledger) note(kind uint64, same bool) *verdict {
	v := l.of(kind)
	if v == nil {
		set := &l.kinds[kind%sets]
		v = &set[0]
		for i := range set {
			if set[i].weight() < v.weight() {
				v = &set[i]
			}
		}
		if v.uses > 0 {
			if !v.decides() || rand.N(compareEvery) == 0 {
				v.uses--
			}
			return nil
		}
		*v = verdict{kind: kind, uses: 2}
	}
	if same {
		v.right = min(v.right, 254) + 1
	} else {
		v.wrong = min(v.wrong, 254) + 1
	}
	return v
}

// Trust returns the current state.
func (l *Language) Trust() TrustState {
	t := &l.trust
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.state
	for i := range t.all.kinds {
		for _, v := range t.all.kinds[i] {
			s.Distrusted = s.Distrusted || v.wrong >= distrustAfter
		}
	}
	for life, own := range t.processes {
		if own.warned && t.lives[life] && s.Agreed > 0 {
			s.Disagreeing = append(s.Disagreeing, life.worker)
		}
	}
	slices.Sort(s.Disagreeing)
	return s
}

// compare records whether process w computed the language's tokens of a prompt. first reports the first disagreement
// with that process, lost that the language is no longer used for such prompts.
func (l *Language) compare(w *pools.Worker, kind uint64, same bool) (first, lost bool) {
	t := &l.trust
	t.mu.Lock()
	defer t.mu.Unlock()
	life := lifeOf(w)
	own := t.processes[life]
	if own == nil {
		if t.processes == nil || len(t.processes) >= maxPauses { // mostly ended ones
			t.processes = map[incarnation]*ledger{}
		}
		own = new(ledger)
		t.processes[life] = own
	}
	own.note(kind, same)
	v := t.all.note(kind, same)
	if same {
		t.state.Agreed++
		if v != nil {
			v.wrong = 0
		}
		return false, false
	}
	t.state.Disagreed++
	first, own.warned = !own.warned, true
	if v == nil {
		return first, false
	}
	v.right = 0
	return first, v.wrong == distrustAfter
}

// misleads reports whether prompts of a kind must not be routed by the language's tokens.
func (l *Language) misleads(kind uint64) bool {
	l.trust.mu.Lock()
	defer l.trust.mu.Unlock()
	v := l.trust.all.of(kind)
	return v != nil && v.wrong >= distrustAfter
}

// likely reports whether enough of a kind's latest comparisons, with any processes, agreed.
func (l *Language) likely(kind uint64) bool {
	l.trust.mu.Lock()
	defer l.trust.mu.Unlock()
	v := l.trust.all.of(kind)
	return l.simulated() || v != nil && v.right >= provenBy
}

// Likely reports whether engines are likely to compute these tokens. That does not suffice to send them instead of the
// text.
func (p Prompt) Likely() bool { return p.by == nil || p.by.likely(p.kind) }

// Pins reports whether a chat to w may carry the tokens instead of its messages: w's process computed the same tokens
// of such chats, and this chat is not drawn for comparison. A prompt with a date is never pinned. The simulated model's
// language is that of its engines by construction.
func (p Prompt) Pins(w *pools.Worker) bool {
	if p.by == nil || p.dated {
		return false
	}
	if p.by.simulated() {
		return true
	}
	t := &p.by.trust
	t.mu.Lock()
	defer t.mu.Unlock()
	v := t.processes[lifeOf(w)].of(p.kind)
	return v != nil && v.right >= provenBy && v.wrong == 0 && rand.N(compareEvery) > 0
}

// stale drops the comparisons of a worker's process, which may have been replaced.
func (l *Language) stale(worker string) {
	l.trust.mu.Lock()
	defer l.trust.mu.Unlock()
	for life := range l.trust.processes {
		if life.worker == worker {
			delete(l.trust.processes, life)
		}
	}
}

// meets sets the processes that serve the model and drops the comparisons of others. A new process lifts all distrust;
// again reports whether there was any.
func (l *Language) meets(lives map[incarnation]bool) (again bool) {
	t := &l.trust
	t.mu.Lock()
	defer t.mu.Unlock()
	for life := range t.processes {
		if !lives[life] {
			delete(t.processes, life)
		}
	}
	fresh := false
	for life := range lives {
		fresh = fresh || !t.lives[life]
	}
	t.lives = lives
	for i := range t.all.kinds {
		for j := range t.all.kinds[i] {
			if v := &t.all.kinds[i][j]; fresh && v.wrong >= distrustAfter {
				*v, again = verdict{}, true
			}
		}
	}
	return again
}
