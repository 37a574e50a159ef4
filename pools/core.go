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

// ErrUnknownWorker says that no worker with that id is registered.
var ErrUnknownWorker = errors.New("no such worker")

// Core decides who is in which pool and in what standing. It has no clock: every call that needs one takes now,
// which must not run backwards. It is not safe for concurrent use; see [Roster].
type Core struct {
	cfg     Config
	entries map[string]*entry
	refused map[string]Refusal
	known   map[key]*Pool // every pool that ever had a worker, as it was at the last View
	stale   map[key]bool  // of those, the ones to build anew
	version uint64
}

type key struct {
	model string
	role  Role
}

// entry is a registered worker. Draining and down are kept apart, so that the end of one uncovers the other.
type entry struct {
	worker    *Worker
	draining  bool
	downUntil time.Time // zero: not down
	goneAt    time.Time // zero: registered; else missing from the last full list, and kept until then
}

func (e *entry) key() key { return key{e.worker.Model, e.worker.Role} }

// NewCore returns a Core with no workers. cfg must be valid.
func NewCore(cfg Config) *Core {
	cfg.DownFor = cmp.Or(cfg.DownFor, DefaultDownFor)
	return &Core{
		cfg:     cfg,
		entries: make(map[string]*entry),
		refused: make(map[string]Refusal),
		known:   make(map[key]*Pool),
		stale:   make(map[key]bool),
	}
}

// Put takes a worker in, or takes its new record. The same incarnation keeps its standing; a new one is a new
// process and starts up, whatever was reported of the old one. A worker that breaks a rule is refused with an
// [*InvalidError] or a [*RefusedError], and remembered; a worker that had the same id before is gone then, for its
// process is. w must not be changed afterwards. It reports whether anything changed.
func (c *Core) Put(w *Worker, now time.Time) (changed bool, err error) {
	if err := c.check(w); err != nil {
		return c.refuse(w, err, now), err
	}
	delete(c.refused, w.ID)
	old, there := c.entries[w.ID]
	switch {
	case !there:
		c.entries[w.ID] = &entry{worker: w}
	case old.worker.Incarnation != w.Incarnation:
		c.touch(old.key())
		*old = entry{worker: w}
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

// Remove takes a worker out, and forgets that it was refused.
func (c *Core) Remove(id string) (changed bool) {
	_, changed = c.refused[id]
	delete(c.refused, id)
	if c.drop(id) {
		c.reconsider()
		return true
	}
	return changed
}

// Resync takes the registry's full list, after the watch on it broke. Workers missing from it go only after grace:
// a registry that comes back from an outage may have lost every lease at once, while the workers behind them run on
// and register again. Refused workers that are missing go at once. The errors are those of Put, joined.
func (c *Core) Resync(ws []*Worker, grace time.Duration, now time.Time) (changed bool, err error) {
	present := make(map[string]bool, len(ws))
	for _, w := range ws {
		present[w.ID] = true
	}
	for id := range c.refused {
		if !present[id] {
			delete(c.refused, id)
			changed = true
		}
	}
	for id, e := range c.entries {
		if !present[id] && e.goneAt.IsZero() {
			e.goneAt = now.Add(grace)
		}
	}
	changed = c.Advance(now) || changed // before the puts, for with no grace who has gone sets no block size
	var errs []error
	for _, w := range ws {
		did, err := c.Put(w, now)
		changed = changed || did
		errs = append(errs, err)
	}
	return changed, errors.Join(errs...)
}

// Drain starts draining a worker, or ends it. Its error is [ErrUnknownWorker].
func (c *Core) Drain(id string, on bool) (changed bool, err error) {
	e, there := c.entries[id]
	if !there {
		return false, fmt.Errorf("worker %q: %w", id, ErrUnknownWorker)
	}
	if e.draining == on {
		return false, nil
	}
	e.draining = on
	c.touch(e.key())
	return true, nil
}

// Down notes that a call to a worker failed: it takes no requests for Config.DownFor from now. Calls that fail
// while it is down change nothing: they were under way already and tell nothing new. Neither does a report about
// another incarnation than the registered one: it is late.
func (c *Core) Down(id, incarnation string, now time.Time) (changed bool) {
	e, there := c.entries[id]
	if !there || e.worker.Incarnation != incarnation || now.Before(e.downUntil) {
		return false
	}
	e.downUntil = now.Add(c.cfg.DownFor)
	c.touch(e.key())
	return true
}

// Up notes that a worker answered, which ends its time down. A report about another incarnation changes nothing.
func (c *Core) Up(id, incarnation string) (changed bool) {
	e, there := c.entries[id]
	if !there || e.worker.Incarnation != incarnation || e.downUntil.IsZero() {
		return false
	}
	e.downUntil = time.Time{}
	c.touch(e.key())
	return true
}

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
			dropped = c.drop(id)
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
			c.known[k].Members = append(c.known[k].Members, e.member())
		}
	}
	for k := range c.stale {
		slices.SortFunc(c.known[k].Members, func(a, b Member) int { return strings.Compare(a.Worker.ID, b.Worker.ID) })
	}
	clear(c.stale)
	return newView(maps.Clone(c.known), slices.SortedFunc(maps.Values(c.refused), func(a, b Refusal) int {
		return strings.Compare(a.Worker.ID, b.Worker.ID)
	}))
}

func (e *entry) member() Member {
	m := Member{Worker: e.worker}
	switch {
	case e.draining:
		m.Status = Draining
	case !e.downUntil.IsZero():
		m.Status, m.DownUntil = Down, e.downUntil
	}
	return m
}

func (c *Core) touch(k key) { c.stale[k] = true }

func (c *Core) drop(id string) bool {
	e, there := c.entries[id]
	if there {
		delete(c.entries, id)
		c.touch(e.key())
	}
	return there
}
