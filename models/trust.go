package models

import (
	"math/rand/v2"
	"sync"

	"github.com/tandem-pd/tandem/pools"
)

const (
	// distrustAfter is how many comparisons of one kind of prompts must disagree in a row, whatever processes they were
	// with, before such prompts are no longer routed by the language's tokens. One may be one process's own doing.
	distrustAfter = 3
	// provenBy is how many comparisons of a kind must agree with a process, and none disagree, before the tokens may take
	// the place of that process's own.
	provenBy = 3
	// compareEvery is which part of the prompts of a proven kind is left to the process all the same, drawn at random, so
	// that the comparison goes on.
	compareEvery = 16
)

// trust is how a language's tokens compare, token by token, with those that engines report. An engine is known by its
// process: one that is started again may have been given another template, or other defaults.
type trust struct {
	mu        sync.Mutex // guards all below
	state     TrustState
	all       ledger
	processes map[incarnation]*ledger
	lives     map[incarnation]bool // of the model's workers as they were last seen
}

// TrustState is how a language's comparisons went.
type TrustState struct {
	// Agreed and Disagreed count comparisons.
	Agreed    uint64 `json:"agreed"`
	Disagreed uint64 `json:"disagreed"`
	// Distrusted: too many of one kind of prompts disagreed in a row, and the language makes no tokens of those.
	Distrusted bool `json:"distrusted,omitempty"`
}

// ledger has the comparisons of some kinds of prompts, at most sets × ways of them: clients may make up any number. A kind
// that is used stays; a new one takes the place of one that has not been used for a while. That one is compared from
// the beginning when it comes again.
type ledger struct {
	kinds  [sets][ways]verdict
	warned bool
}

const (
	sets = 64
	ways = 4
)

// verdict is how the comparisons of one kind of prompts went.
type verdict struct {
	kind         uint64
	right, wrong uint8
	uses         uint8 // lately
}

// decides reports whether the kind may be pinned, or may not.
func (v *verdict) decides() bool { return v.right >= provenBy || v.wrong > 0 }

// weight orders the kinds of a set: the least gives its place up.
func (v *verdict) weight() int {
	if v.decides() {
		return 256 + int(v.uses)
	}
	return int(v.uses)
}

// of finds a kind's verdict, nil where it has none.
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

// note adds a comparison. It returns nil for a kind that has no place: it has only worn out the one that is used least, and
// one that decides anything but now and then.
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

// Trust is the state at this moment.
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
	return s
}

// compare notes whether the process w computed the tokens that the language made of a prompt. first: it is the
// first disagreement with that process, and lost that the language makes no tokens of such prompts from now on.
func (l *Language) compare(w *pools.Worker, kind uint64, same bool) (first, lost bool) {
	t := &l.trust
	t.mu.Lock()
	defer t.mu.Unlock()
	life := lifeOf(w)
	own := t.processes[life]
	if own == nil {
		if t.processes == nil || len(t.processes) >= maxPauses { // lives that are over
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

// misleads reports whether prompts of a kind are not to be routed by the language's tokens.
func (l *Language) misleads(kind uint64) bool {
	l.trust.mu.Lock()
	defer l.trust.mu.Unlock()
	v := l.trust.all.of(kind)
	return v != nil && v.wrong >= distrustAfter
}

// likely reports whether the latest comparisons of a kind agreed, enough of them, whatever processes they were with.
func (l *Language) likely(kind uint64) bool {
	l.trust.mu.Lock()
	defer l.trust.mu.Unlock()
	v := l.trust.all.of(kind)
	return l.simulated() || v != nil && v.right >= provenBy
}

// Likely reports whether engines are likely to compute these tokens. It is not enough to have them do so.
func (p Prompt) Likely() bool { return p.by == nil || p.by.likely(p.kind) }

// Pins reports whether the tokens may be put into the body of a chat to w, in place of those that its process would
// make. That process made the same tokens of such chats, and it is not this chat's turn to be compared. A prompt that
// has a date in it is never pinned. The simulated model's language is that of its engines by construction.
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

// stale forgets how a worker's process compared: it may have ended, and another come in its place.
func (l *Language) stale(worker string) {
	l.trust.mu.Lock()
	defer l.trust.mu.Unlock()
	for life := range l.trust.processes {
		if life.worker == worker {
			delete(l.trust.processes, life)
		}
	}
}

// meets takes in which processes serve the model now. What is known of others is forgotten; and a process that was not
// there before has prompts tried again whose kind is distrusted, which again reports.
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
