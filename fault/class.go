// Package fault names failures. Classify turns the raw failure of one call to a worker into a Class, once; the HTTP
// status, the metric label, the retry and the breaker all follow from the class.
//
// Breakers keep calls away from a failing worker. Budget keeps retries from multiplying an outage. Inject makes calls
// fail on purpose: a Scenario chooses among the faults of fault_NAME.go.
package fault

import "net/http"

// Class is the name of a failure. Its String is a metric label: short, fixed and of low cardinality.
type Class uint8

// The classes. From Refused on, a class blames the worker.
const (
	None       Class = iota // no failure
	ClientGone              // the client left; nothing failed
	Shutdown                // the gateway itself is stopping and cut the call
	// Rejected: the engine refused the request's content (400, 413, 415, 422). It is the client's error, never retried,
	// never the worker's.
	Rejected
	// TooLarge: the requested answer is larger than the gateway relays or has memory for. Any other worker would answer
	// as largely.
	TooLarge
	// GatewayError: the gateway's machine could not connect: no descriptors, ports or memory, or its resolver failed.
	// Another worker may have an open connection; this one is not to blame.
	GatewayError
	Moved      // the call resumes on another worker, by an operator or a slow transfer
	Refused    // no connection: the worker has seen nothing
	Reset      // the connection broke, or the engine died, before the answer was whole
	Timeout    // the worker did not answer within its limit: no prefill, no first token, no whole answer
	Stalled    // a stream that had begun was silent for its idle limit
	Overloaded // the engine has no room now (429, 503)
	// NotServed: the engine has no model or adapter of that name (404). It blames the worker unless the request was for
	// an adapter.
	NotServed
	EngineError // any other status, an error inside an answer, or an answer that does not stop
	// Garbled: an answer that cannot be understood, such as broken JSON or
	// a prefill answer without its hand-off metadata.
	Garbled
	Truncated // a stream that ended cleanly but before its end marker
)

var classNames = [...]string{
	None: "ok", ClientGone: "client_gone", Shutdown: "shutdown", Rejected: "rejected", TooLarge: "too_large",
	GatewayError: "gateway_error", Moved: "moved", Refused: "refused", Reset: "reset", Timeout: "timeout",
	Stalled: "stalled", Overloaded: "overloaded",
	NotServed: "not_served", EngineError: "engine_error", Garbled: "garbled", Truncated: "truncated",
}

// String is the class's metric label.
func (c Class) String() string {
	if int(c) < len(classNames) {
		return classNames[c]
	}
	return "unknown"
}

// Error is String: a class is an error by itself where nothing else is known.
func (c Class) Error() string { return c.String() }

// Status is the HTTP status a client gets when this failure ends its request
// before the first byte. Rejected carries the engine's own 4xx instead.
func (c Class) Status() int {
	switch c {
	case None:
		return http.StatusOK
	case ClientGone:
		return 499
	case Rejected, TooLarge:
		return http.StatusBadRequest
	case Shutdown, GatewayError, Refused, Overloaded:
		return http.StatusServiceUnavailable
	case Timeout, Stalled:
		return http.StatusGatewayTimeout
	default:
		return http.StatusBadGateway
	}
}

// Blames reports whether the failure counts against the worker. A client that leaves,
// its own mistake, and the gateway's stop or lack of resources do not.
func (c Class) Blames() bool { return c >= Refused }
