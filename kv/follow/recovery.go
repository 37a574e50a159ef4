package follow

import (
	"time"

	"github.com/tandem-pd/tandem/kv/view"
)

// recovery decides when a view that was emptied after a loss can be relied on again. It is, after a whole cache's worth of
// new blocks in which no unknown block was named; or after the engine has re-announced what it uses for long enough.
type recovery struct {
	open  bool // events are missing that cannot be repaired
	fresh int  // new blocks stored, while open, since an event named one that is not known
	// since is when the time began in which no block followed on one that is not known, zero if it is to begin; and
	// reannounced counts the chains since then that the engine announced though they were known.
	since       time.Time
	reannounced int
}

// enoughReannounced is how many chains an engine must have announced again for it to be taken as one that announces all it
// uses again. Two prompts computed at once can store the same block twice, and look like one.
const enoughReannounced = 8

// notice takes note of one message, by the view's tally before and after it. capacity is the rank's blocks, 0 if not known.
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
		// What was there before the loss has been evicted by now, or used again and extended; either would have named it.
		if capacity > 0 && r.fresh >= capacity {
			r.open = false
		}
	}
}

// relearned ends the recovery, and reports that it did, when the engine has re-announced what it uses for as long as a
// prediction remembers, and no block followed on an unknown one in that time. What has been asked for since is then known
// to the block. What has not may be missing; a prediction would know no more of it.
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
