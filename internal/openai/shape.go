package openai

import "bytes"

// Shape is the common form of one stream's events. An engine writes hundreds that differ only in a text and in its
// tokens' ids: those that match the last one are compared with it instead of parsed. The zero Shape matches none.
type Shape struct {
	event     []byte // the event to match, or empty
	text, ids span   // the position of its text, between the quotes, and of its array of ids, empty without one
	info      ChunkInfo
}

// longestShape bounds the event that a stream keeps.
const longestShape = 4 << 10

// Inspect sets info to the result of InspectOf, faster if the stream's events are alike.
func (s *Shape) Inspect(info *ChunkInfo, data, pinned []byte) {
	if !s.like(info, data) {
		*info = InspectOf(data, pinned)
		s.learn(data, info)
	}
}

// Reset drops the event and keeps its memory.
func (s *Shape) Reset() { *s = Shape{event: s.event[:0]} }

// learn keeps an event of one choice with a text, and with ids after it or none: InspectOf of one with another text
// that is not empty, and other ids, depends on these alone.
func (s *Shape) learn(data []byte, info *ChunkInfo) {
	text := span{info.text.start, info.text.end}
	switch {
	case info.Usage && (info.usageValue.start < max(text.end, info.ids.end) || bytes.Count(data, usageName) > 1):
		return
	case info.Choices != 1, info.HasReasoning, text.end == text.start, info.PromptIDs != nil, info.KVParams != nil, len(data) > longestShape:
		return
	case info.IDs == nil && info.showed == 0:
		s.ids = span{len(data), len(data)}
		if info.Usage {
			s.ids = span{info.usageValue.start, info.usageValue.start}
		}
	case info.IDs != nil && info.showed == 1 && info.ids.start > text.end:
		s.ids = info.ids
	default:
		return
	}
	s.event, s.text, s.info = append(s.event[:0], data...), text, *info
	s.info.IDs = nil // a part of data
}

var usageName = []byte(`"usage"`)

// like reads an event that is like the one before. It reports false of any other, and leaves info as it may be then.
func (s *Shape) like(info *ChunkInfo, data []byte) bool {
	if len(s.event) == 0 || !bytes.HasPrefix(data, s.event[:s.text.start]) {
		return false
	}
	c := newCursor(data, deepest)
	c.pos = s.text.start - 1 // its quote
	t, ok := c.str()
	if !ok || t.decoded == 0 || !bytes.HasPrefix(data[t.end:], s.event[s.text.end:s.ids.start]) {
		return false
	}
	*info = s.info
	info.text = t
	moved := t.end - s.text.end
	ids := span{s.ids.start + moved, s.ids.start + moved}
	if s.ids.end > s.ids.start {
		var n int
		if ids.end, n = idsEnd(data, ids.start); n == 0 {
			return false
		}
		info.IDs, info.ids, info.Tokens = ids.of(data), ids, n
		info.shows[0] = span{info.shows[0].start + moved, info.shows[0].end + ids.end - s.ids.end}
	}
	rest, was := data[ids.end:], s.event[s.ids.end:]
	if !s.info.Usage {
		return bytes.Equal(rest, was)
	}
	upTo := s.info.usageValue.start - s.ids.end
	if !bytes.HasPrefix(rest, was[:upTo]) {
		return false
	}
	if c.pos = ids.end + upTo; c.peek() != '{' {
		return false
	}
	info.PromptTokens, info.CompletionTokens, info.CachedTokens, info.ReasoningTokens = 0, 0, -1, 0
	info.readUsage(&c)
	info.usageValue = span{ids.end + upTo, c.pos}
	info.usage = span{s.info.usage.start - s.ids.end + ids.end, c.pos}
	return c.ok() && bytes.Equal(data[c.pos:], s.event[s.info.usageValue.end:])
}

// idsEnd returns the end of the array at start, and its number of ids: 0 if it is empty or has anything but integers
// with a comma between two.
func idsEnd(data []byte, start int) (end, n int) {
	before := byte('[')
	for i := start; i+1 < len(data) && data[i] == before; n++ {
		whole := digits(data, i+1)
		if whole == i+1 || data[i+1] == '0' && whole > i+2 {
			return start, 0
		}
		if i, before = whole, ','; i < len(data) && data[i] == ']' {
			return i + 1, n + 1
		}
	}
	return start, 0
}
