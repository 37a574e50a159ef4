// Package fault names what went wrong. Classify turns a raw failure of one
// call to a worker into a Class, once; the HTTP status, the metric label, the
// retry and the breaker all follow from that name.
//
// Breakers keep calls from a worker that fails, Budget keeps retries from
// multiplying an outage, and Inject makes calls go wrong on purpose, by the
// faults of fault_NAME.go and a Scenario that chooses among them.
package fault

import "net/http"

// Class is the name of a failure. Its String is a metric label: short, fixed
// and of low cardinality.
type Class uint8

// The classes, from nobody's fault to the worker's.
const (
	// None is no failure.
	None Class = iota
	// ClientGone: the client left; nothing failed.
	ClientGone
	// Shutdown: the gateway itself is stopping and cut the call.
	Shutdown
	// Rejected: the engine refused the request for what it says (400, 413, 415,
	// 422). The client's own error: never retried, never the worker's.
	Rejected
	// GatewayError: the gateway's own machine could not make the connection, for
	// want of descriptors, ports or memory, or its resolver failed. Another worker
	// may have a connection to spare; nothing speaks against this one.
	GatewayError
	// Refused: no connection came about. The worker has seen nothing.
	Refused
	// Reset: the connection broke, or the engine died, before the answer was
	// whole.
	Reset
	// Timeout: the worker did not answer within its limit: no prefill, no first
	// token, no whole answer.
	Timeout
	// Stalled: a stream that had begun brought nothing for its idle limit.
	Stalled
	// Overloaded: the engine has no room now (429, 503).
	Overloaded
	// EngineError: any other status, an error inside an answer, or an answer that
	// does not stop.
	EngineError
	// Garbled: an answer that cannot be understood, such as broken JSON or
	// a prefill answer without its hand-off metadata.
	Garbled
	// Truncated: a stream that ended cleanly but before its end marker.
	Truncated
)

var classNames = [...]string{
	None: "ok", ClientGone: "client_gone", Shutdown: "shutdown", Rejected: "rejected",
	GatewayError: "gateway_error", Refused: "refused", Reset: "reset", Timeout: "timeout", Stalled: "stalled", Overloaded: "overloaded",
	EngineError: "engine_error", Garbled: "garbled", Truncated: "truncated",
}

// Classes lists every class, for tables and for metrics that start at zero.
func Classes() []Class {
	all := make([]Class, len(classNames))
	for i := range all {
		all[i] = Class(i)
	}
	return all
}

// String is the class's metric label.
func (c Class) String() string {
	if int(c) < len(classNames) {
		return classNames[c]
	}
	return "unknown"
}

// Status is the HTTP status a client gets when this failure ends its request
// before the first byte. Rejected carries the engine's own 4xx instead.
func (c Class) Status() int {
	switch c {
	case None:
		return http.StatusOK
	case ClientGone:
		return 499
	case Rejected:
		return http.StatusBadRequest
	case Shutdown, GatewayError, Refused, Overloaded:
		return http.StatusServiceUnavailable
	case Timeout, Stalled:
		return http.StatusGatewayTimeout
	default:
		return http.StatusBadGateway
	}
}

// Blames says whether the failure speaks against the worker. A client's
// leaving, its own mistake, our own stop and our own want do not.
func (c Class) Blames() bool { return c >= Refused }
