package openai

import "strconv"

// mostRepeats bounds the numbers of items and members in a JSON schema. Engines unroll them into a grammar: minItems
// 1000000000 blocks the API server of vLLM 0.32.
const mostRepeats = 10_000

// unrolled are the keywords that it bounds.
var unrolled = known([]string{"minItems", "maxItems", "minContains", "maxContains", "minProperties", "maxProperties"})

// grammar reads an answer's constraint: an object that contains schemas, or a schema's text.
func (s *scan) grammar() bool {
	s.peek()
	v, ok := s.value()
	return ok && s.schema(v.of(s.data))
}

// formatted is grammar for a field that must be an object.
func (s *scan) formatted() bool {
	if s.peek() != '{' {
		return s.wrong("an object")
	}
	return s.grammar()
}

// schema refuses a schema that engines cannot unroll.
func (s *scan) schema(raw []byte) bool {
	c := newCursor(raw, deepest)
	if c.peek() == '"' {
		t, _ := c.str()
		text := []byte(t.decode(raw))
		c = newCursor(text, deepest)
	}
	keyword := c.tooMany()
	if keyword == "" {
		return true
	}
	return s.refuse(BadRequest(s.param, "%s: %s of a schema must not be above %d", s.param, keyword, mostRepeats))
}

// tooMany walks the value at hand and returns the first keyword whose number exceeds mostRepeats, empty for none. It
// ends at invalid JSON.
func (c *cursor) tooMany() (keyword string) {
	switch c.peek() {
	case '{':
		m := c.members()
		for m.next() {
			if name := m.name(); unrolled[string(name)] && c.peek()-'0' <= 9 {
				v, _, ok := c.number()
				n, err := strconv.ParseFloat(string(v.of(c.data)), 64)
				if ok && (err != nil || n > mostRepeats) {
					return string(name)
				}
				continue
			}
			if keyword = c.tooMany(); keyword != "" {
				return keyword
			}
		}
	case '[':
		if !c.open() {
			return ""
		}
		for first := true; c.element(first); first = false {
			if keyword = c.tooMany(); keyword != "" {
				return keyword
			}
		}
	default:
		c.value()
	}
	return ""
}
