package planner

import (
	"slices"
	"time"

	"github.com/tandem-pd/tandem/pools"
)

// State is how far a move has come.
type State string

// A move first waits for the worker's requests, then for its engine.
const (
	Draining  State = "draining"
	Switching State = "switching"
)

// Action is what a shell has to do with the worker of a move.
type Action uint8

// The actions. Each is for the incarnation that Move names.
const (
	Nothing Action = iota
	Cordon         // give it no more requests
	Switch         // change the engine's role, where that takes a call, verify it, and report by Core.Switched
	Admit          // give it requests of the new role
	Restore        // give it requests of its old role again
	KeepOut        // leave it cordoned: its engine has no role that is known
)

// Move is a worker's change of role. ID is its epoch: an answer that names another is late.
type Move struct {
	ID          uint64     `json:"id"`
	Worker      string     `json:"worker"`
	Incarnation string     `json:"-"`
	From        pools.Role `json:"from"`
	To          pools.Role `json:"to"`
	State       State      `json:"state"`
	Since       time.Time  `json:"since"`
	Budget      float64    `json:"budget_s"`
	// Demand is that of prefill and decode when the move began, in workers.
	Demand [2]float64 `json:"inputs"`

	began time.Time
}

// Past is a move that has ended.
type Past struct {
	Move
	// Result is "ok", or the reason [Restored] or [Lost]; Took is in seconds.
	Result string  `json:"result"`
	Took   float64 `json:"took_s"`

	ended time.Time
}

// cooldown is how long the next move waits after one.
func (p *Past) cooldown(least time.Duration) time.Duration {
	return max(least, time.Duration(cooldownMoves*p.Took*float64(time.Second)))
}

// resultOK is the result of a move whose worker serves in its new role.
const resultOK = "ok"

// Outcome is how an engine's change of role ended.
type Outcome uint8

// The outcomes.
const (
	Done       Outcome = iota // verified
	Restorable                // failed, and the engine serves its old role
	Failed                    // failed, and it serves none
)

// Past returns the latest moves that have ended, oldest first.
func (c *Core) Past() []Past { return slices.Clone(c.past) }

// last is the latest move that has ended; nil for none.
func (c *Core) last() *Past {
	if len(c.past) == 0 {
		return nil
	}
	return &c.past[len(c.past)-1]
}

// advance takes the move on its way further.
func (c *Core) advance(in *Inputs, now time.Time) Action {
	m := c.move
	if m == nil {
		return Nothing
	}
	pool := in.Prefill
	if m.From == pools.Decode {
		pool = in.Decode
	}
	i := slices.IndexFunc(pool, func(w Worker) bool { return w.ID == m.Worker && w.Incarnation == m.Incarnation })
	late := now.Sub(m.Since).Seconds() >= m.Budget
	switch {
	case i < 0: // it has gone, or started again in the role that it registered with
		return c.end("restored", Restore, now)
	case m.State == Draining && (pool[i].Requests == 0 || late && pool[i].Switches() == pools.SoftSwitch):
		m.State, m.Since = Switching, now
		return Switch
	case m.State == Draining && late:
		return c.end("restored", Restore, now)
	case late:
		return c.fail(now)
	}
	return Nothing
}

// Switched reports how the change of the engine of move id ended, and returns what the shell has to do: [Admit],
// [Restore], [KeepOut], or [Nothing] if the report is late.
func (c *Core) Switched(id uint64, outcome Outcome, now time.Time) Action {
	if c.move == nil || c.move.ID != id || c.move.State != Switching {
		return Nothing
	}
	switch outcome {
	case Done:
		return c.end(resultOK, Admit, now)
	case Restorable:
		c.bar(now)
		return c.end("restored", Restore, now)
	}
	return c.fail(now)
}

// fail ends a move whose worker may have no role.
func (c *Core) fail(now time.Time) Action {
	c.bar(now)
	return c.end("lost", KeepOut, now)
}

// bar keeps the move's worker from further tries.
func (c *Core) bar(now time.Time) {
	for id, until := range c.barred {
		if now.After(until) {
			delete(c.barred, id)
		}
	}
	c.barred[c.move.Worker] = now.Add(lostFor)
}

func (c *Core) end(result string, do Action, now time.Time) Action {
	if len(c.past) == kept {
		c.past = c.past[1:]
	}
	c.past = append(c.past, Past{Move: *c.move, Result: result, Took: now.Sub(c.move.began).Seconds(), ended: now})
	c.move = nil
	return do
}
