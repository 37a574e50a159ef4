package queue

import (
	"errors"
	"fmt"
	"time"
)

var (
	// ErrWait, wrapped or not, is the answer of a reserve func while there is no room: the request waits on.
	ErrWait = errors.New("queue: no room yet")
	// ErrExpired ends a request that waited for Config.Timeout.
	ErrExpired = errors.New("queue: waited too long")
	// ErrClosed ends every request once the queue is closed.
	ErrClosed = errors.New("queue: closed")
)

// LaterError, wrapped or not, is the answer where the request waits on and holds up none behind it: what it waits for is
// planned, and those are asked with that in view.
type LaterError struct{ Plan }

func (e *LaterError) Error() string { return "queue: its worker is not free yet" }

// Plan is what a reserve func predicts for a request that is to wait for a worker.
type Plan struct {
	Worker int           // any number that is that worker's alone
	Starts time.Duration // from now, behind those asked before it in the same drain
	Takes  time.Duration // its prompt, there
}

// FullError refuses a request that would have to wait, because too much waits already.
type FullError struct {
	// RetryAfter is when there may be room again, in whole seconds from 1 to 60; see retryAfter.
	RetryAfter time.Duration
	// Limit is the flag that set the limit which was met: "queue-limit" or "queue-bytes".
	Limit string
}

func (e *FullError) Error() string {
	return fmt.Sprintf("queue: full (--%s), retry after %v", e.Limit, e.RetryAfter)
}
