package pools

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"
)

// Roster is the one place that knows who the workers are. It is safe for concurrent use: writers take turns, and
// readers take the present [View] with one atomic load.
type Roster struct {
	log  *slog.Logger
	view atomic.Pointer[View]
	kick chan struct{} // holds at most one: the deadlines moved

	mu   sync.Mutex // guards all below; nothing that is handed in is called under it
	core *Core
	next time.Time // core's deadline that Run was last told of

	callbacks atomic.Pointer[[]func()]
}

// NewRoster returns a Roster with no workers. cfg must be valid.
func NewRoster(cfg Config, log *slog.Logger) *Roster {
	r := &Roster{log: log, core: NewCore(cfg), kick: make(chan struct{}, 1)}
	r.view.Store(r.core.View())
	r.callbacks.Store(new([]func()))
	return r
}

// OnChange has f called after every change, outside any lock, by whichever goroutine made it: f must be quick, and
// may be called by several at once. When f is called, the change can be seen.
func (r *Roster) OnChange(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	grown := append(append([]func(){}, *r.callbacks.Load()...), f)
	r.callbacks.Store(&grown)
}

// Run lets time pass: a worker's time down ends, a missing worker's grace does. Without it, both happen at the next
// change only. It returns nil when ctx ends.
func (r *Roster) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.kick:
		case <-timer.C:
			r.change(func(c *Core, now time.Time) bool { return c.Advance(now) })
		}
		if next := r.deadline(); next.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(time.Until(next))
		}
	}
}

// Put takes a worker in, or takes its new record; see [Core.Put]. Its error is an [*InvalidError] or a
// [*RefusedError].
func (r *Roster) Put(w Worker) error {
	var err error
	r.change(func(c *Core, now time.Time) (changed bool) {
		changed, err = c.Put(own(w), now)
		return changed
	})
	r.logRefusal(err)
	return err
}

// Remove takes a worker out at once: it deregistered, or its lease ended.
func (r *Roster) Remove(id string) {
	if r.change(func(c *Core, _ time.Time) bool { return c.Remove(id) }) {
		r.log.Info("worker left", "worker", id)
	}
}

// Resync takes the registry's full list, after the watch on it broke: workers missing from it go only when they
// have not come back within grace. See [Core.Resync].
func (r *Roster) Resync(ws []Worker, grace time.Duration) {
	owned := make([]*Worker, len(ws))
	for i := range ws {
		owned[i] = own(ws[i])
	}
	var err error
	r.change(func(c *Core, now time.Time) (changed bool) {
		changed, err = c.Resync(owned, grace, now)
		return changed
	})
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, err := range joined.Unwrap() {
			r.logRefusal(err)
		}
	}
}

// Drain starts draining a worker (it finishes what it has and takes no more), or ends it. Its error is
// [ErrUnknownWorker].
func (r *Roster) Drain(id string, on bool) error {
	var err error
	r.change(func(c *Core, _ time.Time) (changed bool) {
		changed, err = c.Drain(id, on)
		return changed
	})
	return err
}

// ReportDown notes that a call to that incarnation of a worker failed: it takes no requests for Config.DownFor.
// See [Core.Down].
func (r *Roster) ReportDown(id, incarnation string) {
	if r.change(func(c *Core, now time.Time) bool { return c.Down(id, incarnation, now) }) {
		r.log.Warn("worker down", "worker", id, "incarnation", incarnation)
	}
}

// ReportUp notes that that incarnation of a worker answered, which ends its time down.
func (r *Roster) ReportUp(id, incarnation string) {
	if m, ok := r.Lookup(id); ok && m.Status == Up {
		return // the usual case: every answer is reported, and only the first after a failure means anything
	}
	if r.change(func(c *Core, _ time.Time) bool { return c.Up(id, incarnation) }) {
		r.log.Info("worker up", "worker", id, "incarnation", incarnation)
	}
}

// View is all pools at this moment, for a caller that asks more than one question.
func (r *Roster) View() *View { return r.view.Load() }

// Snapshot is the pool of that model and role; one without members, never nil, when there is none. It takes no
// lock, and allocates only for a pool that was never known.
func (r *Roster) Snapshot(model string, role Role) *Pool { return r.View().Pool(model, role) }

// Pools is [View.Pools] of this moment.
func (r *Roster) Pools() []*Pool { return r.View().Pools() }

// Models is [View.Models] of this moment.
func (r *Roster) Models() []string { return r.View().Models() }

// Known is [View.Known] of this moment.
func (r *Roster) Known(model string, role Role) bool { return r.View().Known(model, role) }

// Lookup is [View.Lookup] of this moment.
func (r *Roster) Lookup(id string) (Member, bool) { return r.View().Lookup(id) }

// Refused is [View.Refused] of this moment.
func (r *Roster) Refused() []Refusal { return r.View().Refused() }

// change lets f change the core, publishes what came of it and calls the callbacks.
func (r *Roster) change(f func(c *Core, now time.Time) bool) bool {
	changed, moved := r.apply(f)
	if moved {
		select {
		case r.kick <- struct{}{}:
		default: // Run was told already and has not looked yet
		}
	}
	if changed {
		for _, call := range *r.callbacks.Load() {
			call()
		}
	}
	return changed
}

func (r *Roster) apply(f func(c *Core, now time.Time) bool) (changed, moved bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if changed = f(r.core, time.Now()); changed {
		r.view.Store(r.core.View())
	}
	before := r.next
	r.next = r.core.NextDeadline()
	return changed, !r.next.Equal(before)
}

func (r *Roster) deadline() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.next
}

// logRefusal says who was turned away and why, for nobody reads the registry.
func (r *Roster) logRefusal(err error) {
	if err != nil {
		r.log.Warn("worker turned away", "error", err)
	}
}

// own is a copy that nobody else can change.
func own(w Worker) *Worker {
	w.Topology = maps.Clone(w.Topology)
	return &w
}
