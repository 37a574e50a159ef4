package fault

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/pools"
)

// Causes with which the gateway ends a call's context (context.WithCancelCause), for Classify.
var (
	ErrClientGone = errors.New("client has gone")               // the cause when the client has left
	ErrShutdown   = errors.New("gateway is shutting down")      // the cause when the gateway stops
	ErrTimeout    = errors.New("worker did not answer in time") // the cause when a leg's own limit has passed
	// ErrStalled is the cause when a stream brought nothing for its idle limit.
	ErrStalled = errors.New("stream brought nothing for too long")
)

// Errors a leg finds in an answer that arrived.
var (
	ErrGarbled = errors.New("answer cannot be understood")
	// ErrTooLarge: an answer that is whole and long, because the request asks for that much.
	ErrTooLarge  = errors.New("answer is larger than the gateway relays")
	ErrTruncated = errors.New("stream ended before its end marker")
	// ErrEngine: an error inside an answer with status 200, such as an error event of a stream. Its status is the one
	// in the error.
	ErrEngine = errors.New("engine reported an error inside its answer")
	// ErrRunaway: a stream that continues well past the longest answer asked for.
	ErrRunaway = errors.New("stream goes on past the longest answer")
	// ErrMoved ends a call whose stream continues on another worker.
	ErrMoved = errors.New("resumes on another worker")
	// ErrEngineDied: the engine's core died, as its server reported before it ended.
	ErrEngineDied = errors.New("engine's core died")
)

// Classify names a failure from what was seen of it: the raw error of the
// call (nil when an answer came) and the HTTP status (0 when none came).
//
//	err                         status               class
//	nil                         2xx                  None
//	nil                         429, 503             Overloaded
//	nil                         400, 413, 415, 422   Rejected
//	nil                         404                  NotServed
//	nil                         other                EngineError
//	ErrClientGone, Canceled     any                  ClientGone
//	ErrShutdown                 any                  Shutdown
//	ErrTimeout, deadline        any                  Timeout
//	ErrStalled                  any                  Stalled
//	ErrMoved                    any                  Moved
//	ErrTooLarge                 any                  TooLarge
//	ErrGarbled                  any                  Garbled
//	ErrTruncated                any                  Truncated
//	ErrEngine                   429, 503             Overloaded
//	ErrEngine                   404                  NotServed
//	ErrEngine                   4xx but 408, 429     Rejected
//	ErrEngine                   other                EngineError
//	ErrRunaway                  any                  EngineError
//	ErrCircuitOpen              any                  Refused
//	http1.ErrProtocol           any                  Garbled
//	*http1.Error at dial        any                  GatewayError for http1.LocalFailure, else Refused
//	anything else               any                  Reset
func Classify(err error, status int) Class {
	switch {
	case err == nil:
		return classifyStatus(status)
	case errors.Is(err, ErrShutdown):
		return Shutdown
	case errors.Is(err, ErrTimeout), errors.Is(err, context.DeadlineExceeded):
		return Timeout
	case errors.Is(err, ErrStalled):
		return Stalled
	case errors.Is(err, ErrClientGone), errors.Is(err, context.Canceled):
		return ClientGone
	case errors.Is(err, ErrMoved):
		return Moved
	case errors.Is(err, ErrTooLarge):
		return TooLarge
	case errors.Is(err, ErrGarbled), errors.Is(err, http1.ErrProtocol):
		return Garbled
	case errors.Is(err, ErrTruncated):
		return Truncated
	case errors.Is(err, ErrEngine):
		return classifyEvent(status)
	case errors.Is(err, ErrRunaway):
		return EngineError
	case errors.Is(err, ErrCircuitOpen):
		return Refused
	}
	switch up, ok := errors.AsType[*http1.Error](err); {
	case !ok || up.Op != http1.OpDial:
		return Reset
	case http1.LocalFailure(err):
		return GatewayError
	}
	return Refused
}

func classifyStatus(status int) Class {
	switch {
	case status >= 200 && status < 300:
		return None
	case status == http.StatusTooManyRequests, status == http.StatusServiceUnavailable:
		return Overloaded
	case slices.Contains(aboutTheRequest, status):
		return Rejected
	case status == http.StatusNotFound:
		return NotServed
	default:
		return EngineError
	}
}

// aboutTheRequest are the statuses by which an engine refuses a request's content. Any other 4xx is between gateway and
// worker: a wrong key (401, 403), an unknown model or route (404, 405), a timeout (408).
var aboutTheRequest = []int{
	http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity,
}

// classifyEvent names an error inside an answer. The engine had admitted the request: its 4xx is about the content.
func classifyEvent(status int) Class {
	switch {
	case status == http.StatusTooManyRequests, status == http.StatusServiceUnavailable:
		return Overloaded
	case status == http.StatusNotFound:
		return NotServed
	case status >= 400 && status < 500 && status != http.StatusRequestTimeout:
		return Rejected
	default:
		return EngineError
	}
}

// classOf is the class of how a call ended: None for nil, a nil [*Error] too.
func classOf(err error) Class {
	if failed, ok := errors.AsType[*Error](err); ok {
		if failed == nil {
			return None
		}
		return failed.Class
	}
	if class, ok := errors.AsType[Class](err); ok || err == nil {
		return class
	}
	return Classify(err, 0)
}

// Error is a leg's classified failure. It never carries a prompt. Detail, the engine's message, is for the request's
// client and not in Error, so that it stays out of logs.
type Error struct {
	Class  Class
	Leg    pools.Role
	Worker string
	// Status is the engine's HTTP status, or that of an error inside its answer; 0 for none.
	Status int
	Detail []byte // the engine's error body, at most 64 KB from decode
	Err    error  // the raw cause, nil if the status is enough
}

// New classifies a failure of one leg.
func New(leg pools.Role, worker string, err error, status int) *Error {
	return &Error{Class: Classify(err, status), Leg: leg, Worker: worker, Status: status, Err: err}
}

// Reported returns the failure that an engine reported in an answer's body, by err and status unless the body has a more
// specific one.
func Reported(leg pools.Role, worker string, err error, status int, body []byte) *Error {
	switch e := openai.ReadEngineError(body); {
	case e.Died:
		err = ErrEngineDied
	case e.Failed, e.NotLoaded:
		err, status = ErrEngine, e.Status
	}
	e := New(leg, worker, err, status)
	e.Detail = body
	return e
}

// Error names leg, worker, class and cause.
func (e *Error) Error() string {
	switch {
	case e.Err != nil:
		return fmt.Sprintf("%s on %s: %s: %v", e.Leg, e.Worker, e.Class, e.Err)
	case e.Status != 0:
		return fmt.Sprintf("%s on %s: %s: status %d", e.Leg, e.Worker, e.Class, e.Status)
	default:
		return fmt.Sprintf("%s on %s: %s", e.Leg, e.Worker, e.Class)
	}
}

// Unwrap gives the raw cause.
func (e *Error) Unwrap() error { return e.Err }
