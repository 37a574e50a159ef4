package upstream

import (
	"context"
	"errors"
	"fmt"
)

// Op says how far a call had come when it failed.
type Op string

// The stages of a call, in order.
const (
	OpDial Op = "dial" // no connection came about: the worker has seen nothing
	OpHead Op = "head" // the request may have been seen, no answer's head came
	OpBody Op = "body" // the head came, the body broke off
)

// ErrProtocol is in every error that says an answer is not HTTP/1.1 as this
// package takes it. What the answer held is never part of the text.
var ErrProtocol = errors.New("answer is not the HTTP/1.1 that is taken here")

// errClosed is what a read of a closed answer gives.
var errClosed = errors.New("answer is closed")

// Error is a call that failed in transport. It holds the raw cause for fault.Classify and never any part of a body.
type Error struct {
	Worker string
	Op     Op
	Err    error
}

// Error names the worker, the stage and the cause.
func (e *Error) Error() string {
	return fmt.Sprintf("worker %s: %s: %v", e.Worker, e.Op, e.Err)
}

// Unwrap gives the raw cause.
func (e *Error) Unwrap() error { return e.Err }

// cause prefers the reason a context ended (who ended the call, and why) to the error that its end produced.
func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// malformed says what is wrong with an answer.
func malformed(what string) error { return fmt.Errorf("%w: %s", ErrProtocol, what) }
