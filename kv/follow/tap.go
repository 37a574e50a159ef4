package follow

import (
	"time"

	"github.com/tandem-pd/tandem/kv/wire"
)

// Tap observes the changes of a [Subscriber]'s views, in order, from Run.
type Tap interface {
	// Began: the view is empty, because another process is followed, or the same one from its first message.
	Began(wire.Source)
	// Restarted: the engine restarted; the old connection was lost at cut. It follows Began.
	Restarted(s wire.Source, cut time.Time)
	// Lost: a loss emptied the view.
	Lost(wire.Source)
	// Applied: these events were applied to the view. They are valid during the call.
	Applied(wire.Source, []wire.Event)
	// StateChanged: the state changed.
	StateChanged(wire.Source, State)
}
