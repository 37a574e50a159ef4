package jinja

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"math/bits"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
	"unsafe"
)

// ErrJSON is FromJSON's error for invalid JSON.
var ErrJSON = errors.New("jinja: not JSON")

// ErrMemory is the error of FromJSON and Render if their [Memory] is exhausted.
var ErrMemory = errors.New("jinja: the values take too much memory")

// Memory counts the memory of values and of rendered text.
type Memory interface {
	// Take counts n more bytes, and reports whether they may be taken. A refusal counts nothing.
	Take(n int) bool
}

// indexBytes is the memory of a key in a dict's index, and boxBytes that of a list, a dict or a number without its
// content.
const indexBytes, boxBytes = 128, 48

// maxNesting bounds the nesting of values.
const maxNesting = 512

// FromJSON parses a value as Python's json.loads does: integers of any length are exact, an object keeps the order of
// its keys and the last value of each. Texts without escapes share memory with data, which must not change while the
// value is in use. m, unless nil, counts the memory beyond data.
func FromJSON(data []byte, m Memory) (Value, error) {
	r := &reader{data: data, memory: m}
	v := r.value(0)
	r.space()
	switch {
	case r.poor:
		return Value{}, ErrMemory
	case r.bad || r.pos != len(data):
		return Value{}, ErrJSON
	}
	return v, nil
}

type reader struct {
	data   []byte
	pos    int
	bad    bool
	poor   bool // there was no memory
	memory Memory
}

// room returns s with room for one more, and reports whether there was memory for it. It doubles the capacity.
func room[T any](r *reader, s []T) ([]T, bool) {
	if len(s) < cap(s) {
		return s, true
	}
	n := max(2, 2*cap(s))
	if !r.pay(n * int(unsafe.Sizeof(*new(T)))) {
		return s, false
	}
	return append(make([]T, 0, n), s...), true
}

// pay reports whether there is memory for n bytes. Without it the parsing fails.
func (r *reader) pay(n int) bool {
	if r.memory == nil || r.memory.Take(n) {
		return true
	}
	r.poor = true
	r.fail()
	return false
}

func (r *reader) space() {
	for r.pos < len(r.data) {
		switch r.data[r.pos] {
		case ' ', '\n', '\t', '\r':
			r.pos++
		default:
			return
		}
	}
}

func (r *reader) fail() Value {
	r.bad = true
	r.pos = len(r.data)
	return Value{}
}

// take skips white space and consumes the byte if it is next.
func (r *reader) take(c byte) bool {
	r.space()
	if r.pos < len(r.data) && r.data[r.pos] == c {
		r.pos++
		return true
	}
	return false
}

func (r *reader) value(depth int) Value {
	r.space()
	if r.pos == len(r.data) || depth > maxNesting {
		return r.fail()
	}
	switch c := r.data[r.pos]; {
	case c == '"':
		return String(r.str())
	case c == '{':
		r.pos++
		return r.object(depth)
	case c == '[':
		r.pos++
		items := []Value{}
		if !r.pay(boxBytes) {
			return Value{}
		}
		for first := true; !r.take(']'); first = false {
			if !first && !r.take(',') {
				return r.fail()
			}
			item, ok := r.value(depth+1), false
			if items, ok = room(r, items); r.bad || !ok {
				return Value{}
			}
			items = append(items, item)
		}
		return List(items)
	case c == 't':
		return r.word("true", Bool(true))
	case c == 'f':
		return r.word("false", Bool(false))
	case c == 'n':
		return r.word("null", None)
	}
	return r.number()
}

func (r *reader) object(depth int) Value {
	d := &Dict{}
	if !r.pay(boxBytes) {
		return Value{}
	}
	for first := true; !r.take('}'); first = false {
		if !first && !r.take(',') {
			return r.fail()
		}
		if r.space(); r.pos == len(r.data) || r.data[r.pos] != '"' {
			return r.fail()
		}
		key := r.str()
		if !r.take(':') {
			return r.fail()
		}
		v, ok := r.value(depth+1), false
		if d.entries, ok = room(r, d.entries); r.bad || !ok || len(d.entries) >= manyKeys && !r.pay(indexBytes) {
			return Value{}
		}
		d.Set(key, v)
	}
	return Map(d)
}

func (r *reader) word(word string, v Value) Value {
	if !strings.HasPrefix(unsafe.String(unsafe.SliceData(r.data[r.pos:]), len(r.data)-r.pos), word) {
		return r.fail()
	}
	r.pos += len(word)
	return v
}

func (r *reader) number() Value {
	from, isFloat := r.pos, false
	for r.pos < len(r.data) {
		c := r.data[r.pos]
		if c == '.' || c == 'e' || c == 'E' {
			isFloat = true
		} else if c != '-' && c != '+' && (c < '0' || c > '9') {
			break
		}
		r.pos++
	}
	if !r.pay(boxBytes + r.pos - from) {
		return Value{}
	}
	digits := string(r.data[from:r.pos])
	rest := strings.TrimPrefix(digits, "-")
	if rest == "" || rest[0] < '0' || rest[0] > '9' || len(rest) > 1 && rest[0] == '0' && rest[1] >= '0' && rest[1] <= '9' {
		return r.fail()
	}
	if isFloat {
		f, err := strconv.ParseFloat(digits, 64)
		if err != nil && !math.IsInf(f, 0) {
			return r.fail()
		}
		return Float(f)
	}
	if strings.ContainsAny(rest, "+-") {
		return r.fail()
	}
	if rest == "0" {
		return Int(0)
	}
	return integer(digits)
}

func (r *reader) str() string {
	from := r.pos + 1
	end := bytes.IndexByte(r.data[from:], '"')
	if end < 0 {
		r.fail()
		return ""
	}
	escape := bytes.IndexByte(r.data[from:from+end], '\\')
	if escape < 0 {
		r.pos = from + end + 1
		return unsafe.String(unsafe.SliceData(r.data[from:]), end)
	}
	if !r.pay(end + end/2 + 32) {
		return ""
	}
	b := make([]byte, 0, end+end/2+32)
	for at := from; ; {
		end := stringEnd(r.data[at:])
		if end < 0 || at+end+1 >= len(r.data) && r.data[at+end] == '\\' {
			r.fail()
			return ""
		}
		if need := len(b) + end + utf8.UTFMax; need > cap(b) {
			if !r.pay(2 * need) {
				return ""
			}
			b = append(make([]byte, 0, 2*need), b...)
		}
		b = append(b, r.data[at:at+end]...)
		at += end
		if r.data[at] == '"' {
			r.pos = at + 1
			return own(b)
		}
		var n int
		if b, n = unescape(b, r.data[at:]); n == 0 {
			r.fail()
			return ""
		}
		at += n
	}
}

// unescape appends the character of the escape at the beginning of s, and returns its length, 0 for an invalid one.
func unescape(b, s []byte) ([]byte, int) {
	const plain, means = `"\/bfnrt`, "\"\\/\b\f\n\r\t"
	if i := strings.IndexByte(plain, s[1]); i >= 0 {
		return append(b, means[i]), 2
	}
	hex := func(s []byte) rune {
		if len(s) < 6 || s[0] != '\\' || s[1] != 'u' {
			return -1
		}
		v, err := strconv.ParseUint(string(s[2:6]), 16, 32)
		if err != nil {
			return -1
		}
		return rune(v)
	}
	c := hex(s)
	switch {
	case c < 0:
		return b, 0
	case !utf16.IsSurrogate(c):
		return utf8.AppendRune(b, c), 6
	}
	r := utf16.DecodeRune(c, hex(s[6:]))
	if r == utf8.RuneError { // half a character, which UTF-8 has none of
		return b, 0
	}
	return utf8.AppendRune(b, r), 12
}

// stringEnd returns the index of the first quote or backslash, −1 without one. It examines eight bytes at a time: a
// zero byte in w^pattern is found by the borrow of a subtraction.
func stringEnd(s []byte) int {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	i := 0
	for ; i+8 <= len(s); i += 8 {
		w := binary.LittleEndian.Uint64(s[i:])
		q, b := w^ones*'"', w^ones*'\\'
		if hits := ((q-ones)&^q | (b-ones)&^b) & highs; hits != 0 {
			return i + bits.TrailingZeros64(hits)>>3
		}
	}
	for ; i < len(s); i++ {
		if s[i] == '"' || s[i] == '\\' {
			return i
		}
	}
	return -1
}
