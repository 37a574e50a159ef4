package upstream

import (
	"errors"
	"fmt"
	"net"
)

// Op says how far a call had come when it failed.
type Op string

// The stages of a call, in order.
const (
	OpDial Op = "dial" // no connection came about: the worker has seen nothing
	OpHead Op = "head" // the request may have been seen, no answer's head came
	OpBody Op = "body" // the head came, the body broke off
)

// Error is a call that failed in transport. It holds the raw cause for
// fault.Classify and never any part of a body.
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

// opOf tells a failed dial from what came later.
func opOf(err error) Op {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return OpDial
	}
	return OpHead
}
