package openai

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/http"
	"slices"
)

// Message is one message of a chat. Content is empty where it was null or absent; text parts that are not empty are
// joined by a line feed, as vLLM does for templates that take strings (vllm/renderers/chat_utils.py), and other parts
// left out.
type Message struct{ Role, Content string }

// messageSpan is the position of a message's role and content. An array of parts is parsed again when it is decoded.
type messageSpan struct {
	role, content text
	parts         span
	bytes         int    // decoded length of the content's text
	plain         bool   // nothing but a role and a text
	speaker       uint8  // its role's place in speakers
	form          uint16 // its other members, one bit each
}

// speakers are the roles of templates; all others share the next index, and one more is for no message.
var speakers = [...]string{"system", "developer", "user", "assistant", "tool", "function"}

const (
	others  = len(speakers)
	nothing = others + 1
)

// The forms of a message. Other fields have the bits above, by their names' lengths.
const (
	inParts  = 1 << iota // its content is a list
	empty                // it has no text
	blank                // its text begins or ends with white space
	thoughts             // its text has the end of a thought
	fieldForm
)

// AppendForm appends a chat's form without its texts, in a few bytes whatever its length: the sequence of roles, and
// the other members of each role's messages. Templates depend on both.
func (p *Prompt) AppendForm(dst []byte) []byte {
	if p.Kind != PromptMessages {
		return append(dst, byte(p.Kind))
	}
	var follow uint64
	var forms [others + 1]uint16
	before := nothing
	for i := range p.spans {
		m := &p.spans[i]
		follow |= 1 << (before*(nothing+1) + int(m.speaker))
		before = int(m.speaker)
		forms[m.speaker] |= m.form | m.textForm(p.raw)
	}
	dst = binary.LittleEndian.AppendUint64(dst, follow|1<<(before*(nothing+1)+nothing))
	for _, f := range forms {
		dst = binary.LittleEndian.AppendUint16(dst, f)
	}
	return dst
}

func (m *messageSpan) textForm(raw []byte) (form uint16) {
	text := raw[m.content.start:m.content.end]
	if m.parts.end > 0 {
		form, text = inParts, raw[m.parts.start:m.parts.end]
	}
	switch {
	case m.content.start == 0 && form == 0: // null, or absent
		return empty | blank
	case m.bytes == 0:
		return form | empty
	}
	if n := len(text); text[0] <= ' ' || text[0] == '\\' || text[n-1] <= ' ' || n > 1 && text[n-2] == '\\' {
		form |= blank
	}
	if bytes.Contains(text, []byte("think>")) {
		form |= thoughts
	}
	return form
}

// decode returns the message's text.
func (m *messageSpan) decode(raw []byte) string {
	if m.parts.end == 0 {
		return m.content.decode(raw)
	}
	b := make([]byte, 0, m.bytes)
	c := newCursor(raw[:m.parts.end], deepest)
	c.pos = m.parts.start
	c.open()
	texts := 0
	for first := true; c.element(first); first = false {
		p := c.part()
		if p.kind != Text || p.text.decoded == 0 {
			continue
		}
		if texts++; texts > 1 {
			b = append(b, '\n')
		}
		b = p.text.appendTo(b, raw)
	}
	return own(b)
}

// emptyArray reports whether a valid JSON value is an array of nothing.
func emptyArray(v []byte) bool {
	return v[0] == '[' && len(bytes.TrimSpace(v[1:len(v)-1])) == 0
}

type part struct {
	kind  Modality // 0 where it has not a part's shape
	text  text     // of a Text; empty where it is null or absent: vLLM leaves such a part out
	named bool     // it has a uuid
}

// part reads one content part: a string, or an object with a type, or with an image, audio or video and no type. vLLM
// accepts all of these (vllm/renderers/chat_utils.py of 0.32.0), some only in certain lists; SGLang rejects those
// without a type. A kind of 0 without a fault means another shape.
func (c *cursor) part() part {
	if c.peek() == '"' {
		t, _ := c.str()
		return part{kind: Text, text: t}
	}
	var p part
	var kind text
	var untyped Modality
	shapely := true
	m := c.members()
	for m.next() {
		var t *text
		switch name := m.name(); string(name) {
		case "type":
			t = &kind
		case "text":
			t = &p.text
		case "uuid":
			p.named = c.peek() != 'n'
		default:
			if of := modalityOf(name); of != Other && untyped == 0 {
				untyped = of
			}
		}
		if b := c.peek(); t == nil || b != '"' || t.start != 0 { // another type, or twice
			shapely = shapely && (t == nil || b == 'n')
			c.value()
			continue
		}
		*t, _ = c.str()
	}
	if !c.ok() || !shapely || kind.start == 0 && untyped == 0 {
		return part{}
	}
	if p.kind = untyped; kind.start != 0 {
		p.kind = modalityOf(kind.resolve(c.data, &m.buf))
	}
	return p
}

// messages reads a chat's messages: checks their shape, and notes the positions of role and content and which contents
// are more than text.
func (s *scan) messages() bool {
	if !s.enter('[', "an array of messages") {
		return false
	}
	p := &s.req.Prompt
	p.Kind, p.raw = PromptMessages, s.data
	for first := true; s.element(first); first = false {
		if len(s.spans) == maxMessages {
			return s.wrong(fmt.Sprintf("an array of at most %d messages", maxMessages))
		}
		var m messageSpan
		if !s.message(&m) {
			if s.err != nil {
				s.err.at(fmt.Sprintf("messages[%d]", len(s.spans)))
			}
			return false
		}
		if n := len(s.spans); n == cap(s.spans) && n >= keptScans { // as many as the rest holds, at the rate so far
			s.spans = slices.Grow(s.spans, min(maxMessages-n, n/8+int(int64(n)*int64(len(s.data)-s.pos)/int64(s.pos))))
		}
		s.spans = append(s.spans, m)
	}
	if s.ok() && len(s.spans) == 0 {
		return s.wrong("an array of at least one message")
	}
	if p.spans = s.spans; cap(s.spans) <= keptScans {
		p.spans = slices.Clone(s.spans)
	}
	return s.ok()
}

// message reads one message. Errors name fields relative to it; messages prefixes its place.
func (s *scan) message(m *messageSpan) bool {
	if s.peek() != '{' {
		return s.misplaced("", "must be an object")
	}
	content, more := false, false
	fields := s.members()
	for fields.next() {
		switch string(fields.name()) {
		case "role":
			if m.role.start != 0 {
				return s.misplaced(".role", "appears more than once")
			}
			if s.peek() != '"' {
				return s.misplaced(".role", "must be a string")
			}
			m.role, _ = s.str()
		case "content":
			if content {
				return s.misplaced(".content", "appears more than once")
			}
			content = true
			if !s.content(m) {
				return false
			}
		case "tool_calls", "function_call", "tool_call_id":
			more = true
			m.form |= fieldForm << (len(fields.name()) % 12)
			null := s.peek() == 'n'
			if v, ok := s.value(); ok && !null && !emptyArray(v.of(s.data)) {
				s.req.HasToolMessages = true
			}
		default:
			more = true
			m.form |= fieldForm << (len(fields.name()) % 12)
			s.value()
		}
	}
	if !s.ok() {
		return false
	}
	m.plain = !more && m.content.start != 0
	if m.role.decoded == 0 {
		return s.misplaced(".role", "is required")
	}
	role := string(m.role.resolve(s.data, &fields.buf))
	if m.speaker = uint8(slices.Index(speakers[:], role)); int(m.speaker) > nothing {
		m.speaker = uint8(others)
	}
	s.req.HasToolMessages = s.req.HasToolMessages || role == "tool" || role == "function"
	return true
}

// content reads a message's content: null, a string or an array of parts.
func (s *scan) content(m *messageSpan) bool {
	const want = "must be a string, null or an array of parts"
	switch s.peek() {
	case 'n':
		return s.literal("null")
	case '"':
		t, ok := s.str()
		m.content, m.bytes = t, t.decoded
		return ok
	case '[':
	default:
		return s.misplaced(".content", want)
	}
	m.parts.start = s.pos
	if !s.open() {
		return false
	}
	texts := 0
	for i := 0; s.element(i == 0); i++ {
		s.peek()
		begin := s.pos
		p := s.part()
		if p.named && !s.handOff && s.ok() {
			// vLLM uses it as the part's hash, so it could name another client's image.
			return s.misplaced(fmt.Sprintf(".content[%d].uuid", i), "is set by the gateway and cannot be sent by a client")
		}
		switch p.kind {
		case Text:
			if p.text.decoded == 0 {
				break
			}
			m.bytes += p.text.decoded
			if texts++; texts > 1 {
				m.bytes++
			}
		case 0:
			if !s.ok() {
				return false
			}
			return s.misplaced(fmt.Sprintf(".content[%d]", i),
				"must be a string, or an object with a type (with a text where that is \"text\") or with an image, audio or video")
		default:
			if len(s.req.media) == maxMedia {
				return s.misplaced(fmt.Sprintf(".content[%d]", i), fmt.Sprintf("is one of more than %d parts that are no text", maxMedia))
			}
			s.req.media = append(s.req.media, media{p.kind, span{begin, s.pos}})
		}
	}
	m.parts.end = s.pos
	return s.ok()
}

// misplaced rejects a message for the value at path inside it.
func (s *scan) misplaced(path, what string) bool {
	if s.pos == len(s.data) {
		return s.fail("unexpected end")
	}
	return s.refuse(&Error{Status: http.StatusBadRequest, Param: path, Message: what})
}

// at completes an error that misplaced made.
func (e *Error) at(place string) {
	e.Param = place + e.Param
	e.Message = e.Param + " " + e.Message
}
