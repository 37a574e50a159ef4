package follow

import (
	"time"

	"github.com/tandem-pd/tandem/kv/wire"
)

// Tap is called with what a [Subscriber] does to its views, in order and from its Run.
type Tap interface {
	// Began: the view is empty, because another process is followed, or the same one from its first message on.
	Began(wire.Source)
	// Restarted: it was another process; the connection to the one before was lost at cut. It comes after Began.
	Restarted(s wire.Source, cut time.Time)
	// Lost: the view was emptied because something is missing.
	Lost(wire.Source)
	// Applied: these events were put into the view. They are only good during the call.
	Applied(wire.Source, []wire.Event)
	// StateChanged: the state is another than before.
	StateChanged(wire.Source, State)
}
