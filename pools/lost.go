package pools

import (
	"errors"
	"fmt"
	"time"
)

// ErrNotLost: the worker is present, or its configuration names it.
var ErrNotLost = errors.New("the worker is not lost: it is here, or named by this gateway's own configuration")

// Lost is a worker that has gone without leaving.
type Lost struct {
	Worker *Worker // as it was known last; of one that never answered, what it was given with
	Source string
	Since  time.Time
	// Configured: its source still lists it, so it is down; otherwise it had registered by itself, and is lost.
	Configured bool
}

// How long, and how many, workers that had registered stay lost.
const (
	lostFor = 24 * time.Hour
	maxLost = 4096
)

// Lose takes out a worker that its source has configured and that does not respond. It stays among the lost ones until it is put or
// removed. w is what is known of it.
func (c *Core) Lose(source string, w *Worker, now time.Time) (changed bool) {
	if e, there := c.entries[w.ID]; there && e.source != source {
		return false
	}
	if c.drop(claim{source, w.ID}) {
		c.reconsider()
		changed = true
	}
	return c.lose(Lost{w, source, now, true}) || changed
}

func (c *Core) lose(l Lost) (changed bool) {
	if _, there := c.lost[l.Worker.ID]; there || !l.Configured && len(c.lost) >= maxLost {
		return false
	}
	c.lost[l.Worker.ID] = l
	return true
}

// found takes a worker of that source out of the lost ones.
func (c *Core) found(of claim) (changed bool) {
	l, there := c.lost[of.id]
	if there = there && l.Source == of.source; there {
		delete(c.lost, of.id)
	}
	return there
}

// Forget takes a worker that had registered out of the lost ones. Its errors are [ErrUnknownWorker] and [ErrNotLost].
func (c *Core) Forget(id string) error {
	l, there := c.lost[id]
	_, here := c.entries[id]
	switch {
	case there && !l.Configured:
		delete(c.lost, id)
		return nil
	case there, here:
		return fmt.Errorf("worker %q: %w", id, ErrNotLost)
	}
	return fmt.Errorf("worker %q: %w", id, ErrUnknownWorker)
}

// expires is when the lost worker is forgotten, zero for never.
func (l *Lost) expires() time.Time {
	if l.Configured {
		return time.Time{}
	}
	return l.Since.Add(lostFor)
}

// Lost is every worker that has gone without leaving, sorted by id. The slice must not be changed.
func (v *View) Lost() []Lost { return v.lost }

// Lose reports that a configured worker does not respond; see [Core.Lose].
func (s *Source) Lose(w Worker) {
	s.roster.change(func(c *Core, now time.Time) bool { return c.Lose(s.name, own(w), now) })
}

// Forget takes a worker that had registered out of the lost ones; see [Core.Forget].
func (r *Roster) Forget(id string) error {
	var err error
	r.change(func(c *Core, _ time.Time) bool { err = c.Forget(id); return err == nil })
	return err
}
