// Package upstream makes one call to a worker: a Leg goes in, a Stream comes out. It owns the connections to workers,
// their limits and their cancellation, and knows nothing of retries, breakers or what the bytes mean.
//
// Transport is the seam between the gateway and an engine: fault injection wraps it, and tests replace it by an
// in-memory network.
package upstream

import (
	"context"
	"io"
	"time"
)

// Leg is one call to a worker, ready to be sent.
type Leg struct {
	Purpose   string // the role of the leg, or "release"; not sent: fault injection knows the call by it
	Worker    string // the worker's id, for errors
	Base      string // the worker's base URL, http://host:port
	Path      string // of the request, such as /v1/completions
	RequestID string // sent as X-Request-Id: the gateway's own id with the attempt's number, never the client's
	Rank      int    // sent as X-data-parallel-rank unless negative

	TraceParent string // the W3C traceparent header, unless empty
	TraceState  string // the W3C tracestate header, unless empty

	// Forward is further header fields that the operator wants engines to see, sent as they are after all others. No
	// other field of the client's is sent.
	Forward []Field

	// Parting is how long the answer is awaited after the call's context has ended, for calls whose answer names what
	// has to be released. The sending side is closed at once, which is how the engine learns of it; 0 cuts the
	// connection both ways.
	Parting time.Duration

	Sent func() // unless nil, called when the whole call has left, at least once. It must not wait.

	Stream bool // the answer is wanted as server-sent events
	Body   Body // the JSON sent; it must not change while the call runs
}

// Body is a request's body: segments that are sent one after another. Legs of one request share the segments of the
// client's body, so that a leg costs what it changes and not what it carries.
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

// Stream is a worker's answer: its status at once, its body as it comes.
type Stream interface {
	Status() int         // of HTTP
	ContentType() string // as sent

	// Read reads the body. An error other than io.EOF is an *Error.
	io.Reader

	// Close gives the connection back when the body was read to its end, and cuts it otherwise: the engine then knows
	// that its client has gone.
	io.Closer
}

// Transport makes calls. Call returns once the answer's head is there; its error is an *Error. Ending ctx cuts the
// connection, during Call and after.
type Transport interface {
	Call(ctx context.Context, leg Leg) (Stream, error)
}
