package pools

import (
	"maps"
	"slices"
	"time"
)

// Source is one source's access to a [Roster]. It is safe for concurrent use, but the calls for one
// worker should come in order.
type Source struct {
	roster *Roster
	name   string
}

// Put takes a worker in, or takes its new record; see [Core.Put]. Its error, one of [Refusal]'s, is logged.
func (s *Source) Put(w Worker) error {
	var err error
	s.roster.change(func(c *Core, now time.Time) (changed bool) {
		changed, err = c.Put(s.name, own(w), now)
		return changed
	})
	s.logRefusal(err)
	return err
}

// Refuse remembers that the source cannot take a worker of which it knows the id at least, and logs why; see
// [Core.Refuse].
func (s *Source) Refuse(w Worker, reason error) {
	if s.roster.change(func(c *Core, now time.Time) bool { return c.Refuse(s.name, own(w), reason, now) }) {
		s.roster.log.Warn("worker refused", "worker", w.ID, "source", named(s.name), "error", reason)
	}
}

// Remove takes a worker out at once: it deregistered, or its lease ended.
func (s *Source) Remove(id string) {
	s.roster.change(func(c *Core, _ time.Time) bool { return c.Remove(s.name, id) })
}

// Suspend takes a worker out of the choice while its source finds out whether its process has ended; see [Core.Suspend].
func (s *Source) Suspend(id string, on bool) {
	s.roster.change(func(c *Core, now time.Time) bool { return c.Suspend(s.name, id, on, now) })
}

// Hold cordons a worker for the source, or lifts that cordon; see [Core.Hold].
func (s *Source) Hold(id string, on bool) {
	s.roster.change(func(c *Core, _ time.Time) bool { return c.Hold(s.name, id, on) })
}

// Resync takes the source's full list, after the watch on it broke: its workers that are missing from it go only when
// they have not come back within grace. See [Core.Resync].
func (s *Source) Resync(ws []Worker, grace time.Duration) {
	owned := make([]*Worker, len(ws))
	for i := range ws {
		owned[i] = own(ws[i])
	}
	var err error
	s.roster.change(func(c *Core, now time.Time) (changed bool) {
		changed, err = c.Resync(s.name, owned, grace, now)
		return changed
	})
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, err := range joined.Unwrap() {
			s.logRefusal(err)
		}
	}
}

// logRefusal logs which worker was refused and why: registries are not read by people.
func (s *Source) logRefusal(err error) {
	if err != nil {
		s.roster.log.Warn("worker refused", "source", named(s.name), "error", err)
	}
}

// own returns a copy that no caller can change.
func own(w Worker) *Worker {
	w.Topology, w.Taints, w.ServedNames = maps.Clone(w.Topology), slices.Clone(w.Taints), slices.Clone(w.ServedNames)
	return &w
}
