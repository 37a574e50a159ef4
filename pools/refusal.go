package pools

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// RefusedError is a worker that cannot serve beside the others because of its block size: a block hash means
// nothing across block sizes, and neither does a KV cache handed off.
type RefusedError struct {
	Worker     string // the worker that was refused
	Model      string
	Registered int // tokens in a block, as Worker registered
	Required   int // tokens in a block, as By requires
	// By is the id of the worker of the same model that came first, or empty where --kv-cache-block-size decided.
	By string
}

func (e *RefusedError) Error() string {
	if e.By == "" {
		return fmt.Sprintf("worker %q refused: it registered block_size %d, --kv-cache-block-size is %d", e.Worker, e.Registered, e.Required)
	}
	return fmt.Sprintf("worker %q refused: it registered block_size %d, worker %q of model %q has %d", e.Worker, e.Registered, e.By, e.Model, e.Required)
}

// Refusal is a worker that registered and was turned away.
type Refusal struct {
	Worker *Worker
	Err    error // a [*RefusedError], or an [*InvalidError]
	Since  time.Time
}

// check says why w cannot come in, or nil. Among several workers that disagree with w the error names the first by
// id, so that the same registrations give the same words.
func (c *Core) check(w *Worker) error {
	if err := w.Validate(); err != nil {
		return err
	}
	refusal := &RefusedError{Worker: w.ID, Model: w.Model, Registered: w.BlockSize, Required: c.cfg.BlockSize}
	if c.cfg.BlockSize != 0 {
		if w.BlockSize != c.cfg.BlockSize {
			return refusal
		}
		return nil
	}
	for id, e := range c.entries {
		if id == w.ID || e.worker.Model != w.Model || e.worker.BlockSize == w.BlockSize {
			continue
		}
		if refusal.By == "" || id < refusal.By {
			refusal.By, refusal.Required = id, e.worker.BlockSize
		}
	}
	if refusal.By == "" {
		return nil
	}
	return refusal
}

// refuse remembers w with the reason, if it has an id to be remembered by.
func (c *Core) refuse(w *Worker, reason error, now time.Time) (changed bool) {
	if idProblem(w.ID) != "" {
		return false
	}
	before, again := c.refused[w.ID]
	if again && before.Worker.Equal(w) && before.Err.Error() == reason.Error() {
		return false
	}
	c.refused[w.ID] = Refusal{Worker: w, Err: reason, Since: now}
	if c.drop(w.ID) {
		c.reconsider()
	}
	return true
}

// reconsider lets refused workers in that nothing stands against any more: when the last worker of the old block
// size goes, the new ones need not register again. They are asked in the order of their refusal; who stays out is
// told what stands against it now.
func (c *Core) reconsider() {
	for _, r := range slices.SortedFunc(maps.Values(c.refused), refusedFirst) {
		if err := c.check(r.Worker); err != nil {
			r.Err = err
			c.refused[r.Worker.ID] = r
			continue
		}
		delete(c.refused, r.Worker.ID)
		e := &entry{worker: r.Worker}
		c.entries[r.Worker.ID] = e
		c.touch(e.key())
	}
}

func refusedFirst(a, b Refusal) int {
	return cmp.Or(a.Since.Compare(b.Since), strings.Compare(a.Worker.ID, b.Worker.ID))
}
