package follow

import (
	"time"

	"github.com/tandem-pd/tandem/kv/view"
)

// recovery decides when a view emptied after a loss is reliable again: after a whole cache's worth of new blocks
// without an unknown one, or once the engine has re-announced its prefixes for long enough.
type recovery struct {
	open  bool // missing events cannot be repaired
	fresh int  // new blocks stored, while open, since the last unknown block
	// since is when unknown parents stopped appearing, zero if they have not. reannounced counts the known chains
	// announced again since.
	since       time.Time
	reannounced int
}

// enoughReannounced is how many chains an engine must have announced again to count as one that re-announces. Two
// prompts computed at once can store a block twice and look alike.
const enoughReannounced = 8

// notice updates the recovery by the tally before and after a message. capacity is the rank's blocks, 0 unknown.
func (r *recovery) notice(before, after view.Tally, capacity int) {
	again := after.Again - before.Again
	r.reannounced += int(after.Reannounced - before.Reannounced)
	switch {
	case after.Orphans > before.Orphans:
		r.fresh, r.reannounced, r.since = 0, 0, time.Time{}
	case after.Unknown > before.Unknown:
		r.fresh = 0
	default:
		r.fresh += int(after.Stored - before.Stored - again)
		// Blocks from before the loss are evicted by now, or were used and extended, which would have named them.
		if capacity > 0 && r.fresh >= capacity {
			r.open = false
		}
	}
}

// relearned ends the recovery, and reports that it did, once the engine has re-announced for as long as a prediction
// lives without an unknown parent. Prefixes used since are known exactly; for the others
// a prediction is no better.
func (r *recovery) relearned(now time.Time, after time.Duration) bool {
	switch {
	case !r.open:
	case r.since.IsZero():
		r.since = now
	case r.reannounced >= enoughReannounced && now.Sub(r.since) >= after:
		r.open = false
		return true
	}
	return false
}
