package simulate

import (
	"time"

	"github.com/tandem-pd/tandem/lab/engine"
	"github.com/tandem-pd/tandem/lab/replay"
	"github.com/tandem-pd/tandem/router"
	"github.com/tandem-pd/tandem/router/planner"
)

// Outcome is the result of a run.
type Outcome struct {
	// Samples are the requests that were reported on, in the order in which
	// they ended; StageOf names the stage of each, and ClassOf its policy class.
	Samples []replay.Sample
	StageOf []int32
	ClassOf []int32
	// TBT is, for each sample, the mean of the longest tenth of its gaps; empty unless Config.Gaps is set.
	TBT []time.Duration
	// Stages are when each stage began and ended.
	Stages []Span
	// Moves are the planner's latest, and Moved is how many ended in a new role.
	Moves []planner.Past
	Moved int
	// Readings are the fleet's state over time.
	Readings []Reading
	// Preemptions and FailedLoads are the engines'.
	Preemptions, FailedLoads uint64
	// GivenUp is why the run was stopped; nil if it was not.
	GivenUp *GivenUp
	// Chosen is the mode by which the last prompts were placed, of the first gateway.
	Chosen router.Mode
	// Steps counts the events that were worked off.
	Steps uint64
}

// Span is when a stage took place, in nanoseconds since the start of the run.
type Span struct{ From, To time.Duration }

// Reading is the fleet's state at a time.
type Reading struct {
	At      time.Duration
	Queued  int // requests that wait for workers
	Engines []engine.Gauges
}
