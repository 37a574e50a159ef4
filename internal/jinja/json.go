package jinja

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
	"unsafe"
)

// ErrJSON is what FromJSON returns for what is no JSON.
var ErrJSON = errors.New("jinja: not JSON")

// maxNesting bounds the nesting of values.
const maxNesting = 512

// FromJSON reads a value as Python's json.loads does: whole numbers stay whole however long, an object keeps the
// order of its keys and the last value of each. Texts without escapes share memory with data, which must not change
// while the value is in use.
func FromJSON(data []byte) (Value, error) {
	r := &reader{data: data}
	v := r.value(0)
	r.space()
	if r.bad || r.pos != len(data) {
		return Value{}, ErrJSON
	}
	return v, nil
}

type reader struct {
	data []byte
	pos  int
	bad  bool
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

// take skips white space and takes the byte if it comes next.
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
		for first := true; !r.take(']'); first = false {
			if !first && !r.take(',') {
				return r.fail()
			}
			items = append(items, r.value(depth+1))
			if r.bad {
				return Value{}
			}
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
	d := NewDict(4)
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
		v := r.value(depth + 1)
		if r.bad {
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

// str reads the string at pos.
func (r *reader) str() string {
	from := r.pos + 1
	end := indexByte2(r.data[from:], '"', '\\')
	if end < 0 {
		r.fail()
		return ""
	}
	if r.data[from+end] == '"' {
		r.pos = from + end + 1
		return unsafe.String(unsafe.SliceData(r.data[from:]), end)
	}
	b := make([]byte, 0, end+end/2+32)
	for at := from; ; {
		end := indexByte2(r.data[at:], '"', '\\')
		if end < 0 || at+end+1 >= len(r.data) && r.data[at+end] == '\\' {
			r.fail()
			return ""
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

// unescape appends what the escape at the beginning of s stands for, and returns its length, 0 where it is none.
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
	return utf8.AppendRune(b, utf16.DecodeRune(c, hex(s[6:]))), 12
}

// indexByte2 is the place of the first a or b.
func indexByte2(s []byte, a, b byte) int {
	for i, c := range s {
		if c == a || c == b {
			return i
		}
	}
	return -1
}

// toJSON is the filter tojson as transformers has it: json.dumps with ensure_ascii off, and Python's separators.
func toJSON(s *state, v Value, a *args) Value {
	e := encoder{s: s, item: ", ", key: ": ", ascii: boolArg(a, 0, "ensure_ascii", false), sorted: boolArg(a, 3, "sort_keys", false)}
	if indent, ok := a.get(1, "indent"); ok && indent.kind != none {
		e.lines, e.item = true, ","
		if indent.kind == text {
			e.indent = indent.str
		} else {
			e.indent = strings.Repeat(" ", max(0, min(s.intArg(a, 1, "indent", 0), 64)))
		}
	}
	if separators, ok := a.get(2, "separators"); ok && separators.kind == sequence {
		pair := separators.items()
		if len(pair) != 2 || pair[0].kind != text || pair[1].kind != text {
			s.fail("separators must be two str")
		}
		e.item, e.key = pair[0].str, pair[1].str
	}
	e.append(v, 0)
	return String(own(e.out))
}

// encoder writes JSON.
type encoder struct {
	s             *state
	out           []byte
	item, key     string
	indent        string
	lines, sorted bool
	ascii         bool
}

func (e *encoder) append(v Value, depth int) {
	e.s.step()
	if depth > maxNesting {
		e.s.fail("nested too deeply")
	}
	from := len(e.out)
	switch v.kind {
	case none:
		e.out = append(e.out, "null"...)
	case boolean:
		e.out = strconv.AppendBool(e.out, v.num == 1)
	case whole, float:
		e.number(v)
	case text:
		e.out = e.str(e.out, v.str)
		e.s.pay(len(e.out) - from)
	case sequence:
		e.out = append(e.out, '[')
		for i, item := range v.items() {
			e.between(i, depth+1)
			e.append(item, depth+1)
		}
		e.end(len(v.items()), depth, ']')
	case mapping:
		e.dict(v.dict(), depth)
	default:
		e.s.fail("%s is not JSON", v.kindName())
	}
}

func (e *encoder) number(v Value) {
	if f := v.float(); v.kind == float && (math.IsInf(f, 0) || math.IsNaN(f)) {
		name := "NaN"
		if math.IsInf(f, 1) {
			name = "Infinity"
		} else if math.IsInf(f, -1) {
			name = "-Infinity"
		}
		e.out = append(e.out, name...)
		return
	}
	e.out = appendNumber(e.out, v)
}

func (e *encoder) dict(d *Dict, depth int) {
	entries := d.entries
	if e.sorted {
		items := e.s.pairs(d).items()
		e.s.sortBy(items, false, true, func(v Value) Value { return v.items()[0] })
		entries = make([]entry, len(items))
		for i, item := range items {
			entries[i] = entry{item.items()[0], item.items()[1]}
		}
	}
	e.out = append(e.out, '{')
	for i := range entries {
		e.between(i, depth+1)
		switch k := entries[i].key; k.kind {
		case text:
			e.out = e.str(e.out, k.str)
		case boolean, none, whole, float:
			e.out = append(e.out, '"')
			e.append(k, depth+1)
			e.out = append(e.out, '"')
		default:
			e.s.fail("%s is no key of JSON", k.kindName())
		}
		e.out = append(e.out, e.key...)
		e.append(entries[i].value, depth+1)
	}
	e.end(len(entries), depth, '}')
}

// between separates an element from the one before.
func (e *encoder) between(i, depth int) {
	if i > 0 {
		e.out = append(e.out, e.item...)
	}
	e.line(depth)
}

func (e *encoder) line(depth int) {
	if !e.lines {
		return
	}
	e.s.pay(len(e.indent)*depth + 1)
	e.out = append(e.out, '\n')
	for range depth {
		e.out = append(e.out, e.indent...)
	}
}

func (e *encoder) end(n, depth int, closing byte) {
	if n > 0 {
		e.line(depth)
	}
	e.out = append(e.out, closing)
}

// str appends a text as a JSON string: what JSON demands is escaped, and beyond ASCII nothing unless ascii is set.
func (e *encoder) str(dst []byte, t string) []byte {
	const hex = "0123456789abcdef"
	u := func(dst []byte, c rune) []byte {
		return append(dst, '\\', 'u', hex[c>>12&15], hex[c>>8&15], hex[c>>4&15], hex[c&15])
	}
	dst = append(dst, '"')
	plain := 0
	for i := 0; i < len(t); i++ {
		c := t[i]
		if c >= ' ' && c != '"' && c != '\\' && (c < utf8.RuneSelf || !e.ascii) {
			continue
		}
		dst = append(dst, t[plain:i]...)
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		case '\b':
			dst = append(dst, '\\', 'b')
		case '\f':
			dst = append(dst, '\\', 'f')
		default:
			r, n := utf8.DecodeRuneInString(t[i:])
			if r >= 0x10000 {
				high, low := utf16.EncodeRune(r)
				dst = u(u(dst, high), low)
			} else {
				dst = u(dst, r)
			}
			i += n - 1
		}
		plain = i + 1
	}
	dst = append(dst, t[plain:]...)
	return append(dst, '"')
}
