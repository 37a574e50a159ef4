package router

import (
	"errors"
	"fmt"
	"time"

	"github.com/tandem-pd/tandem/pools"
)

// Why no worker was chosen. They come wrapped in a [*PoolError].
var (
	// ErrNoWorkers: no untried worker is up. Waiting helps if workers are down, not if all are excluded.
	ErrNoWorkers = errors.New("no eligible worker")
	// ErrNoPrefill is the ErrNoWorkers of a pair's prefill pool: decode alone may still serve the request.
	ErrNoPrefill = fmt.Errorf("prefill: %w", ErrNoWorkers)
	// ErrNoPartner is the ErrNoPrefill of a pair: no prefill worker that is up can hand over to a decode worker that is
	// up.
	ErrNoPartner = fmt.Errorf("no pair that can hand over: %w", ErrNoPrefill)
	// ErrTaints: no eligible worker has the taints, or the adapter, that the request requires. It is an ErrNoWorkers.
	ErrTaints = fmt.Errorf("required taints: %w", ErrNoWorkers)
	// errNoPrefillTaints is both ErrTaints and ErrNoPrefill, of a pair's prefill pool.
	errNoPrefillTaints = fmt.Errorf("%w: %w", ErrTaints, ErrNoPrefill)
	// ErrBusy: every eligible worker has more prefill tokens booked than the
	// queue threshold allows. Wait for a first token.
	ErrBusy = errors.New("all workers are busy with prefill")
	// ErrNoRoom: no eligible worker has the blocks and a sequence left. Wait for a request to end.
	ErrNoRoom = errors.New("no worker has room")
	// ErrBooked: the attempt has a booking in this pool already: a bug of the caller.
	ErrBooked   = errors.New("attempt already booked")
	ErrDeclined = errors.New("policy chose no worker") // the policy picked none of the candidates
)

// TooBigError is a request that would not fit an empty worker of the pool. Waiting does not help.
type TooBigError struct {
	NeedBlocks    int // the prompt's blocks and one for its first token
	LargestBlocks int // the largest total_kv_blocks in the pool
}

func (e *TooBigError) Error() string {
	return fmt.Sprintf("request needs %d blocks, the largest worker has %d", e.NeedBlocks, e.LargestBlocks)
}

// LaterError: in mode eft, the worker that would finish first is not free yet. Others may be booked before the request.
type LaterError struct {
	Slot   int           // the worker's rank, among its pool's
	Starts time.Duration // from now, after the prompts ahead
	Takes  time.Duration // the prompt, there
	Then   time.Duration // from that end to the first token
	Free   time.Duration // from now until the first eligible worker is idle

	pool PoolError
}

var errNotFree = errors.New("the worker that would finish first is not free yet")

func (e *LaterError) Error() string { return e.pool.Error() }

// Later returns the times in e, in the fields' order, for the queue's plan.
func (e *LaterError) Later() (starts, takes, then, free time.Duration) {
	return e.Starts, e.Takes, e.Then, e.Free
}

// Unwrap returns a [*PoolError] with the worker's pool.
func (e *LaterError) Unwrap() error { return &e.pool }

// PoolError names the pool in which no worker was chosen.
type PoolError struct {
	Model string
	Role  pools.Role
	Err   error
}

func (e *PoolError) Error() string {
	return fmt.Sprintf("%s pool of %q: %v", e.Role, e.Model, e.Err)
}

// Unwrap returns the reason.
func (e *PoolError) Unwrap() error { return e.Err }

// finality orders reasons by how little waiting would help.
func finality(err error) int {
	var big *TooBigError
	var over *OverloadedError
	var later *LaterError
	switch {
	case err == nil:
		return 0
	case errors.Is(err, ErrNoRoom), errors.Is(err, ErrBusy), errors.As(err, &later):
		return 1
	case errors.As(err, &over):
		return 2
	case errors.As(err, &big):
		return 4
	}
	return 3
}
