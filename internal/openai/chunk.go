package openai

import (
	"bytes"
	"strconv"
)

// ChunkInfo is the content of a stream event's data, or of a whole answer, in OpenAI's shape as vLLM and SGLang write
// it. Its slices are parts of the data.
type ChunkInfo struct {
	// Valid: the data is a JSON object. All else is zero where it is not.
	Valid bool
	// Content: a choice has text, reasoning, a refusal or a tool call; the three below name them.
	Content, HasText, HasReasoning, HasToolCall bool
	// Tokens counts the new tokens: those in choices[].token_ids if requested (return_token_ids), else 1 for each
	// choice with content.
	Tokens int
	// Finished is how many choices end here.
	Finished int
	// Reason is why the latest of them ends, in a word: one of the reasons that OpenAI has, or "other".
	Reason string
	// Aborted: one of them ends because the engine gave it up (abort, error).
	Aborted bool
	// Usage: there is a usage object. CachedTokens is −1 if neither it nor KVParams has them.
	Usage                                        bool
	PromptTokens, CompletionTokens, CachedTokens int
	// ReasoningTokens is how many of CompletionTokens are reasoning, 0 if the engine does not report it.
	ReasoningTokens int
	// Error: the engine reports an error where an answer should be, in vLLM's form, {"error":…}, or the older
	// {"object":"error",…}.
	Error bool
	// PromptIDs is the array prompt_token_ids, nil without one: the prompt as the engine tokenized it. A chat has one
	// for the whole answer, a completion one for each choice.
	PromptIDs []byte
	// IDs is the array token_ids of the latest choice that has one, nil where none has.
	IDs []byte
	// KVParams is the object kv_transfer_params, nil without one. It may not be UTF-8.
	KVParams []byte

	// Choices is the number of choices.
	Choices int

	shows   [2]span // the members that show token ids, with one comma each
	showed  int     // number of hidden
	text    text    // of the latest choice that has some
	thought text    // its reasoning
	ids     span    // of IDs

	usage, usageValue span // the member usage with the comma before it, and its value
}

// Inspect reads an event's data or a whole answer without allocating. Anything but a JSON object, [DONE] too, gives an
// invalid ChunkInfo.
func Inspect(data []byte) ChunkInfo { return InspectOf(data, nil) }

// InspectOf is Inspect of the answer to a prompt with known ids, pinned as a JSON array: the answer's copy of these
// bytes is not parsed again. pinned may be nil.
func InspectOf(data, pinned []byte) ChunkInfo {
	c := newCursor(data, deepest)
	if c.peek() != '{' {
		return ChunkInfo{}
	}
	info, cached := ChunkInfo{Valid: true, CachedTokens: -1}, -1
	m := c.members()
	for before := 0; m.next(); before = c.pos {
		switch string(m.name()) {
		case "choices":
			if c.in('[') {
				for first := true; c.element(first); first = false {
					info.choice(&c, pinned)
				}
			}
		case "usage":
			object := c.peek() == '{'
			start := c.pos
			info.readUsage(&c)
			if object {
				info.usage, info.usageValue = span{before, c.pos}, span{start, c.pos}
			}
		case "error":
			null := c.peek() == 'n'
			if _, ok := c.value(); ok && !null {
				info.Error = true
			}
		case "object":
			if v, ok := c.value(); ok && string(v.of(data)) == `"error"` {
				info.Error = true
			}
		case "prompt_token_ids":
			info.promptIDs(&c, m.key, before, pinned)
		case "kv_transfer_params":
			object, start := c.peek() == '{', c.pos
			c.readTokens("remote_prefill_cached_tokens", &cached)
			if object {
				info.KVParams = data[start:c.pos]
			}
		default:
			c.value()
		}
	}
	if !c.finish() {
		return ChunkInfo{}
	}
	if info.CachedTokens < 0 {
		// vLLM's usage has them with --enable-prompt-tokens-details alone, its hand-off always (update_from_output in
		// 0.32's v1/core/sched/scheduler.py).
		info.CachedTokens = cached
	}
	return info
}

// RewriteTail appends to dst an engine's answer, or the data of a stream's event, as the client gets it. If it has a
// usage object and cachedTokens is not negative, it sets usage.prompt_tokens_details.cached_tokens. If nvext is not
// nil, that raw JSON becomes the member nvext. Members of the hand-off are dropped: kv_transfer_params and
// TensorRT-LLM's disaggregated_params with the prompt's ids. All other bytes stay, as does data that is no JSON object.
func RewriteTail(dst, data []byte, cachedTokens int, nvext []byte) []byte {
	e, ok := NewEdit(data)
	if !ok {
		return append(dst, data...)
	}
	e.Delete("kv_transfer_params")
	if bytes.Contains(data, tensorRTKey) {
		e.dropTensorRT()
	}
	if nvext != nil {
		e.Set("nvext", nvext)
	}
	if given, _ := e.value("usage"); cachedTokens >= 0 {
		if usage, ok := NewEdit(given); ok {
			usage.setCached(cachedTokens)
			e.Set("usage", usage.Bytes())
		}
	}
	return e.Append(dst)
}

// tensorRTKey is the member of a choice in which TensorRT-LLM hands over.
var tensorRTKey = []byte(`"disaggregated_params"`)

// dropTensorRT deletes disaggregated_params from the choices and, with one, the ids of the prompt.
func (e *Edit) dropTensorRT() {
	raw, _ := e.value("choices")
	c, out, copied := newCursor(raw, deepest), []byte(nil), 0
	if !c.in('[') {
		return
	}
	for first := true; c.element(first); first = false {
		v, _ := c.value()
		choice, ok := NewEdit(v.of(raw))
		if !ok || !choice.Has("disaggregated_params") {
			continue
		}
		choice.Delete("disaggregated_params")
		out = choice.Append(append(out, raw[copied:v.start]...))
		copied = v.end
	}
	if copied > 0 {
		e.Set("choices", append(out, raw[copied:]...))
		e.Delete("prompt_token_ids")
	}
}

// setCached sets prompt_tokens_details.cached_tokens in a usage object.
func (e *Edit) setCached(tokens int) {
	const details = "prompt_tokens_details"
	given, _ := e.value(details)
	if d, ok := NewEdit(given); ok {
		d.SetInt("cached_tokens", int64(tokens))
		e.Set(details, d.Bytes())
		return
	}
	object := strconv.AppendInt([]byte(`{"cached_tokens":`), int64(tokens), 10)
	e.Set(details, append(object, '}'))
}

func (info *ChunkInfo) choice(c *cursor, pinned []byte) {
	content, ids := false, -1
	info.Choices++
	m := c.members()
	for before := 0; m.next(); before = c.pos {
		switch string(m.name()) {
		case "text":
			content = info.readText(c) || content
		case "delta", "message":
			content = info.message(c) || content
		case "finish_reason":
			if c.peek() != '"' {
				c.value()
			} else if t, ok := c.str(); ok {
				info.Finished++
				reason := c.data[t.start:t.end]
				info.Reason = reasonOf(reason)
				info.Aborted = info.Aborted || string(reason) == "abort" || string(reason) == "error"
			}
		case "token_ids":
			start := c.pos
			if ids = c.count(); ids >= 0 && c.ok() {
				info.ids = span{start, c.pos}
				info.IDs = info.ids.of(c.data)
				info.show(c, m.key, before)
			}
		case "prompt_token_ids":
			info.promptIDs(c, m.key, before, pinned)
		default:
			c.value()
		}
	}
	info.Content = info.Content || content
	switch {
	case ids >= 0:
		info.Tokens += ids
	case content:
		info.Tokens++
	}
}

// message reads a delta or a message and reports whether it has content.
func (info *ChunkInfo) message(c *cursor) bool {
	text, reasoning, toolCall := false, false, false
	m := c.members()
	for m.next() {
		switch string(m.name()) {
		case "content":
			text = info.readText(c) || text
		case "refusal":
			text = c.something() || text
		case "reasoning_content", "reasoning":
			if c.peek() != '"' {
				c.value()
			} else if t, ok := c.str(); ok && t.decoded > 0 && !reasoning { // some engines write it under both names
				reasoning, info.thought = true, t
			}
		case "tool_calls", "function_call":
			toolCall = c.something() || toolCall
		default:
			c.value()
		}
	}
	info.HasText, info.HasReasoning, info.HasToolCall = info.HasText || text, info.HasReasoning || reasoning, info.HasToolCall || toolCall
	return text || reasoning || toolCall
}

// readText reads a text, or a message's content, and reports whether it has one.
func (info *ChunkInfo) readText(c *cursor) bool {
	if c.peek() != '"' {
		return c.something()
	}
	t, ok := c.str()
	if !ok || t.decoded == 0 {
		return false
	}
	info.HasText, info.text = true, t
	return true
}

// promptIDs reads the prompt's ids.
func (info *ChunkInfo) promptIDs(c *cursor, key text, before int, pinned []byte) {
	list := c.peek() == '['
	if len(pinned) > 0 && c.ok() && bytes.HasPrefix(c.data[c.pos:], pinned) {
		info.PromptIDs = c.data[c.pos : c.pos+len(pinned)]
		c.pos += len(pinned)
		info.show(c, key, before)
	} else if v, ok := c.value(); ok && list {
		info.PromptIDs = v.of(c.data)
		info.show(c, key, before)
	}
}

// show notes a member with token ids that was just read. before is the end of the member before it, 0 for none: it is
// deleted with the comma before it or, without one, after it.
func (info *ChunkInfo) show(c *cursor, key text, before int) {
	at := span{before, c.pos}
	if before == 0 {
		at.start = key.start - 1
		if c.peek() == ',' {
			at.end = c.pos + 1
		}
	}
	if info.showed < len(info.shows) {
		info.shows[info.showed] = at
	}
	info.showed++
}

// HideIDs appends data, from which info was read, without its token ids, for a client that did not request them. data
// has one choice at most.
func (info *ChunkInfo) HideIDs(dst, data []byte) []byte {
	from := 0
	for _, at := range info.shows[:min(info.showed, len(info.shows))] {
		if at.start < from { // the comma before it went with a first member
			if at.start = from; at.end < len(data) && data[at.end] == ',' {
				at.end++
			}
		}
		dst = append(dst, data[from:at.start]...)
		from = at.end
	}
	return append(dst, data[from:]...)
}

// Counts reports whether the usage is of the answer so far, in an event of a choice: continuous_usage_stats.
func (info *ChunkInfo) Counts() bool { return info.Usage && info.Choices == 1 && info.usage.start > 0 }

// HideUsage appends data, from which info was read and which Counts, for a client without continuous_usage_stats:
// without the member or, if null, with null in its place.
func (info *ChunkInfo) HideUsage(dst, data []byte, null bool) []byte {
	if null {
		dst = append(append(dst, data[:info.usageValue.start]...), "null"...)
		return append(dst, data[info.usageValue.end:]...)
	}
	return append(append(dst, data[:info.usage.start]...), data[info.usage.end:]...)
}

// AppendText appends the text of the latest choice of data that has some to dst, its escapes resolved. c was read from
// data.
func (info *ChunkInfo) AppendText(dst, data []byte) []byte { return info.text.appendTo(dst, data) }

// AppendThought is AppendText for the reasoning.
func (info *ChunkInfo) AppendThought(dst, data []byte) []byte {
	return info.thought.appendTo(dst, data)
}

// ParseIDs reads a JSON array of token ids, as engines show them, and appends them to dst. It reports false for
// anything else.
func ParseIDs(dst []uint32, raw []byte) ([]uint32, bool) {
	if len(raw) < 2 || raw[0] != '[' {
		return dst, false
	}
	dst, first := shortIDs(dst, raw, 1)
	for i := first; ; i++ {
		for i < len(raw) && raw[i] == ' ' {
			i++
		}
		if i == len(raw)-1 && raw[i] == ']' && (raw[i-1] != ',') {
			return dst, true
		}
		start, v := i, uint64(0)
		for ; i < len(raw) && raw[i]-'0' <= 9 && i-start < 11; i++ {
			v = v*10 + uint64(raw[i]-'0')
		}
		if i == start || i == len(raw) || v > 1<<32-1 || raw[i] != ',' && raw[i] != ']' {
			return dst, false
		}
		dst = append(dst, uint32(v))
		if raw[i] == ']' {
			return dst, i == len(raw)-1
		}
	}
}

// ShowsIDs reports whether HideIDs would change the data.
func (info *ChunkInfo) ShowsIDs() bool { return info.showed > 0 }

// something reads a value and reports whether it is a string, an array or an object that is not empty.
func (c *cursor) something() bool {
	switch b := c.peek(); b {
	case '"':
		t, ok := c.str()
		return ok && t.decoded > 0
	case '[':
		return c.count() > 0
	case '{':
		v, ok := c.value()
		return ok && v.end-v.start > len("{}")
	}
	c.value()
	return false
}

// count reads an array and returns how many elements it has, -1 for another value.
func (c *cursor) count() (n int) {
	if !c.in('[') {
		return -1
	}
	for c.element(n == 0) {
		c.value()
		n++
	}
	return n
}
