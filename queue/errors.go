package queue

import (
	"errors"
	"fmt"
	"time"
)

var (
	// ErrWait, possibly wrapped, is a reserve func's error while there is no room: the request keeps waiting.
	ErrWait = errors.New("queue: no room yet")
	// ErrYield, wrapped with ErrWait or a [Later], means that room is left to a request at another gateway: see
	// [Drain.Yield].
	ErrYield = errors.New("queue: room is left to a request at another gateway")
	// ErrExpired ends a request that waited for Config.Timeout.
	ErrExpired = errors.New("queue: waited too long")
	// ErrClosed ends every request once the queue is closed.
	ErrClosed = errors.New("queue: closed")
)

// Later, possibly wrapped, is a reserve func's error if the request keeps waiting but blocks none behind it: its worker
// is planned, and later tickets of the drain take that into account. starts is the wait from now, behind earlier
// tickets of the drain; takes is the prompt's time on that worker; then is the time from the prompt's end to the first
// token. free is the time from now until the first worker is idle: until then no such request can be granted.
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

// FullError refuses a request that would have to wait because the queue is full.
type FullError struct {
	// RetryAfter estimates when there is room again, in whole seconds from 1 to 60.
	RetryAfter time.Duration
	// Limit is the exceeded limit: [LimitRequests] or [LimitBytes].
	Limit string
	// Class is the policy class whose share of it is used up; empty without classes.
	Class string
}

func (e *FullError) Error() string {
	if e.Class != "" {
		return fmt.Sprintf("queue: policy class %s has its share of %s, retry after %v", e.Class, e.Limit, e.RetryAfter)
	}
	return fmt.Sprintf("queue: full (%s), retry after %v", e.Limit, e.RetryAfter)
}
