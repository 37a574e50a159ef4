package openai

import "strconv"

// mostRepeats bounds what a JSON schema may say of the number of an array's items and of an object's members. Engines unroll
// it into a grammar: over minItems 1000000000 the API server of vLLM 0.32 stands still, and everything behind it.
const mostRepeats = 10_000

// unrolled are the keywords that it bounds.
var unrolled = known([]string{"minItems", "maxItems", "minContains", "maxContains", "minProperties", "maxProperties"})

// grammar reads what an answer is bound to: an object with schemas in it somewhere, or the text of one.
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

// tooMany walks the value at hand and returns the first keyword whose number is above mostRepeats, empty for none. It ends at
// what is no JSON.
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
