// Package upstream makes one call to a worker: a Leg goes in, a Stream comes
// out. It owns the connections to workers, their limits and their
// cancellation, and knows nothing of retries, breakers or what the bytes mean.
//
// Transport is the seam for everything that stands between the gateway and an
// engine: fault injection wraps it, tests replace it by an in-memory network,
// and a later event loop may serve it without the rooms above noticing.
package upstream

import (
	"context"
	"io"
	"time"
)

// Kind says what a call is for.
type Kind string

// The kinds of calls.
const (
	// Prefill computes a prompt and keeps its KV for a decode worker.
	Prefill Kind = "prefill"
	// Decode generates the answer, from handed-over KV or by itself.
	Decode Kind = "decode"
	// Release frees KV that no decode will fetch.
	Release Kind = "release"
)

// Kinds lists every kind, for tables.
func Kinds() []Kind { return []Kind{Prefill, Decode, Release} }

// Leg is one call to a worker, ready to be sent.
type Leg struct {
	// Kind is what the call is for. It is not sent: it tells whatever stands
	// between the gateway and the engine, such as fault injection, which call
	// it sees.
	Kind Kind

	// Worker is the id of the worker called; it names the call in errors.
	Worker string

	// Base is the worker's base URL, http://host:port.
	Base string

	// Path is the request path, such as /v1/completions.
	Path string

	// RequestID is sent as X-Request-Id. It is the gateway's own id of the
	// request with the attempt's number, never the client's.
	RequestID string

	// Rank is the data-parallel rank asked for by X-data-parallel-rank;
	// negative sends no header.
	Rank int

	// TraceParent is passed on as the W3C traceparent header where not empty.
	TraceParent string

	// TraceState is passed on as the W3C tracestate header where not empty.
	TraceState string

	// Forward is further header fields that the operator wants engines to see,
	// sent as they are after all others. No other field of the client's is sent.
	Forward []Field

	// Parting is how long an answer that may be on its way already is awaited
	// after the call's context has ended. The sending side is closed at once,
	// which is what tells the engine; 0 cuts the connection both ways. For
	// calls whose answer says what has to be let go.
	Parting time.Duration

	// Stream says that the answer is wanted as server-sent events.
	Stream bool

	// Body is the JSON sent. It must not change while the call runs.
	Body Body
}

// Body is a request's body: segments that are sent one after another. Legs of one
// request share the segments of the client's body, so that a leg costs what it
// changes and not what it carries.
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
	// Status is the HTTP status.
	Status() int

	// ContentType is the answer's content type as sent.
	ContentType() string

	// Read reads the body. An error other than io.EOF is an *Error.
	io.Reader

	// Close gives the connection back when the body was read to its end, and
	// cuts it otherwise, which is how an engine learns that nobody listens.
	io.Closer
}

// Transport makes calls. Call returns once the answer's head is there; its
// error is an *Error. Ending ctx cuts the connection, during Call and after.
type Transport interface {
	Call(ctx context.Context, leg Leg) (Stream, error)
}
