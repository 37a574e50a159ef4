package pools

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Why [Core.Drain] does nothing.
var (
	// ErrUnknownWorker: no worker with that id is registered.
	ErrUnknownWorker = errors.New("no such worker")
	// ErrTooManyCordons: [maxCordons] workers are cordoned already.
	ErrTooManyCordons = errors.New("too many workers are cordoned; lift the cordon of those that will not come back")
)

// maxCordons is how many workers can be kept out at once by [Core.Drain].
const maxCordons = 4096

// Core decides who is in which pool and with what status. It has no clock: now must not run backwards. It is not safe
// for concurrent use; see [Roster].
//
// Workers come from sources, each named by a string: a registry, a list, a file. A source reports only its own workers.
// If two sources report one id, the first keeps it until its worker has gone.
type Core struct {
	cfg      Config
	entries  map[string]*entry
	refused  map[claim]Refusal
	cordoned map[string]bool       // by worker id, absent workers among them
	lost     map[string]Lost       // by worker id
	held     map[claim]bool        // cordoned by their source, absent workers among them
	assigned map[string]assignment // by worker id, absent workers among them
	known    map[key]*Pool         // every pool that ever had a worker, as it was at the last View
	stale    map[key]bool          // of those, the ones to build again
	aliases  map[string]string
	version  uint64
}

type key struct {
	model string
	role  Role
}

// entry is a registered worker. That it is cordoned is kept apart, by its id, so that the end of either uncovers the
// other and the cordon outlives the entry.
type entry struct {
	worker    *Worker
	source    string
	downUntil time.Time // zero: not down
	ended     bool      // its process is known to have ended
	goneAt    time.Time // zero: registered; else missing from the last full list, and kept until then
}

func (e *entry) key() key { return key{e.worker.Model, e.worker.Role} }

// NewCore returns a Core with no workers. cfg must be valid.
func NewCore(cfg Config) *Core {
	cfg.DownFor = cmp.Or(cfg.DownFor, defaultDownFor)
	aliases, _ := cfg.aliases() // cfg is valid
	return &Core{
		cfg:      cfg,
		aliases:  aliases,
		entries:  make(map[string]*entry),
		refused:  make(map[claim]Refusal),
		cordoned: make(map[string]bool),
		held:     make(map[claim]bool),
		assigned: make(map[string]assignment),
		lost:     make(map[string]Lost),
		known:    make(map[key]*Pool),
		stale:    make(map[key]bool),
	}
}

// Put adds a worker of a source or updates its record. The same incarnation keeps its status; a new one is a new
// process and starts up, unless cordoned. A worker that breaks a rule is refused with an error of [Refusal], and
// remembered; the source's earlier worker of that id is removed. w must not be changed afterwards. It reports whether
// anything changed.
func (c *Core) Put(source string, w *Worker, now time.Time) (changed bool, err error) {
	if err := c.check(source, w); err != nil {
		return c.refuse(Refusal{Worker: w, Source: source, Err: err, Since: now}), err
	}
	delete(c.refused, claim{source, w.ID})
	delete(c.lost, w.ID)
	w = c.current(w)
	old, there := c.entries[w.ID]
	switch {
	case !there:
		c.entries[w.ID] = &entry{worker: w, source: source}
	case old.worker.Incarnation != w.Incarnation:
		c.touch(old.key())
		*old = entry{worker: w, source: source}
	case old.worker.Equal(w):
		old.goneAt = time.Time{}
		return false, nil
	default:
		c.touch(old.key())
		old.worker, old.goneAt = w, time.Time{}
	}
	c.touch(c.entries[w.ID].key())
	c.reconsider() // the record before may have been all that held others off
	return true, nil
}

// Refuse remembers a worker that its source cannot use, with the reason, until the source puts or removes it. w needs
// only an id. The source's worker of that id is removed.
func (c *Core) Refuse(source string, w *Worker, reason error, now time.Time) (changed bool) {
	return c.refuse(Refusal{Worker: w, Source: source, Err: reason, Since: now, stands: true})
}

// Remove removes a worker of a source, and forgets a refusal.
func (c *Core) Remove(source, id string) (changed bool) {
	of := claim{source, id}
	_, changed = c.refused[of]
	delete(c.refused, of)
	changed = c.found(of) || changed
	if c.drop(of) {
		c.reconsider()
		return true
	}
	return changed
}

// Resync applies a source's full list, after its watch broke. Missing workers are removed only after grace: a registry
// back from an outage may have lost every lease at once, while the workers run on and register again. Missing refused
// workers are dropped at once. The errors are those of Put, joined.
func (c *Core) Resync(source string, ws []*Worker, grace time.Duration, now time.Time) (changed bool, err error) {
	present := make(map[string]bool, len(ws))
	for _, w := range ws {
		present[w.ID] = true
	}
	for of := range c.refused {
		if of.source == source && !present[of.id] {
			delete(c.refused, of)
			changed = true
		}
	}
	for id, e := range c.entries {
		if e.source == source && !present[id] && e.goneAt.IsZero() {
			e.goneAt = now.Add(grace)
		}
	}
	changed = c.Advance(now) || changed // before the puts, for with no grace who has gone sets no block size
	var errs []error
	for _, w := range ws {
		did, err := c.Put(source, w, now)
		changed = changed || did
		errs = append(errs, err)
	}
	return changed, errors.Join(errs...)
}

// Drain cordons or uncordons a worker: a cordoned one finishes its requests and gets no new ones. The cordon is an
// operator's and by id: it outlives restarts and absences. It returns [ErrUnknownWorker] for an id neither registered
// nor cordoned, and [ErrTooManyCordons].
func (c *Core) Drain(id string, on bool) (changed bool, err error) {
	if _, there := c.entries[id]; !there && !c.cordoned[id] {
		return false, fmt.Errorf("worker %q: %w", id, ErrUnknownWorker)
	}
	return c.Cordon(id, on)
}

// Cordon is Drain for a worker that may be unknown here, cordoned at another gateway. It returns [ErrTooManyCordons],
// or an error for an invalid id.
func (c *Core) Cordon(id string, on bool) (changed bool, err error) {
	e, there := c.entries[id]
	problem := idProblem(id)
	switch {
	case problem != "":
		return false, fmt.Errorf("id %s", problem)
	case c.cordoned[id] == on:
		return false, nil
	case on && len(c.cordoned) >= maxCordons:
		return false, fmt.Errorf("worker %q: %w", id, ErrTooManyCordons)
	}
	if on {
		c.cordoned[id] = true
	} else {
		delete(c.cordoned, id)
	}
	if there {
		c.touch(e.key())
	}
	return true, nil
}

// Hold cordons or uncordons a worker for its source, such as a pod being deleted. It is separate from an operator's
// cordon, by id too, and may precede the worker. A source lifts it when the worker has gone.
func (c *Core) Hold(source, id string, on bool) (changed bool) {
	of := claim{source, id}
	if c.held[of] == on {
		return false
	}
	if on {
		c.held[of] = true
	} else {
		delete(c.held, of)
	}
	e, there := c.entries[id]
	if changed = there && e.source == source; changed {
		c.touch(e.key())
	}
	return changed
}

// assignment is the role that a planner gave to a process in place of the registered one.
type assignment struct {
	incarnation string
	role        Role
	hold        bool // it is on its way from one role to the other
}

// Assign has the process of a worker serve in a role, whatever its registrations name; hold cordons it besides, apart
// from operators and sources. Its next process is in the registered role again. Other processes change nothing.
func (c *Core) Assign(id, incarnation string, role Role, hold bool) (changed bool) {
	e, there := c.entries[id]
	to := assignment{incarnation, role, hold}
	if !there || e.worker.Incarnation != incarnation || c.assigned[id] == to || !role.Valid() {
		return false
	}
	if len(c.assigned) >= maxCordons {
		maps.DeleteFunc(c.assigned, func(id string, _ assignment) bool { return c.entries[id] == nil })
	}
	c.assigned[id] = to
	c.touch(e.key())
	e.worker = c.current(e.worker)
	c.touch(e.key())
	return true
}

// current returns a record with the role that is assigned to the process, and forgets one of an earlier process.
func (c *Core) current(w *Worker) *Worker {
	to, there := c.assigned[w.ID]
	switch {
	case !there:
	case to.incarnation != w.Incarnation:
		delete(c.assigned, w.ID)
	case to.role != w.Role:
		w = new(*w)
		w.Role = to.role
	}
	return w
}

// Down records a failed call: the worker takes no requests for Config.DownFor, or for half a second if it is the last
// of its pool. Failures while it is down, or of another incarnation, are late and change nothing.
func (c *Core) Down(id, incarnation string, now time.Time) (changed bool) {
	e, there := c.entries[id]
	if !there || e.worker.Incarnation != incarnation || now.Before(e.downUntil) {
		return false
	}
	e.downUntil = now.Add(c.cfg.DownFor)
	if c.last(e, now) {
		e.downUntil = now.Add(min(c.cfg.DownFor, lastDownFor))
	}
	c.touch(e.key())
	return true
}

// Suspend stops requests to a worker, or resumes them, while its source finds out whether its process has ended.
func (c *Core) Suspend(source, id string, on bool, now time.Time) (changed bool) {
	e, there := c.entries[id]
	switch {
	case !there || e.source != source || e.ended:
		return false
	case on:
		return c.Down(id, e.worker.Incarnation, now)
	}
	changed, e.downUntil = !e.downUntil.IsZero(), time.Time{}
	c.touch(e.key())
	return changed
}

// last reports whether none of a pool's other workers takes requests at now.
func (c *Core) last(of *entry, now time.Time) bool {
	for _, e := range c.entries {
		if m := c.member(e); e != of && e.key() == of.key() && m.Eligible(now) {
			return false
		}
	}
	return true
}

// Ended notes that a worker's process has ended: it is down for as long as that incarnation is registered.
func (c *Core) Ended(id, incarnation string, now time.Time) (changed bool) {
	e, there := c.entries[id]
	if !there || e.worker.Incarnation != incarnation || e.ended {
		return false
	}
	e.ended, e.downUntil = true, now.Add(endedFor)
	c.touch(e.key())
	return true
}

// endedFor is longer than any registration lasts.
const endedFor = 100 * 365 * 24 * time.Hour

// Advance lets time pass: times down end, and workers whose grace has passed go.
func (c *Core) Advance(now time.Time) (changed bool) {
	dropped := false
	for id, e := range c.entries {
		if !e.downUntil.IsZero() && !now.Before(e.downUntil) {
			e.downUntil = time.Time{}
			c.touch(e.key())
			changed = true
		}
		if !e.goneAt.IsZero() && !now.Before(e.goneAt) {
			dropped = c.drop(claim{e.source, id}) || dropped
			c.lose(Lost{Worker: e.worker, Source: e.source, Since: now})
		}
	}
	for id, l := range c.lost {
		if until := l.expires(); !until.IsZero() && !now.Before(until) {
			delete(c.lost, id)
			changed = true
		}
	}
	if dropped {
		c.reconsider()
	}
	return changed || dropped
}

// NextDeadline is when [Core.Advance] has something to do next; zero when there is nothing to wait for.
func (c *Core) NextDeadline() time.Time {
	var next time.Time
	for _, e := range c.entries {
		for _, t := range [...]time.Time{e.downUntil, e.goneAt} {
			if !t.IsZero() && (next.IsZero() || t.Before(next)) {
				next = t
			}
		}
	}
	for _, l := range c.lost {
		if t := l.expires(); !t.IsZero() && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	return next
}

// View is the present state. Pools that did not change since the last View are the same values.
func (c *Core) View() *View {
	c.version++
	for k := range c.stale {
		c.known[k] = &Pool{Model: k.model, Role: k.role, Version: c.version}
	}
	for id := range c.entries {
		e := c.entries[id]
		if k := e.key(); c.stale[k] {
			c.known[k].Members = append(c.known[k].Members, c.member(e))
		}
	}
	for k := range c.stale {
		slices.SortFunc(c.known[k].Members, func(a, b Member) int { return strings.Compare(a.Worker.ID, b.Worker.ID) })
	}
	clear(c.stale)
	refused := slices.SortedFunc(maps.Values(c.refused), func(a, b Refusal) int {
		return cmp.Or(strings.Compare(a.Worker.ID, b.Worker.ID), strings.Compare(a.Source, b.Source))
	})
	lost := slices.SortedFunc(maps.Values(c.lost), func(a, b Lost) int { return strings.Compare(a.Worker.ID, b.Worker.ID) })
	return newView(maps.Clone(c.known), c.aliases, refused, slices.Sorted(maps.Keys(c.cordoned)), lost)
}

func (c *Core) member(e *entry) Member {
	m := Member{Worker: e.worker, Source: e.source}
	switch {
	case c.cordoned[e.worker.ID], c.held[claim{e.source, e.worker.ID}], c.assigned[e.worker.ID].hold:
		m.Status = Draining
	case !e.downUntil.IsZero():
		m.Status, m.DownUntil = Down, e.downUntil
	}
	return m
}

func (c *Core) touch(k key) { c.stale[k] = true }

// drop takes the entry of an id out, if it is that source's.
func (c *Core) drop(of claim) bool {
	e, there := c.entries[of.id]
	if !there || e.source != of.source {
		return false
	}
	delete(c.entries, of.id)
	c.touch(e.key())
	return true
}
