package openai

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
)

// PromptKind is the form of a prompt.
type PromptKind uint8

const (
	// NoPrompt is the zero value; no scanned request has it.
	NoPrompt PromptKind = iota
	// PromptText is one string.
	PromptText
	// PromptIDs is token ids.
	PromptIDs
	// PromptMessages is a chat's messages.
	PromptMessages
)

// Prompt is a request's prompt. Text and Messages decode the body at each call: the result is as large as the body, and
// a request that runs for minutes need not keep it.
type Prompt struct {
	Kind PromptKind
	// IDs is the prompt of kind PromptIDs, never empty then.
	IDs []uint32

	raw     []byte
	where   text // PromptText
	spans   []messageSpan
	several []span // where a completion has several prompts, of which the fields above are the first; see Part
}

// Text returns the prompt of kind PromptText, unescaped.
func (p *Prompt) Text() string {
	if p.Kind != PromptText {
		return ""
	}
	return p.where.decode(p.raw)
}

// Messages returns the messages of kind PromptMessages, unescaped.
func (p *Prompt) Messages() []Message {
	if p.Kind != PromptMessages {
		return nil
	}
	messages := make([]Message, len(p.spans))
	for i, m := range p.spans {
		messages[i] = Message{Role: m.role.decode(p.raw), Content: m.decode(p.raw)}
	}
	return messages
}

// Plain returns how many messages the prompt has if each of them holds a role and one text and nothing else, else 0.
func (p *Prompt) Plain() int {
	for i := range p.spans {
		if !p.spans[i].plain {
			return 0
		}
	}
	return len(p.spans)
}

// AppendRole appends the role of the i-th message.
func (p *Prompt) AppendRole(dst []byte, i int) []byte { return p.spans[i].role.appendTo(dst, p.raw) }

// AppendContent appends the text of the i-th message, which must be plain.
func (p *Prompt) AppendContent(dst []byte, i int) []byte {
	return p.spans[i].content.appendTo(dst, p.raw)
}

// TokensAtLeast returns a lower bound of the prompt's tokens, so that one far over a model's context is rejected before
// tokenization. Token ids are counted. Text has at least its bytes divided by longestToken (above 0), the most bytes of
// one token; valid for tokenizers that do not shorten the text first, as byte-level ones.
func (p *Prompt) TokensAtLeast(longestToken int) int {
	total := 0
	switch p.Kind {
	case PromptIDs:
		return len(p.IDs)
	case PromptText:
		total = p.where.decoded
	case PromptMessages:
		for _, m := range p.spans {
			total += m.bytes
		}
	}
	return (total + longestToken - 1) / longestToken
}

// prompt reads a completion's prompt.
func (s *scan) prompt() bool {
	p := &s.req.Prompt
	p.raw = s.data
	switch s.peek() {
	case '"':
		return s.promptText()
	case '[':
	default:
		return s.wrong(promptForms)
	}
	outside := s.cursor
	if !s.open() {
		return false
	}
	kind := s.peek()
	switch kind {
	case '"', '[':
	case ']':
		return s.wrong("a prompt that is not empty")
	default:
		s.cursor = outside
		return s.promptIDs()
	}
	var one Prompt
	var all []span
	for first := true; s.element(first); first = false {
		switch b := s.peek(); {
		case b != '"' && b != '[': // a list with a number in it is one of token ids
			s.cursor = outside
			return s.promptIDs()
		case b != kind:
			return s.wrong(promptForms)
		case len(all) == mostParts:
			return s.wrong(fmt.Sprintf("an array of at most %d prompts", mostParts))
		}
		start := s.pos
		if kind == '"' && !s.promptText() || kind == '[' && !s.promptIDs() {
			return false
		}
		if all = append(all, span{start, s.pos}); first {
			one = *p
		}
	}
	if *p = one; len(all) > 1 {
		p.several = all
	}
	return s.ok()
}

const promptForms = "a string, an array of token ids, or an array of strings or of such arrays"

func (s *scan) promptText() bool {
	t, ok := s.str()
	if ok && t.decoded == 0 {
		return s.wrong("a prompt that is not empty")
	}
	s.req.Prompt.Kind, s.req.Prompt.where = PromptText, t
	return ok
}

func (s *scan) promptIDs() bool {
	p := &s.req.Prompt
	p.Kind = PromptIDs
	if !s.ids(&p.IDs) {
		return false
	}
	if len(p.IDs) == 0 {
		return s.wrong("a prompt that is not empty")
	}
	return true
}

// ids reads an array of token ids, 0 to 2^32−1.
func (s *scan) ids(dst *[]uint32) bool {
	const want = "an array of token ids (whole numbers from 0 to 4294967295)"
	if !s.enter('[', want) {
		return false
	}
	// Valid ids end at the first bracket, so their number is known before they are parsed. At least a digit and a comma
	// each bound the memory for a list of commas.
	list := s.data[s.pos:]
	if end := bytes.IndexByte(list, ']'); end >= 0 {
		list = list[:end]
	}
	ids := make([]uint32, 0, min(bytes.Count(list, []byte{','})+1, (len(list)+1)/2))
	for first := true; s.element(first); first = false {
		ids, s.pos = shortIDs(ids, s.data, s.pos)
		raw, ok := s.lax()
		v := int64(0)
		if ok {
			v, ok = laxInt(raw)
		}
		if !ok || v < 0 || v > math.MaxUint32 {
			return s.wrong(want)
		}
		ids = append(ids, uint32(v))
	}
	*dst = ids
	return s.ok()
}

// shortIDs appends the ids at d[i:] that have at most seven digits and a comma after them, and returns the position of
// the first other value. It reads eight bytes at a time: the number of digits follows from the first byte that is none,
// their value from three multiplications that join neighbours.
func shortIDs(ids []uint32, d []byte, i int) ([]uint32, int) {
	for i+8 <= len(d) {
		x := binary.LittleEndian.Uint64(d[i:]) ^ ones*'0'
		n := bits.TrailingZeros64((x+ones*(0x80-10)|x)&highs) >> 3
		if n == 0 || n == 8 || d[i+n] != ',' || (d[i] == '0' && n > 1) {
			break
		}
		x <<= 64 - 8*n
		x = (x*10 + x>>8) & 0x00ff00ff00ff00ff
		x = (x*100 + x>>16) & 0x0000ffff0000ffff
		x = x*10000 + x>>32
		ids = append(ids, uint32(x))
		i += n + 1
		if i < len(d) && d[i] == ' ' {
			i++
		}
	}
	return ids, i
}
