package openai

import (
	"encoding/binary"
	"math/bits"
)

// deepest bounds the open containers of one JSON text, whatever limit a caller sets: skip keeps one bit for each, on
// the stack.
const deepest = 512

// cursor parses one JSON text strictly (RFC 8259), without recursion and allocation. Methods leave pos after what they
// read. After the first fault every method fails.
type cursor struct {
	data  []byte
	pos   int
	depth int    // containers open around pos
	limit int    // most containers that may be open, at most deepest
	fault string // the reason of the failure, or empty
	wide  bool   // a string was read that may hold more than ASCII
}

// text is the position of a string: the bytes between its quotes, and its length with its escapes resolved.
type text struct{ start, end, decoded int }

// span is the position of a value.
type span struct{ start, end int }

// of returns the value as a part of data.
func (s span) of(data []byte) []byte { return data[s.start:s.end] }

func newCursor(data []byte, limit int) cursor {
	return cursor{data: data, limit: limit}
}

func (t text) escaped() bool { return t.decoded != t.end-t.start }

func (c *cursor) fail(what string) bool {
	if c.fault == "" {
		c.fault = what
	}
	return false
}

func (c *cursor) ok() bool { return c.fault == "" }

// space skips white space.
func (c *cursor) space() {
	for c.pos < len(c.data) {
		switch c.data[c.pos] {
		case ' ', '\n', '\r', '\t':
			c.pos++
		default:
			return
		}
	}
}

// peek skips white space and returns the next byte without consuming it, 0 at the end.
func (c *cursor) peek() byte {
	if c.pos < len(c.data) && c.data[c.pos] > ' ' {
		return c.data[c.pos]
	}
	return c.peekOn()
}

func (c *cursor) peekOn() byte {
	if c.space(); c.pos == len(c.data) {
		return 0
	}
	return c.data[c.pos]
}

// finish checks that nothing but white space is left.
func (c *cursor) finish() bool {
	if !c.ok() {
		return false
	}
	if c.space(); c.pos != len(c.data) {
		return c.fail("unexpected data after the end")
	}
	return true
}

// open takes the bracket or brace at pos.
func (c *cursor) open() bool {
	if c.depth >= c.limit {
		return c.fail("nested too deeply")
	}
	c.depth++
	c.pos++
	return true
}

// in takes the bracket or brace at pos. Any other value is skipped.
func (c *cursor) in(bracket byte) bool {
	if c.peek() != bracket {
		c.value()
		return false
	}
	return c.open()
}

// members iterates over the members of an object; the loop reads each value. Any other value is skipped.
type members struct {
	*cursor
	more, begun bool
	key         text // of the member at hand
	buf         [longestKey]byte
}

func (c *cursor) members() members { return members{cursor: c, more: c.in('{')} }

func (m *members) next() bool {
	if m.more {
		m.key, m.more = m.member(!m.begun)
		m.begun = true
	}
	return m.more
}

// name returns the name of the member at hand, until next is called.
func (m *members) name() []byte { return m.key.resolve(m.data, &m.buf) }

// member moves to the value of an open object's next member and returns the position of its key, or consumes the
// closing brace and returns false.
func (c *cursor) member(first bool) (key text, more bool) {
	if !c.next('}', first) {
		return text{}, false
	}
	if c.peek() != '"' {
		return text{}, c.fail("expected a key in quotes")
	}
	key, ok := c.str()
	if !ok {
		return text{}, false
	}
	if c.peek() != ':' {
		return text{}, c.fail("expected a colon after a key")
	}
	c.pos++
	c.peek()
	return key, true
}

// element moves to an open array's next element, or takes the closing bracket and returns false.
func (c *cursor) element(first bool) bool {
	if !c.next(']', first) {
		return false
	}
	c.peek()
	return true
}

// next consumes the separator of two items of a container, or its end.
func (c *cursor) next(closing byte, first bool) bool {
	if !c.ok() {
		return false
	}
	b := c.peek()
	if b == closing {
		c.pos++
		c.depth--
		return false
	}
	if first {
		return true
	}
	if b != ',' {
		return c.fail("expected a comma or the end of a list or an object")
	}
	c.pos++
	return true
}

// str takes the string that begins at pos. Most are keys and short: those of less than sixteen bytes are read here.
func (c *cursor) str() (t text, ok bool) {
	d, i := c.data, c.pos+1
	t.start = i
	var wide uint64
	for range 2 {
		if i+8 > len(d) {
			break
		}
		w := binary.LittleEndian.Uint64(d[i:])
		wide |= w & highs
		if hits := stops(w); hits != 0 {
			if i += bits.TrailingZeros64(hits) >> 3; d[i] != '"' {
				break
			}
			c.wide = c.wide || wide != 0
			c.pos = i + 1
			t.end, t.decoded = i, i-t.start
			return t, true
		}
		i += 8
	}
	c.wide = c.wide || wide != 0
	return c.longStr(t, i)
}

// longStr continues at i with the string t, which has no escape before it.
func (c *cursor) longStr(t text, i int) (_ text, ok bool) {
	saved := 0
	for {
		if i < len(c.data) && c.data[i] != '\\' { // escapes often follow one another
			var wide uint64
			i, wide = plainRun(c.data, i)
			c.wide = c.wide || wide != 0
		}
		if i == len(c.data) {
			c.pos = i
			return t, c.fail("unterminated string")
		}
		switch c.data[i] {
		case '"':
			t.end, t.decoded = i, i-t.start-saved
			c.pos = i + 1
			return t, true
		case '\\':
			if i+1 < len(c.data) && short[c.data[i+1]] != 0 {
				i += 2
				saved++
				continue
			}
			r, n := escape(c.data[i:])
			if n == 0 {
				c.pos = i
				return t, c.fail("bad escape in a string")
			}
			i += n
			saved += n - runeLen(r)
		default:
			c.pos = i
			return t, c.fail("control character in a string")
		}
	}
}

// number takes the number at pos; integer reports whether it has neither a fraction nor an exponent.
func (c *cursor) number() (s span, integer, ok bool) {
	d, i := c.data, c.pos
	s.start = i
	if i < len(d) && d[i] == '-' {
		i++
	}
	whole := digits(d, i)
	if whole == i || (d[i] == '0' && whole > i+1) {
		c.pos = i
		return s, false, c.fail("bad number")
	}
	i, integer = whole, true
	if i < len(d) && d[i] == '.' {
		integer = false
		end := digits(d, i+1)
		if end == i+1 {
			c.pos = i
			return s, false, c.fail("bad number")
		}
		i = end
	}
	if i < len(d) && (d[i] == 'e' || d[i] == 'E') {
		integer = false
		i++
		if i < len(d) && (d[i] == '+' || d[i] == '-') {
			i++
		}
		end := digits(d, i)
		if end == i {
			c.pos = i
			return s, false, c.fail("bad number")
		}
		i = end
	}
	c.pos, s.end = i, i
	return s, integer, true
}

// digits returns the end of the run of digits that begins at i.
func digits(d []byte, i int) int {
	for i < len(d) && d[i]-'0' <= 9 {
		i++
	}
	return i
}

// literal takes the word at pos: true, false or null.
func (c *cursor) literal(word string) bool {
	if end := c.pos + len(word); end <= len(c.data) && string(c.data[c.pos:end]) == word {
		c.pos = end
		return true
	}
	return c.fail("expected a value")
}

// scalar takes the string, number or word at pos.
func (c *cursor) scalar() bool {
	if c.pos == len(c.data) {
		return c.fail("unexpected end")
	}
	switch b := c.data[c.pos]; {
	case b == '"':
		_, ok := c.str()
		return ok
	case b == '-' || b-'0' <= 9:
		_, _, ok := c.number()
		return ok
	case b == 't':
		return c.literal("true")
	case b == 'f':
		return c.literal("false")
	case b == 'n':
		return c.literal("null")
	}
	return c.fail("expected a value")
}

// value reads any value and returns its position.
func (c *cursor) value() (s span, ok bool) {
	if !c.ok() {
		return s, false
	}
	b := c.peek()
	s.start = c.pos
	if b == '{' || b == '[' {
		ok = c.container()
	} else {
		ok = c.scalar()
	}
	s.end = c.pos
	return s, ok
}

// container takes the object or array at pos. Which of the two each open container is, is one bit of arrays.
func (c *cursor) container() bool {
	var arrays [deepest / 64]uint64
	outside := c.depth
	first := false
	for {
		// Here a value begins, at pos.
		if b := c.peek(); b == '{' || b == '[' {
			if !c.open() {
				return false
			}
			word, bit := c.depth>>6&(len(arrays)-1), uint64(1)<<(c.depth&63)
			arrays[word] &^= bit
			first = true
			if b == '[' {
				arrays[word] |= bit
				begun := c.pos
				c.pos = integers(c.data, begun) // such as a prompt's
				first = c.pos == begun
			}
		} else if !c.scalar() {
			return false
		}
		// A value or an opening bracket has ended: close the containers that end.
		for more := false; !more; {
			if c.depth == outside {
				return true
			}
			if arrays[c.depth>>6&(len(arrays)-1)]>>(c.depth&63)&1 == 1 {
				more = c.element(first)
			} else {
				_, more = c.member(first)
			}
			if !c.ok() {
				return false
			}
			first = false
		}
	}
}
