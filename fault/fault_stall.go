package fault

import (
	"context"
	"errors"

	"github.com/tandem-pd/tandem/internal/http1"
)

func init() {
	register(Registered{
		Name:   "stall",
		Help:   "the answer stops after after_events events while the connection stays open, for delay, or for good where there is none",
		uses:   []string{"after_events", "delay"},
		answer: stall,
	})
}

// stall keeps a connection open and silent: a paused process, a hung GPU.
func stall(c *injected, s http1.Stream) (http1.Stream, error) {
	ctx, wake := context.WithCancelCause(c.ctx)
	silent := &stalled{cut: cut{Stream: s, meter: newMeter(s, c.rule.AfterEvents)}, wake: wake}
	silent.after = func(p []byte) (int, error) {
		if err := pause(ctx, c.rule.Delay); err != nil {
			return 0, c.broken(http1.OpBody, err)
		}
		silent.after = silent.resume
		return silent.resume(p)
	}
	return silent, nil
}

// stalled is a stream whose Close ends a read that waits, as closing a connection does.
type stalled struct {
	cut
	wake context.CancelCauseFunc
}

// Close wakes the read and closes the worker's stream.
func (s *stalled) Close() error {
	s.wake(errClosed)
	return s.cut.Close()
}

// errClosed is what a read gets whose stream is closed meanwhile.
var errClosed = errors.New("stream is closed")
