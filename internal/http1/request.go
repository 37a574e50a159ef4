package http1

import (
	"cmp"
	"errors"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// request is a call's bytes: the head, and the body in addition or, if short, copied after it. Requests are pooled;
// none is used by two goroutines at a time.
type request struct {
	Refs
	head []byte
	body Body        // the part of the body that is not in head
	size int         // its bytes
	mem  *Refs       // of body; nil for none
	vec  [][]byte    // head and body, while they are written
	rest net.Buffers // the unwritten part of vec
}

// Sizes that decide how a body is written.
const (
	// A body up to here is copied after the head: below it, a copy is cheaper than a vectored write.
	copiedBytes    = 4 << 10
	copiedBytesTLS = 16 << 10 // on TLS each write is a record of its own, which costs more than copying

	// LeavesWhole is the longest body that was sent whole when [Client.Call] returns: it fits in the kernel's buffers, so
	// the caller's goroutine writes it. A longer one is written while the answer is read, since an engine may refuse a
	// request before it has read it.
	LeavesWhole = 32 << 10
)

var requests Pool[request, *request]

// newRequest makes the bytes of a call. The headers, their order and their spelling are net/http's; forwarded ones
// follow.
func newRequest(t *target, leg *Leg, token string) (*request, error) {
	r := requests.Take()
	if err := r.build(t, leg, token); err != nil {
		r.Release()
		return nil, err
	}
	return r, nil
}

func (r *request) build(t *target, leg *Leg, token string) error {
	if err := leg.validFields(); err != nil {
		return err
	}
	b := append(append(r.head[:0], cmp.Or(leg.Method, http.MethodPost)...), ' ')
	b, err := t.appendPath(b, leg.Path)
	if err != nil {
		return err
	}
	b = append(b, " HTTP/1.1\r\nHost: "...)
	b = append(b, t.host...)
	b = append(b, "\r\nUser-Agent: tandem\r\nContent-Length: "...)
	size := leg.Body.Len()
	b = strconv.AppendInt(b, int64(size), 10)
	if leg.Stream {
		b = append(b, "\r\nAccept: text/event-stream"...)
	}
	if token != "" {
		b = append(b, "\r\nAuthorization: Bearer "...)
		b = append(b, token...)
	}
	b = append(b, "\r\nContent-Type: application/json"...)
	if leg.TraceParent != "" {
		b = append(b, "\r\nTraceparent: "...)
		b = append(b, trimmed(leg.TraceParent)...)
	}
	if leg.TraceState != "" {
		b = append(b, "\r\nTracestate: "...)
		b = append(b, trimmed(leg.TraceState)...)
	}
	if leg.Rank >= 0 {
		b = append(b, "\r\nX-Data-Parallel-Rank: "...)
		b = strconv.AppendInt(b, int64(leg.Rank), 10)
	}
	b = append(b, "\r\nX-Request-Id: "...)
	b = append(b, trimmed(leg.RequestID)...)
	for _, f := range leg.Forward {
		b = append(append(append(b, "\r\n"...), f.Name...), ": "...)
		b = append(b, trimmed(f.Value)...)
	}
	b = append(b, "\r\n\r\n"...)
	limit := copiedBytes
	if t.secure {
		limit = copiedBytesTLS
	}
	r.body, r.size = leg.Body, size
	if size <= limit {
		b, r.body, r.size = leg.Body.AppendTo(b), nil, 0
	} else if leg.Memory != nil {
		r.mem = leg.Memory
		r.mem.Retain()
	}
	r.head = b
	return nil
}

// writeTo writes the request and returns how many bytes were sent.
func (r *request) writeTo(c net.Conn) (int64, error) {
	if r.size == 0 {
		if socket, ok := c.(Socket); ok && socket.Post(r.head) {
			return int64(len(r.head)), nil
		}
		n, err := c.Write(r.head)
		return int64(n), err
	}
	r.vec = append(append(r.vec[:0], r.head), r.body...)
	r.rest = r.vec
	n, err := writeAll(c, &r.rest)
	clear(r.vec)
	r.rest = nil
	return n, err
}

// writeAll writes rest in one call to the system, or in as few as the kernel takes.
func writeAll(c net.Conn, rest *net.Buffers) (sent int64, err error) {
	socket, ok := c.(Socket)
	if !ok {
		return rest.WriteTo(c) // one writev on a TCP connection
	}
	for err == nil && len(*rest) > 0 {
		var n int
		if n, err = socket.TryWritev(*rest); errors.Is(err, ErrWouldBlock) {
			n, err = socket.Write((*rest)[0]) // which waits
		}
		sent += int64(n)
		for n >= len((*rest)[0]) {
			n -= len((*rest)[0])
			if *rest = (*rest)[1:]; len(*rest) == 0 {
				return sent, err
			}
		}
		(*rest)[0] = (*rest)[0][n:]
	}
	return sent, err
}

// Reset implements [Pooled].
func (r *request) Reset() {
	if r.mem != nil {
		r.mem.Release()
		r.mem = nil
	}
	r.body, r.size = nil, 0
	if cap(r.head) > 2*copiedBytesTLS {
		r.head = nil
	}
}

// validFields returns an error for a field of the leg that could end its header, or add another.
func (l *Leg) validFields() error {
	if !Printable(l.RequestID) || !Printable(l.TraceParent) || !Printable(l.TraceState) {
		return errors.New("a control character in X-Request-Id, traceparent or tracestate")
	}
	for _, f := range l.Forward {
		frames := slices.ContainsFunc(ownNames, func(own string) bool { return strings.EqualFold(f.Name, own) })
		if frames || !isToken(f.Name) || !Printable(f.Value) {
			return errors.New("a forwarded header that may not be sent")
		}
	}
	return nil
}

// ownNames frame a request; only this package sets them.
var ownNames = []string{"Host", "Content-Length", "Transfer-Encoding", "Connection"}

func trimmed(value string) string { return strings.Trim(value, " \t") }
