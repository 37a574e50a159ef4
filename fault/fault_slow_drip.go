package fault

import (
	"cmp"
	"context"
	"time"

	"github.com/tandem-pd/tandem/internal/http1"
)

func init() {
	register(Registered{
		Name: "slow_drip",
		Help: "the answer arrives at rate bytes a second, 1024 where there is none, a few bytes at a time",
		uses: []string{"rate"},
		answer: func(c *injected, s http1.Stream) (http1.Stream, error) {
			ctx, wake := context.WithCancelCause(c.ctx)
			return &dripping{Stream: s, ctx: ctx, wake: wake, call: c, rate: cmp.Or(c.rule.Rate, 1024)}, nil
		},
	})
}

// dripping is a stream that brings a hundredth of a second's bytes at a time. Its bytes are all there in the end: a
// limit for silence does not find it, one for the whole does.
type dripping struct {
	http1.Stream
	ctx  context.Context
	wake context.CancelCauseFunc
	call *injected
	rate int // bytes a second
}

// Read reads a few bytes, and holds them up for as long as they take.
func (d *dripping) Read(p []byte) (int, error) {
	n, err := d.Stream.Read(p[:min(len(p), max(1, d.rate/100))])
	if n > 0 {
		if err := pause(d.ctx, time.Duration(n)*time.Second/time.Duration(d.rate)); err != nil {
			return 0, d.call.broken(http1.OpBody, err)
		}
	}
	return n, err
}

// Close wakes the read and closes the worker's stream.
func (d *dripping) Close() error {
	d.wake(errClosed)
	return d.Stream.Close()
}
