package pools

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// Roster tracks all workers. It is safe for concurrent use: writers take turns, and readers load the current [View]
// atomically.
type Roster struct {
	log  *slog.Logger
	view atomic.Pointer[View]
	kick chan struct{} // holds at most one: the deadlines moved

	mu   sync.Mutex // guards all below; nothing that is handed in is called under it
	core *Core
	next time.Time // core's deadline that Run last received

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

// From returns the access of one source of workers: a registry, a list, a file. Each source reports its own workers only,
// and should be one value in the program; see [Core].
func (r *Roster) From(source string) *Source { return &Source{roster: r, name: source} }

// These are the methods of the source without a name: the program itself.

func (r *Roster) Put(w Worker) error                      { return r.From("").Put(w) }
func (r *Roster) Remove(id string)                        { r.From("").Remove(id) }
func (r *Roster) Resync(ws []Worker, grace time.Duration) { r.From("").Resync(ws, grace) }

// Drain cordons a worker (it finishes what it has and takes no more, restarted or not), or lifts the cordon; see
// [Core.Drain]. Its errors are [ErrUnknownWorker] and [ErrTooManyCordons].
func (r *Roster) Drain(id string, on bool) error { return r.cordon((*Core).Drain, id, on) }

// Cordon is Drain for a worker that need not be known here; see [Core.Cordon].
func (r *Roster) Cordon(id string, on bool) error { return r.cordon((*Core).Cordon, id, on) }

func (r *Roster) cordon(f func(c *Core, id string, on bool) (bool, error), id string, on bool) error {
	var err error
	if r.change(func(c *Core, _ time.Time) (changed bool) {
		changed, err = f(c, id, on)
		return changed
	}) {
		what := "worker uncordoned"
		if on {
			what = "worker cordoned"
		}
		r.log.Info(what, "worker", id)
	}
	return err
}

// ReportDown notes that a call to that incarnation of a worker failed: it takes no requests for Config.DownFor.
// See [Core.Down].
func (r *Roster) ReportDown(id, incarnation string) {
	if r.change(func(c *Core, now time.Time) bool { return c.Down(id, incarnation, now) }) {
		r.log.Warn("worker down", "worker", id, "incarnation", incarnation)
	}
}

// ReportEnded notes that the process behind that incarnation of a worker has ended. See [Core.Ended].
func (r *Roster) ReportEnded(id, incarnation string) {
	if r.change(func(c *Core, now time.Time) bool { return c.Ended(id, incarnation, now) }) {
		r.log.Warn("worker ended", "worker", id, "incarnation", incarnation)
	}
}

// View is all pools at this moment, for a caller that asks more than one question.
func (r *Roster) View() *View { return r.view.Load() }

// These answer as [View] does, at this moment, without a lock.

func (r *Roster) Snapshot(model string, role Role) *Pool { return r.View().Pool(model, role) }
func (r *Roster) Fleet(model string) Fleet               { return r.View().Fleet(model) }
func (r *Roster) Pools() []*Pool                         { return r.View().Pools() }
func (r *Roster) Models() []string                       { return r.View().Models() }
func (r *Roster) Known(model string, role Role) bool     { return r.View().Known(model, role) }
func (r *Roster) Resolve(name string) (model, adapter string) {
	return r.View().Resolve(name)
}
func (r *Roster) Lookup(id string) (Member, bool) { return r.View().Lookup(id) }
func (r *Roster) Refused() []Refusal              { return r.View().Refused() }
func (r *Roster) Cordoned() []string              { return r.View().Cordoned() }

// change lets f change the core, publishes what came of it and calls the callbacks.
func (r *Roster) change(f func(c *Core, now time.Time) bool) bool {
	changed, moved := r.apply(f)
	if moved {
		select {
		case r.kick <- struct{}{}:
		default: // Run is notified already and has not looked yet
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
		view := r.core.View()
		r.announce(r.view.Swap(view), view)
	}
	before := r.next
	r.next = r.core.NextDeadline()
	return changed, !r.next.Equal(before)
}

// announce logs who came, who went and who is another process than before. It
// is called under the lock, so that the log has the order of the changes.
func (r *Roster) announce(before, after *View) {
	for _, p := range after.Pools() {
		for _, m := range p.Members {
			switch was, known := before.Lookup(m.Worker.ID); {
			case !known:
				r.log.Info("worker joined", "worker", m.Worker.ID, "model", p.Model, "role", string(p.Role), "address",
					m.Worker.Address, "source", named(m.Source))
			case was.Worker.Incarnation != m.Worker.Incarnation:
				r.log.Info("worker restarted", "worker", m.Worker.ID, "incarnation", m.Worker.Incarnation)
			}
		}
	}
	for _, p := range before.Pools() {
		for _, m := range p.Members {
			if _, stays := after.Lookup(m.Worker.ID); !stays {
				r.log.Info("worker left", "worker", m.Worker.ID, "model", p.Model, "role", string(p.Role))
			}
		}
	}
}

func (r *Roster) deadline() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.next
}
