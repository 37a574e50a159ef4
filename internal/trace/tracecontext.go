package trace

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
)

// TraceID names a trace. Zero is none.
type TraceID [16]byte

// SpanID names a span of a trace. Zero is none.
type SpanID [8]byte

// String is the id as 32 lower-case hexadecimal digits.
func (id TraceID) String() string { return hex.EncodeToString(id[:]) }

// String is the id as 16 lower-case hexadecimal digits.
func (id SpanID) String() string { return hex.EncodeToString(id[:]) }

// NewTraceID draws an id. Ids need to be unique, not secret.
func NewTraceID() (id TraceID) {
	binary.BigEndian.PutUint64(id[:8], rand.Uint64()|1) // never zero
	binary.BigEndian.PutUint64(id[8:], rand.Uint64())   // whose bits samplers read
	return id
}

// NewSpanID draws an id.
func NewSpanID() (id SpanID) {
	binary.BigEndian.PutUint64(id[:], rand.Uint64()|1)
	return id
}

// Flags of a Context that W3C Trace Context defines. Others are not passed on.
const (
	Sampled = 0x01 // the caller may have recorded its span
	Random  = 0x02 // the trace's id is random (level 2)
)

// Context is the content of a traceparent. The zero Context is none.
type Context struct {
	Trace TraceID
	Span  SpanID
	Flags byte
}

// IsSampled reports whether the caller may have recorded its span.
func (c Context) IsSampled() bool { return c.Flags&Sampled != 0 }

// version is that of the traceparents made here, and length theirs.
const (
	version = "00"
	length  = len("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
)

// maxBytes bounds a traceparent of a later version, which may be longer.
const maxBytes = 256

// String is the context as a traceparent of version 00.
func (c Context) String() string {
	var b [length]byte
	out := append(b[:0], version+"-"...)
	out = append(hex.AppendEncode(out, c.Trace[:]), '-')
	out = append(hex.AppendEncode(out, c.Span[:]), '-')
	return string(hex.AppendEncode(out, []byte{c.Flags & (Sampled | Random)}))
}

// Parse parses a traceparent by W3C Trace Context §3.2.2: version, trace id, parent id and flags in lower-case
// hexadecimal digits. A version above 00 may have more after them. ok is false for anything else.
func Parse[T string | []byte](header T) (c Context, ok bool) {
	if len(header) < length || len(header) > maxBytes || header[2] != '-' || header[35] != '-' || header[52] != '-' {
		return Context{}, false
	}
	for i := range len(header) {
		if header[i] <= ' ' || header[i] >= 0x7f {
			return Context{}, false
		}
	}
	var v, flags [1]byte
	if !decode(v[:], header[:2]) || !decode(c.Trace[:], header[3:35]) || !decode(c.Span[:], header[36:52]) ||
		!decode(flags[:], header[53:55]) {
		return Context{}, false
	}
	c.Flags = flags[0]
	switch {
	case v[0] == 0xff, c.Trace == TraceID{}, c.Span == SpanID{}:
		return Context{}, false
	case v[0] == 0 && len(header) != length, len(header) > length && header[length] != '-':
		return Context{}, false
	}
	return c, true
}

// decode reads lower-case hexadecimal digits.
func decode[T string | []byte](dst []byte, digits T) bool {
	for i := range dst {
		high, low := digit(digits[2*i]), digit(digits[2*i+1])
		if high|low > 15 {
			return false
		}
		dst[i] = high<<4 | low
	}
	return true
}

// digit returns the value of a lower-case hexadecimal digit, above 15 for any other character.
func digit(c byte) byte {
	switch {
	case '0' <= c && c <= '9':
		return c - '0'
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10
	}
	return 0xff
}
