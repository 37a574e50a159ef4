package trace

import (
	"math"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/encoding/protowire"
)

// Kind is the side of a call that a span measures.
type Kind byte

// The kinds of spans, as OTLP numbers them.
const (
	Internal Kind = iota + 1
	Server
	Client
)

// Span is a span that has ended, without its attributes.
type Span struct {
	Name   string
	Kind   Kind
	ID     SpanID
	Parent SpanID // zero of a trace's first
	// Remote marks a Parent in another process.
	Remote       bool
	Began, Ended time.Time
}

// Tree is the spans of one request, encoded as OTLP while they are added: 4 allocations a request instead of the SDK's
// 250. Each span begins with Add; the calls after it add to it. A Tree belongs to one goroutine, and ends with Emit.
type Tree struct {
	own   Context
	state string    // tracestate
	date  int64     // in nanoseconds since 1970, of base
	base  time.Time // when the first span began
	spans int
	out   []byte // spans, each as a field of ScopeSpans
	span  []byte // the one begun
	part  []byte // a part of it
}

var trees = sync.Pool{New: func() any { return new(Tree) }}

// maxKeptTree bounds the buffers that are used again, in bytes.
const maxKeptTree = 16 << 10

// NewTree begins the spans of a request. Own names their trace, and state is its tracestate, left out where it is
// malformed.
func NewTree(own Context, state string) *Tree {
	t := trees.Get().(*Tree)
	*t = Tree{own: own, out: t.out[:0], span: t.span[:0], part: t.part[:0]}
	if state != "" {
		if read, err := trace.ParseTraceState(state); err == nil {
			t.state = read.String()
		}
	}
	return t
}

// The numbers of fields, of opentelemetry/proto/trace/v1/trace.proto and common/v1/common.proto (proto 1.11).
const (
	scopeSpans = 2

	spanTrace, spanID, spanState, spanParent, spanName, spanKind        = 1, 2, 3, 4, 5, 6
	spanBegan, spanEnded, spanAttributes, spanEvents, spanLinks         = 7, 8, 9, 11, 13
	spanStatus, spanFlags                                               = 15, 16
	eventTime, eventName                                                = 1, 2
	linkTrace, linkSpan, linkAttributes                                 = 1, 2, 4
	statusMessage, statusCode, statusError                              = 2, 3, 2
	pairKey, pairValue                                                  = 1, 2
	valueString, valueBool, valueInt, valueDouble                       = 1, 2, 3, 4
	valueList, listValue                                                = 5, 1
	flagKnown, flagRemote                                        uint32 = 0x100, 0x200
)

// Add begins a span and completes the one before.
func (t *Tree) Add(s Span) {
	t.close()
	if t.spans++; t.spans == 1 {
		t.base, t.date = s.Began, s.Began.UnixNano()
	}
	b := appendBytes(t.span[:0], spanTrace, t.own.Trace[:])
	b = appendBytes(b, spanID, s.ID[:])
	if t.state != "" {
		b = appendText(b, spanState, t.state)
	}
	flags := uint32(t.own.Flags) | flagKnown
	if s.Parent != (SpanID{}) {
		b = appendBytes(b, spanParent, s.Parent[:])
		if s.Remote {
			flags |= flagRemote
		}
	}
	b = appendText(b, spanName, s.Name)
	b = appendNumber(b, spanKind, uint64(s.Kind))
	b = t.appendTime(b, spanBegan, s.Began)
	b = t.appendTime(b, spanEnded, s.Ended)
	t.span = protowire.AppendFixed32(protowire.AppendTag(b, spanFlags, protowire.Fixed32Type), flags)
}

// String adds an attribute. Invalid UTF-8 is replaced: a collector would refuse the whole batch.
func (t *Tree) String(key, value string) { t.span = appendTextPair(t.span, spanAttributes, key, value) }

// Strings adds an attribute that is a list, of one text.
func (t *Tree) Strings(key, value string) {
	value = valid(value)
	text := protowire.SizeTag(valueString) + protowire.SizeBytes(len(value))
	list := protowire.SizeTag(listValue) + protowire.SizeBytes(text)
	b := appendPair(t.span, spanAttributes, key, protowire.SizeTag(valueList)+protowire.SizeBytes(list))
	b = protowire.AppendVarint(protowire.AppendTag(b, valueList, protowire.BytesType), uint64(list))
	b = protowire.AppendVarint(protowire.AppendTag(b, listValue, protowire.BytesType), uint64(text))
	t.span = protowire.AppendString(protowire.AppendTag(b, valueString, protowire.BytesType), value)
}

// Int adds an attribute.
func (t *Tree) Int(key string, value int) {
	b := appendPair(t.span, spanAttributes, key, protowire.SizeTag(valueInt)+protowire.SizeVarint(uint64(value)))
	t.span = appendNumber(b, valueInt, uint64(value))
}

// Bool adds an attribute.
func (t *Tree) Bool(key string, value bool) {
	b := appendPair(t.span, spanAttributes, key, protowire.SizeTag(valueBool)+1)
	t.span = appendNumber(b, valueBool, protowire.EncodeBool(value))
}

// Float adds an attribute.
func (t *Tree) Float(key string, value float64) {
	b := appendPair(t.span, spanAttributes, key, protowire.SizeTag(valueDouble)+protowire.SizeFixed64())
	t.span = protowire.AppendFixed64(protowire.AppendTag(b, valueDouble, protowire.Fixed64Type), math.Float64bits(value))
}

// Event adds an event within the span.
func (t *Tree) Event(name string, at time.Time) {
	t.part = appendText(t.appendTime(t.part[:0], eventTime, at), eventName, name)
	t.span = appendBytes(t.span, spanEvents, t.part)
}

// Link adds a link to a span of the same trace, with one attribute.
func (t *Tree) Link(to SpanID, key, value string) {
	t.part = appendBytes(appendBytes(t.part[:0], linkTrace, t.own.Trace[:]), linkSpan, to[:])
	t.part = appendTextPair(t.part, linkAttributes, key, value)
	t.span = appendBytes(t.span, spanLinks, t.part)
}

// Fail sets an error status with a short reason.
func (t *Tree) Fail(why string) {
	t.part = appendNumber(appendText(t.part[:0], statusMessage, why), statusCode, statusError)
	t.span = appendBytes(t.span, spanStatus, t.part)
}

// close adds the span that was begun to the others.
func (t *Tree) close() {
	if len(t.span) > 0 {
		t.out, t.span = appendBytes(t.out, scopeSpans, t.span), t.span[:0]
	}
}

// appendPair appends a field that has a key and a value, up to the value's own field, which is of size bytes.
func appendPair(b []byte, field protowire.Number, key string, size int) []byte {
	whole := protowire.SizeTag(pairKey) + protowire.SizeBytes(len(key)) + protowire.SizeTag(pairValue) + protowire.SizeBytes(size)
	b = protowire.AppendVarint(protowire.AppendTag(b, field, protowire.BytesType), uint64(whole))
	b = protowire.AppendString(protowire.AppendTag(b, pairKey, protowire.BytesType), key)
	return protowire.AppendVarint(protowire.AppendTag(b, pairValue, protowire.BytesType), uint64(size))
}

func appendTextPair(b []byte, field protowire.Number, key, value string) []byte {
	value = valid(value)
	b = appendPair(b, field, key, protowire.SizeTag(valueString)+protowire.SizeBytes(len(value)))
	return protowire.AppendString(protowire.AppendTag(b, valueString, protowire.BytesType), value)
}

// valid replaces invalid UTF-8.
func valid(text string) string {
	if utf8.ValidString(text) {
		return text
	}
	return strings.ToValidUTF8(text, string(utf8.RuneError))
}

func appendBytes(b []byte, field protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), value)
}

func appendText(b []byte, field protowire.Number, value string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), valid(value))
}

func appendNumber(b []byte, field protowire.Number, value uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), value)
}

// appendTime appends a time, at the monotonic distance from the first span's: setting the system's clock meanwhile does
// not distort a trace.
func (t *Tree) appendTime(b []byte, field protowire.Number, at time.Time) []byte {
	return protowire.AppendFixed64(protowire.AppendTag(b, field, protowire.Fixed64Type), uint64(t.date+int64(at.Sub(t.base))))
}
