package jinja

import (
	"math"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

func (v Value) kindName() string {
	switch v.kind {
	case missing, undefined:
		return "undefined"
	case none:
		return "None"
	case boolean:
		return "a bool"
	case whole:
		return "an int"
	case float:
		return "a float"
	case text:
		return "a str"
	case sequence:
		return "a list"
	case mapping:
		return "a dict"
	case callable:
		return "a function"
	}
	return "an object"
}

// str is Python's str of the value; undefined is empty.
func (s *state) str(v Value) string {
	switch v.kind {
	case text:
		return v.str
	case missing, undefined:
		return ""
	}
	return own(s.repr(nil, v, 0))
}

func (s *state) repr(dst []byte, v Value, depth int) []byte {
	s.step()
	if depth > maxNesting {
		s.fail("nested too deeply")
	}
	from := len(dst)
	switch v.kind {
	case missing, undefined:
		return append(dst, "Undefined"...)
	case none:
		return append(dst, "None"...)
	case boolean:
		if v.num == 1 {
			return append(dst, "True"...)
		}
		return append(dst, "False"...)
	case whole, float:
		s.pay(len(v.str))
		return appendNumber(dst, v)
	case text:
		dst = appendRepr(dst, v.str)
		s.pay(4 * (len(dst) - from))
		return dst
	case sequence:
		open, end := byte('['), byte(']')
		if v.num == 1 {
			open, end = '(', ')'
		}
		dst = append(dst, open)
		items := v.items()
		for i, item := range items {
			if i > 0 {
				dst = append(dst, ", "...)
			}
			dst = s.repr(dst, item, depth+1)
		}
		if v.num == 1 && len(items) == 1 {
			dst = append(dst, ',')
		}
		return append(dst, end)
	case mapping:
		dst = append(dst, '{')
		for i, e := range v.dict().entries {
			if i > 0 {
				dst = append(dst, ", "...)
			}
			dst = append(s.repr(dst, e.key, depth+1), ": "...)
			dst = s.repr(dst, e.value, depth+1)
		}
		return append(dst, '}')
	}
	s.fail("%s has no text", v.kindName())
	return dst
}

// appendNumber appends an int or a float as Python prints it.
func appendNumber(dst []byte, v Value) []byte {
	switch {
	case v.isBig():
		return append(dst, v.str...)
	case v.kind != float:
		return strconv.AppendInt(dst, v.int(), 10)
	}
	f := v.float()
	switch {
	case math.IsInf(f, 1):
		return append(dst, "inf"...)
	case math.IsInf(f, -1):
		return append(dst, "-inf"...)
	case math.IsNaN(f):
		return append(dst, "nan"...)
	}
	// The shortest digits that read back the same; with an exponent below 1e-4 and from 1e16 on.
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) {
		return strconv.AppendFloat(dst, f, 'e', -1, 64)
	}
	from := len(dst)
	dst = strconv.AppendFloat(dst, f, 'f', -1, 64)
	for _, c := range dst[from:] {
		if c == '.' {
			return dst
		}
	}
	return append(dst, ".0"...)
}

// appendRepr appends a text in quotes, as Python's repr has it.
func appendRepr(dst []byte, t string) []byte {
	quote := byte('\'')
	if strings.IndexByte(t, '\'') >= 0 && strings.IndexByte(t, '"') < 0 {
		quote = '"'
	}
	const hex = "0123456789abcdef"
	dst = append(dst, quote)
	for _, r := range t {
		switch {
		case r == '\\' || r == rune(quote):
			dst = append(dst, '\\', byte(r))
		case r == '\n':
			dst = append(dst, '\\', 'n')
		case r == '\r':
			dst = append(dst, '\\', 'r')
		case r == '\t':
			dst = append(dst, '\\', 't')
		case r < ' ' || r >= 0x7f && r < 0x100 && !unicode.IsPrint(r):
			dst = append(dst, '\\', 'x', hex[r>>4], hex[r&15])
		case r < 0x7f || unicode.IsPrint(r):
			dst = utf8.AppendRune(dst, r)
		case r < 0x10000:
			dst = append(dst, '\\', 'u', hex[r>>12], hex[r>>8&15], hex[r>>4&15], hex[r&15])
		default:
			dst = append(dst, '\\', 'U', '0', '0', hex[r>>20], hex[r>>16&15], hex[r>>12&15], hex[r>>8&15], hex[r>>4&15], hex[r&15])
		}
	}
	return append(dst, quote)
}

// iterate returns the items of a loop over the value.
func (s *state) iterate(v Value) []Value {
	switch v.kind {
	case sequence:
		return v.items()
	case mapping:
		keys := make([]Value, v.dict().Len())
		s.pay(48 * len(keys))
		for i, e := range v.dict().entries {
			keys[i] = e.key
		}
		return keys
	case text:
		s.pay(48 * len(v.str))
		chars := make([]Value, 0, len(v.str))
		for i, r := range v.str {
			chars = append(chars, String(v.str[i:i+utf8.RuneLen(r)]))
		}
		return chars
	case missing, undefined:
		return nil
	}
	s.fail("%s cannot be looped over", v.kindName())
	return nil
}

// format is Python's % of a text, with the conversions s, d, i, r, f and %.
func (s *state) format(t string, v Value) Value {
	values := []Value{v}
	if v.kind == sequence && v.num == 1 {
		values = v.items()
	}
	s.pay(2 * len(t))
	var b []byte
	used := 0
	for i := 0; i < len(t); i++ {
		if t[i] != '%' {
			b = append(b, t[i])
			continue
		}
		if i++; i == len(t) {
			s.fail("an incomplete format")
		}
		if t[i] == '%' {
			b = append(b, '%')
			continue
		}
		if used == len(values) {
			s.fail("not enough values for a format")
		}
		value := values[used]
		used++
		s.step()
		from := len(b)
		switch {
		case t[i] == 's':
			b = append(b, s.str(value)...)
		case t[i] == 'r':
			b = s.repr(b, value, 0)
		case (t[i] == 'd' || t[i] == 'i') && value.kind == whole:
			b = appendNumber(b, value)
		case t[i] == 'f' && value.isNumber() && !value.isBig():
			b = strconv.AppendFloat(b, value.number(), 'f', 6, 64)
		default:
			s.fail("the format %%%c is not supported", t[i])
		}
		s.pay(2 * (len(b) - from))
	}
	if used != len(values) {
		s.fail("not all values are used in a format")
	}
	return String(own(b))
}
