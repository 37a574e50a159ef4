package jinja

import (
	"math"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

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
	e.s.pay(len(v.str))
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
			e.s.pay(len(k.str))
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

// str appends a text as a JSON string, escaping what JSON demands, and everything beyond ASCII if ascii is set.
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
