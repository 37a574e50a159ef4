package observe

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"
)

// handler is slog's with the state of a [Line]. WithAttrs and WithGroup return slog's own.
type handler struct {
	slog.Handler
	out  *output
	form form
}

// form is how a line is written.
type form uint8

const (
	asPairs form = iota // key=value
	asJSON              // an object
	asText              // for people, see people
)

// Line is a log line written field by field, byte for byte as [slog.Logger.LogAttrs] writes it, at half the cost: for
// lines of every request. It belongs to one goroutine. Keys must be letters, digits and underscores.
type Line struct {
	to    *handler
	buf   []byte
	group string // the open group's key, empty without one
	first bool   // the next field is the first of its JSON object
	waits bool   // it need not be written at once

	// Of a logger that NewLogger did not make, the record itself, and the attributes of the open group.
	log    slog.Handler
	record slog.Record
	inside []slog.Attr
}

var lines = sync.Pool{New: func() any { return new(Line) }}

// maxKeptLine bounds the buffers that are used again, in bytes.
const maxKeptLine = 16 << 10

// NewLine begins a line, nil if log does not write lines of this level. End must be called.
func NewLine(log *slog.Logger, level slog.Level, at time.Time, message string) *Line {
	h := log.Handler()
	to, _ := h.(*handler)
	writes := h
	if to != nil {
		writes = to.Handler
	}
	if t, ok := writes.(*tee); ok {
		writes = t.Handler
	}
	if !writes.Enabled(context.Background(), level) {
		return nil
	}
	l := lines.Get().(*Line)
	l.to = to
	l.waits = level <= slog.LevelInfo
	switch {
	case l.to == nil:
		l.log, l.record = h, slog.NewRecord(at, level, message, 0)
	case l.to.form == asJSON:
		l.buf = append(at.AppendFormat(append(l.buf, `{"time":"`...), time.RFC3339Nano), `","level":`...)
		l.string(level.String())
		l.String("msg", message)
	case l.to.form == asText:
		l.buf = l.to.out.appendHead(l.buf, at, level, "")
	default:
		l.buf = append(appendMillis(append(l.buf, "time="...), at), " level="...)
		l.string(level.String())
		l.String("msg", message)
	}
	return l
}

// End writes the line.
func (l *Line) End() {
	switch {
	case l.to == nil:
		_ = l.log.Handle(context.Background(), l.record)
	case l.to.form == asJSON:
		l.to.out.line(append(l.buf, '}', '\n'), l.waits)
	default:
		l.to.out.line(append(l.buf, '\n'), l.waits)
	}
	if cap(l.buf) <= maxKeptLine {
		*l = Line{buf: l.buf[:0]}
		lines.Put(l)
	}
}

// Text reports whether the line is for people: the caller then adds [Line.Phrase]s in place of fields.
func (l *Line) Text() bool { return l.to != nil && l.to.form == asText }

// Phrase adds words to a line for people. Clients' text must have gone through [Plain].
func (l *Line) Phrase(format string, args ...any) {
	l.buf = fmt.Appendf(append(l.buf, ' '), format, args...)
}

// Plain quotes a text that has blanks or control characters.
func Plain(s string) string {
	if quoted(s) {
		return strconv.Quote(s)
	}
	return s
}

// Open begins a group of at least one field and no nested group.
func (l *Line) Open(group string) {
	if l.to != nil && l.to.form == asJSON {
		l.key(group)
		l.buf, l.first = append(l.buf, '{'), true
	}
	l.group = group
}

// Close ends the group.
func (l *Line) Close() {
	switch {
	case l.to == nil:
		l.record.AddAttrs(slog.Attr{Key: l.group, Value: slog.GroupValue(slices.Clone(l.inside)...)})
		l.inside = l.inside[:0]
	case l.to.form == asJSON:
		l.buf = append(l.buf, '}')
	}
	l.group = ""
}

// String adds a text.
func (l *Line) String(key, value string) {
	if l.field(key, slog.StringValue(value)) {
		l.string(value)
	}
}

// Int adds a number.
func (l *Line) Int(key string, value int) {
	if l.field(key, slog.IntValue(value)) {
		l.buf = strconv.AppendInt(l.buf, int64(value), 10)
	}
}

// Bool adds a truth value.
func (l *Line) Bool(key string, value bool) {
	if l.field(key, slog.BoolValue(value)) {
		l.buf = strconv.AppendBool(l.buf, value)
	}
}

// Float adds a number.
func (l *Line) Float(key string, value float64) {
	if !l.field(key, slog.Float64Value(value)) {
		return
	}
	var short bool
	if l.buf, short = appendThousandths(l.buf, value); short {
		return
	}
	size := math.Abs(value)
	switch {
	case l.to.form != asJSON:
		l.buf = strconv.AppendFloat(l.buf, value, 'g', -1, 64)
	case size == 0 || size >= 1e-6 && size < 1e21: // as encoding/json writes it
		l.buf = strconv.AppendFloat(l.buf, value, 'f', -1, 64)
	default:
		raw, err := json.Marshal(value)
		if err != nil {
			l.string(fmt.Sprintf("!ERROR:%v", err))
			return
		}
		l.buf = append(l.buf, raw...)
	}
}

// appendThousandths appends a number of whole thousandths below a million, as most durations in milliseconds are, in
// the shortest form: ten times as fast as strconv. It reports false for any other.
func appendThousandths(dst []byte, value float64) ([]byte, bool) {
	if !(value >= 0.001 && value < 1e6) {
		return dst, false
	}
	n := int64(value*1000 + 0.5)
	if float64(n)/1000 != value {
		return dst, false
	}
	dst = strconv.AppendInt(dst, n/1000, 10)
	if n %= 1000; n == 0 {
		return dst, true
	}
	dst = append(dst, '.', byte('0'+n/100), byte('0'+n/10%10), byte('0'+n%10))
	for dst[len(dst)-1] == '0' {
		dst = dst[:len(dst)-1]
	}
	return dst, true
}

// field begins a field of the line, and reports whether its value is to be written. Otherwise it is an attribute.
func (l *Line) field(key string, value slog.Value) bool {
	switch {
	case l.to != nil:
		l.key(key)
		return true
	case l.group != "":
		l.inside = append(l.inside, slog.Attr{Key: key, Value: value})
	default:
		l.record.AddAttrs(slog.Attr{Key: key, Value: value})
	}
	return false
}

// key writes a field's key, after the separator.
func (l *Line) key(key string) {
	switch {
	case l.to.form != asJSON:
		l.buf = append(l.buf, ' ')
		if l.group != "" {
			l.buf = append(append(l.buf, l.group...), '.')
		}
		l.buf = append(append(l.buf, key...), '=')
		return
	case !l.first:
		l.buf = append(l.buf, ',')
	}
	l.first = false
	l.buf = append(append(append(l.buf, '"'), key...), '"', ':')
}

// string writes a text, in quotes where it needs them.
func (l *Line) string(s string) {
	switch {
	case l.to.form == asJSON && plain(s):
		l.buf = append(append(append(l.buf, '"'), s...), '"')
	case l.to.form == asJSON:
		l.buf = appendEscaped(l.buf, s)
	case quoted(s):
		l.buf = strconv.AppendQuote(l.buf, s)
	default:
		l.buf = append(l.buf, s...)
	}
}

// plain reports whether a text needs no escape in JSON; it may miss some.
func plain(s string) bool {
	for i := range len(s) {
		if b := s[i]; b < ' ' || b == '"' || b == '\\' || b >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// appendEscaped writes any text in JSON, with slog's escapes.
func appendEscaped(b []byte, s string) []byte {
	b = append(b, '"')
	for i, r := range s {
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r == '\n':
			b = append(b, `\n`...)
		case r == '\r':
			b = append(b, `\r`...)
		case r == '\t':
			b = append(b, `\t`...)
		case r < ' ' || r == '\u2028' || r == '\u2029' || r == utf8.RuneError && !strings.HasPrefix(s[i:], "\ufffd"):
			b = fmt.Appendf(b, `\u%04x`, r)
		default:
			b = utf8.AppendRune(b, r)
		}
	}
	return append(b, '"')
}

// quoted reports whether slog's text puts a value in quotes.
func quoted(s string) bool {
	for _, r := range s {
		if r <= ' ' || r == '"' || r == '=' || r >= utf8.RuneSelf && (r == utf8.RuneError || unicode.IsSpace(r) || !unicode.IsPrint(r)) {
			return true
		}
	}
	return s == ""
}

// appendMillis writes a time as slog's text handler does: RFC 3339 with three digits of the second. Go drops trailing
// zeros, so a tenth of a millisecond is added and cut off.
func appendMillis(b []byte, t time.Time) []byte {
	end := len(b) + len("2006-01-02T15:04:05.000")
	b = t.Truncate(time.Millisecond).Add(time.Millisecond/10).AppendFormat(b, time.RFC3339Nano)
	return append(b[:end], b[end+1:]...)
}
