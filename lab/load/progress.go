package load

import (
	"fmt"
	"time"

	"github.com/tandem-pd/tandem/internal/terminal"
	"github.com/tandem-pd/tandem/lab/replay"
)

// state is how far a load is that has run for so long and whose last request is due after span. Requests go out by the
// clock, so that the time left is known while some are still due; the answers to the last of them come on top.
func state(p replay.Progress, span, taken time.Duration) terminal.State {
	s := terminal.State{Text: fmt.Sprintf("%d of %d sent, %d in flight, %d answered, %d failed", p.Sent, p.Total, p.InFlight, p.Answered, p.Failed)}
	if p.Total > 0 {
		s.Share = float64(p.Answered+p.Failed) / float64(p.Total)
	}
	if p.Sent < p.Total {
		s.Left = max(0, span-taken)
	}
	return s
}
