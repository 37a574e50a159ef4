package pools

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// RefusedError is a worker that cannot serve with the others because of its block size: a block hash means
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
	return fmt.Sprintf("worker %q refused: it registered block_size %d, worker %q of model %q has %d", e.Worker,
		e.Registered, e.By, e.Model, e.Required)
}

// NoHandOffError is a worker of role prefill or decode whose way to hand a KV cache over is not spoken here: it would
// join a pair that cannot serve.
type NoHandOffError struct {
	Worker string // the id
	Role   Role
	Err    error // why
}

// Unwrap is why.
func (e *NoHandOffError) Unwrap() error { return e.Err }

func (e *NoHandOffError) Error() string {
	return fmt.Sprintf("worker %q refused: it registered role %s, and %v; let it serve alone, with role both",
		e.Worker, e.Role, e.Err)
}

// ClaimedError is a worker whose id is taken by a worker of another source: the first keeps it, and the other comes in
// when the first has gone.
type ClaimedError struct {
	Worker string // the id
	Source string // that has a worker of the same id
	By     string // the source that has it
}

func (e *ClaimedError) Error() string {
	return fmt.Sprintf("worker %q of %s refused: %s has a worker of that id", e.Worker, named(e.Source), named(e.By))
}

// named is how a source is called in a sentence.
func named(source string) string { return cmp.Or(source, "the program itself") }

// Refusal is a worker that registered and was turned away.
type Refusal struct {
	Worker *Worker // as far as it is known
	// Source is the source that reported it; see [Roster.From].
	Source string
	// Err is a [*RefusedError], a [*NoHandOffError], a [*ClaimedError], an [*InvalidError], or what the source itself has
	// against it.
	Err   error
	Since time.Time

	stands bool // the source refused it, so that nothing here can let it in
}

// claim is one source's word on one id.
type claim struct{ source, id string }

// check returns why w of that source is refused, or nil. Of several workers that disagree with w the error names the
// first by id, to be deterministic.
func (c *Core) check(source string, w *Worker) error {
	if err := w.Validate(); err != nil {
		return err
	}
	if e, there := c.entries[w.ID]; there && e.source != source {
		return &ClaimedError{Worker: w.ID, Source: source, By: e.source}
	}
	if w.Role != Both && c.cfg.HandsOver != nil {
		if err := c.cfg.HandsOver(w); err != nil {
			return &NoHandOffError{Worker: w.ID, Role: w.Role, Err: err}
		}
	}
	refusal := &RefusedError{Worker: w.ID, Model: w.Model, Registered: w.BlockSize, Required: c.cfg.BlockSize}
	if c.cfg.BlockSize != 0 {
		if w.BlockSize != c.cfg.BlockSize {
			return refusal
		}
		return nil
	}
	for id, e := range c.entries {
		if id == w.ID || e.worker.Model != w.Model || e.worker.BlockSize == w.BlockSize || c.mixes(e.worker, w) {
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

// mixes reports whether two workers of a model may have different block sizes: the halves of a pair that hands over in pages of
// one size, or of whose engine the hand-off converts between them.
func (c *Core) mixes(a, b *Worker) bool {
	return a.Role != b.Role && a.Role != Both && b.Role != Both &&
		(a.Page() == b.Page() || c.cfg.MixesBlocks != nil && c.cfg.MixesBlocks(a) && c.cfg.MixesBlocks(b))
}

// refuse remembers r, if it has an id to be remembered by, and takes out the worker of that source and id.
func (c *Core) refuse(r Refusal) (changed bool) {
	c.found(claim{r.Source, r.Worker.ID})
	if idProblem(r.Worker.ID) != "" {
		return false
	}
	of := claim{r.Source, r.Worker.ID}
	before, again := c.refused[of]
	if again && before.stands == r.stands && before.Worker.Equal(r.Worker) && before.Err.Error() == r.Err.Error() {
		return false
	}
	c.refused[of] = r
	if c.drop(of) {
		c.reconsider()
	}
	return true
}

// reconsider admits refused workers that no longer conflict: when the last worker of the old block size goes, the new
// ones need not register again. They are retried in the order of refusal; the reasons of the others are updated.
func (c *Core) reconsider() {
	for _, r := range slices.SortedFunc(maps.Values(c.refused), refusedFirst) {
		if r.stands {
			continue
		}
		of := claim{r.Source, r.Worker.ID}
		if err := c.check(r.Source, r.Worker); err != nil {
			r.Err = err
			c.refused[of] = r
			continue
		}
		delete(c.refused, of)
		e := &entry{worker: r.Worker, source: r.Source}
		c.entries[r.Worker.ID] = e
		c.touch(e.key())
	}
}

func refusedFirst(a, b Refusal) int {
	return cmp.Or(a.Since.Compare(b.Since), strings.Compare(a.Worker.ID, b.Worker.ID), strings.Compare(a.Source, b.Source))
}
