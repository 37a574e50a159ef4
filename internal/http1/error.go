package http1

import (
	"context"
	"errors"
	"fmt"
)

// Op is how far a call had progressed when it failed.
type Op string

// The stages of a call, in order.
const (
	OpDial Op = "dial" // no connection: the worker has seen nothing
	OpHead Op = "head" // the worker may have seen the request; no response header arrived
	OpBody Op = "body" // the body broke off
)

// ErrProtocol is wrapped by errors about answers that are not valid HTTP/1.1. Their text never quotes the answer.
var ErrProtocol = errors.New("answer is not the HTTP/1.1 that is taken here")

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

// malformed returns an ErrProtocol with a reason.
func malformed(what string) error { return fmt.Errorf("%w: %s", ErrProtocol, what) }
