package queue

import (
	"errors"
	"fmt"
	"time"
)

var (
	// ErrWait, wrapped or not, is the answer of a reserve func while there is no room: the request waits on.
	ErrWait = errors.New("queue: no room yet")
	// ErrYield, wrapped together with ErrWait or a [Later], means that there may be room, left to a request at another
	// gateway: see [Drain.Yield].
	ErrYield = errors.New("queue: room is left to a request at another gateway")
	// ErrExpired ends a request that waited for Config.Timeout.
	ErrExpired = errors.New("queue: waited too long")
	// ErrClosed ends every request once the queue is closed.
	ErrClosed = errors.New("queue: closed")
)

// Later, wrapped or not, is the answer of a reserve func where the request waits on and holds up none behind it: what it
// waits for is planned, and those are asked with that in view. starts is from now, behind those asked before it in the
// same drain; takes is its prompt's time there, and then that from the prompt's end to the first token. free is when the
// first of all workers has nothing left to compute, from now: until then no request like this one can be granted.
type Later interface {
	error
	Later() (starts, takes, then, free time.Duration)
}

// plan holds the times of a [Later].
type plan struct {
	starts, takes, then, free time.Duration
}

// The limits of a queue.
const (
	LimitRequests = "--queue-limit"
	LimitBytes    = "512 MiB of bodies"
)

// FullError refuses a request that would have to wait, because too much waits already.
type FullError struct {
	// RetryAfter is when there may be room again, in whole seconds from 1 to 60; see retryAfter.
	RetryAfter time.Duration
	// Limit is the one that was met: [LimitRequests] or [LimitBytes].
	Limit string
	// Class is the policy class whose share of that limit was met; empty without classes.
	Class string
}

func (e *FullError) Error() string {
	if e.Class != "" {
		return fmt.Sprintf("queue: policy class %s has its share of %s, retry after %v", e.Class, e.Limit, e.RetryAfter)
	}
	return fmt.Sprintf("queue: full (%s), retry after %v", e.Limit, e.RetryAfter)
}
