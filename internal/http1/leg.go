// Package http1 has the gateway's HTTP/1.1 connections: the listener, the event loop that keeps sockets, the client of
// workers, and the relay that moves an engine's event stream to a client.
//
// [Client] makes one call to a worker: it sends a [Leg] and returns a [Stream]. It owns the connections to workers,
// their limits and their cancellation; retries, breakers and the meaning of the bytes belong to its callers. [Transport]
// separates the gateway from an engine: fault injection wraps it, and tests replace it with an in-memory network.
//
// [Loops] keep sockets in epoll loops of their own instead of Go's poller. A [Socket] is a net.Conn with calls that do
// not wait, and with callbacks for readiness: a relayed stream then needs no goroutine, and a chunk costs one wait, one
// read and one write (docs/performance.md has the figures). Without epoll, and for connections that are more than a TCP
// socket, [Loops.Take] returns the connection unchanged; the caller's goroutine then reads and writes the same bytes.
//
// [Lifetime] is a context that its holder embeds: beginning, ending and hooks on its end allocate nothing. A [Listener]
// limits open connections, closes the one that has been idle longest to make room, and survives a shortage of
// descriptors or memory.
package http1

import (
	"context"
	"io"
	"time"
)

// Leg is one call to a worker, ready to be sent.
type Leg struct {
	Purpose   string // the role of the leg, or "release"; not sent, for fault injection
	Worker    string // the worker's id, for errors
	Base      string // the worker's base URL, http://host:port
	Method    string // of the request; empty: POST
	Path      string // of the request, such as /v1/completions
	RequestID string // sent as X-Request-Id: the gateway's own id with the attempt's number, never the client's
	Rank      int    // sent as X-data-parallel-rank unless negative

	TraceParent string // the W3C traceparent header, unless empty
	TraceState  string // the W3C tracestate header, unless empty

	// Forward is further header fields for engines, sent unchanged after all others. No other client field is sent.
	Forward []Field

	// Parting is how long the answer is awaited after the end of the call's context, for calls whose answer names what
	// to release. The sending side is closed at once, which stops the engine; 0 closes both sides.
	Parting time.Duration

	Sent func() // unless nil, called when the whole call was sent, at least once. It must not wait.

	Stream bool // the answer is wanted as server-sent events
	Body   Body // the JSON sent; it must not change while the call runs

	Memory *Refs // of Body, retained until it was sent; nil for none
}

// Body is a request's body: segments, sent in order. Legs of one request share the segments of the client's body, so
// that a leg allocates only its changes.
type Body [][]byte

// AppendTo appends the whole body to dst.
func (b Body) AppendTo(dst []byte) []byte {
	for _, segment := range b {
		dst = append(dst, segment...)
	}
	return dst
}

// Len is the body's length in bytes.
func (b Body) Len() int {
	n := 0
	for _, segment := range b {
		n += len(segment)
	}
	return n
}

// Field is one field of a request's head. Its name is in canonical form
// (X-Tenant) and is none that a Leg sets itself; its value has no control byte.
type Field struct{ Name, Value string }

// Stream is a worker's answer: its status at once, its body as it arrives.
type Stream interface {
	Status() int         // of HTTP
	ContentType() string // as sent

	// Read reads the body. An error other than io.EOF is an *Error.
	io.Reader

	// Close returns the connection to its pool if the body was read to its end, and closes it otherwise, which the
	// engine sees as a client that left.
	io.Closer
}

// Transport makes calls. Call returns once the answer's head is there; its error is an *Error. Ending ctx cuts the
// connection, during Call and after.
type Transport interface {
	Call(ctx context.Context, leg Leg) (Stream, error)
}
