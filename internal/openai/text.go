package openai

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"slices"
	"unicode/utf16"
	"unicode/utf8"
	"unsafe"
)

const hexDigits = "0123456789abcdef"

// short maps the byte after \ to its character, 0 for none; \u is not in it.
var short = [256]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// hexValue is one more than a hexadecimal digit's value, 0 for other bytes.
var hexValue = func() (v [256]uint8) {
	for i, c := range hexDigits {
		v[c] = uint8(i + 1)
		if i >= 10 {
			v[c-'a'+'A'] = uint8(i + 1)
		}
	}
	return v
}()

// escape reads the escape that b begins with and returns its character and its length in bytes, 0 where it is none. A
// surrogate counts only as one half of a pair.
func escape(b []byte) (r rune, n int) {
	if len(b) < 2 {
		return 0, 0
	}
	if c := short[b[1]]; c != 0 {
		return rune(c), 2
	}
	r = hex4(b)
	if r < 0 {
		return 0, 0
	}
	if !utf16.IsSurrogate(r) {
		return r, 6
	}
	r = utf16.DecodeRune(r, hex4(b[6:]))
	if r == utf8.RuneError {
		return 0, 0
	}
	return r, 12
}

// hex4 returns the number in b's leading \uXXXX, or -1.
func hex4(b []byte) rune {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return -1
	}
	p, q, r, s := hexValue[b[2]], hexValue[b[3]], hexValue[b[4]], hexValue[b[5]]
	if p == 0 || q == 0 || r == 0 || s == 0 {
		return -1
	}
	return rune(p-1)<<12 | rune(q-1)<<8 | rune(r-1)<<4 | rune(s-1)
}

// runeLen is utf8.RuneLen for valid characters.
func runeLen(r rune) int {
	switch {
	case r < 0x80:
		return 1
	case r < 0x800:
		return 2
	case r < 0x10000:
		return 3
	}
	return 4
}

// appendTo appends t's text, its escapes resolved, to dst.
func (t text) appendTo(dst, data []byte) []byte {
	raw := data[t.start:t.end]
	if !t.escaped() {
		return append(dst, raw...)
	}
	n := len(dst)
	dst = slices.Grow(dst, t.decoded)[:n+t.decoded]
	unescape(dst[n:], raw)
	return dst
}

// unescape resolves the escapes of a string that the cursor accepted; out is as long as the result.
func unescape(out, raw []byte) {
	i, o := 0, 0
	for i < len(raw) {
		if raw[i] == '\\' {
			if c := short[raw[i+1]]; c != 0 {
				out[o] = c
				i += 2
				o++
				continue
			}
			r, n := escape(raw[i:])
			i += n
			o += utf8.EncodeRune(out[o:], r)
			continue
		}
		// Short runs are copied as one word, whose excess is overwritten, long ones as a block.
		n := 8
		if i+8 <= len(raw) && o+8 <= len(out) {
			w := binary.LittleEndian.Uint64(raw[i:])
			binary.LittleEndian.PutUint64(out[o:], w)
			b := w ^ ones*'\\'
			n = bits.TrailingZeros64((b-ones)&^b&highs) >> 3
		}
		if n == 8 {
			n = bytes.IndexByte(raw[i:], '\\')
			if n < 0 {
				n = len(raw) - i
			}
			copy(out[o:], raw[i:i+n])
		}
		i += n
		o += n
	}
}

// decode returns t's text as a new string.
func (t text) decode(data []byte) string {
	if !t.escaped() {
		return string(data[t.start:t.end])
	}
	return own(t.appendTo(nil, data))
}

// own returns b as a string without copying it. No other reference to b may exist.
func own(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// of returns t's text, its escapes resolved: a part of data where it has none.
func (t text) of(data []byte) []byte {
	if !t.escaped() {
		return data[t.start:t.end]
	}
	return t.appendTo(nil, data)
}

// longestKey bounds the known keys, in bytes, with room to spare.
const longestKey = 64

// resolve returns the key at t with its escapes resolved: a part of data without escapes, else in buf. Keys too long
// for buf are unknown and returned unchanged.
func (t text) resolve(data []byte, buf *[longestKey]byte) []byte {
	if !t.escaped() || t.decoded > len(buf) {
		return data[t.start:t.end]
	}
	return t.appendTo(buf[:0], data)
}

// appendQuoted appends s as a JSON string. Control characters are escaped, and bytes that are no UTF-8 become U+FFFD,
// so the result is always valid.
func appendQuoted[S string | []byte](dst []byte, s S) []byte {
	dst = append(dst, '"')
	plain := 0
	for i := 0; i < len(s); {
		b := s[i]
		if b >= 0x20 && b < utf8.RuneSelf && b != '"' && b != '\\' {
			i++
			continue
		}
		if b >= utf8.RuneSelf {
			r, n := utf8.DecodeRuneInString(string(s[i:min(len(s), i+utf8.UTFMax)]))
			if r != utf8.RuneError || n > 1 {
				i += n
				continue
			}
			dst = append(dst, s[plain:i]...)
			dst = append(dst, "\uFFFD"...)
			i++
			plain = i
			continue
		}
		dst = append(dst, s[plain:i]...)
		switch b {
		case '"', '\\':
			dst = append(dst, '\\', b)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[b>>4], hexDigits[b&15])
		}
		i++
		plain = i
	}
	dst = append(dst, s[plain:]...)
	return append(dst, '"')
}
