package queue

import (
	"errors"
	"fmt"
	"time"
)

var (
	// ErrWait is what a reserve func answers, wrapped or not, when there is no room now but there may be later.
	// The request stays where it is.
	ErrWait = errors.New("queue: no room yet")
	// ErrFull is what every [*FullError] is.
	ErrFull = errors.New("queue: full")
	// ErrExpired ends a request that waited for Config.Timeout.
	ErrExpired = errors.New("queue: waited too long")
	// ErrClosed ends every request once the queue is closed.
	ErrClosed = errors.New("queue: closed")
)

// FullError refuses a request that would have to wait, because too much waits already.
type FullError struct {
	// RetryAfter is when there may be room again, in whole seconds from 1 to 60; see [Core.RetryAfter].
	RetryAfter time.Duration
	// Limit is the flag that set the limit which was met: "queue-limit" or "queue-bytes".
	Limit string
}

func (e *FullError) Error() string {
	return fmt.Sprintf("queue: full (--%s), retry after %v", e.Limit, e.RetryAfter)
}

// Is makes a FullError match [ErrFull].
func (e *FullError) Is(target error) bool { return target == ErrFull }
