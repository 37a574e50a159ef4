package fault

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/tandem-pd/tandem/internal/upstream"
)

func init() {
	Register(Registered{
		Name: "stall",
		Help: "the answer stops after after_events events while the connection stays open, for delay, or for good where there is none",
		Uses: []string{"after_events", "delay"},
		New:  func(r Rule) (Fault, error) { return stall{after: r.AfterEvents, lasts: r.Delay}, nil },
	})
}

// stall keeps a connection open and silent: a paused process, a hung GPU.
type stall struct {
	after int
	lasts time.Duration // 0: until the call's context ends or the stream is closed
}

func (f stall) Call(ctx context.Context, leg upstream.Leg, next upstream.Transport, _ *rand.Rand) (upstream.Stream, error) {
	s, err := next.Call(ctx, leg)
	if err != nil {
		return nil, err
	}
	ctx, wake := context.WithCancelCause(ctx)
	silent := &stalled{cut: cut{Stream: s, meter: newMeter(s, f.after)}, wake: wake}
	silent.after = func(p []byte) (int, error) {
		if err := f.wait(ctx); err != nil {
			return 0, broken(leg, upstream.OpBody, err)
		}
		silent.after = silent.resume
		return silent.resume(p)
	}
	return silent, nil
}

// wait is silent for as long as the fault lasts, or gives the cause of ctx's
// end.
func (f stall) wait(ctx context.Context) error {
	if f.lasts > 0 {
		return pause(ctx, f.lasts)
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

// stalled is a stream whose Close ends a read that waits, as closing a
// connection does.
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
