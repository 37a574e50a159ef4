package openai

import (
	"bytes"
	"strconv"
	"unicode/utf8"
)

// ChunkInfo is what the data of a stream's event, or a whole answer, holds, for OpenAI's shape as vLLM and SGLang
// write it. Its slices are parts of the data.
type ChunkInfo struct {
	// Valid: the data is a JSON object. All else is zero where it is not.
	Valid bool
	// Content: a choice has text, reasoning, a refusal or a tool call.
	Content bool
	// Tokens is how many new tokens it brings: those in choices[].token_ids where engines were asked for them
	// (return_token_ids), else 1 for each choice with content.
	Tokens int
	// Finished is how many choices end here.
	Finished int
	// Aborted: one of them ends because the engine gave it up (abort, error).
	Aborted bool
	// Usage: there is a usage object. CachedTokens is −1 where it has none.
	Usage                                        bool
	PromptTokens, CompletionTokens, CachedTokens int
	// Error: the engine reports an error where an answer should be, in vLLM's form, {"error":…}, or the older
	// {"object":"error",…}.
	Error bool
	// PromptIDs is the array prompt_token_ids, nil where there is none: the prompt as the engine tokenized it.
	PromptIDs []byte
	// KVParams is the object kv_transfer_params, nil where there is none.
	KVParams []byte
}

// Inspect reads an event's data or a whole answer without allocating. Anything that is not a JSON object, [DONE] too,
// gives a ChunkInfo that is not Valid.
func Inspect(data []byte) ChunkInfo {
	c := newCursor(data, deepest)
	if c.peek() != '{' {
		return ChunkInfo{}
	}
	info := ChunkInfo{Valid: true, CachedTokens: -1}
	m := c.members()
	for m.next() {
		switch string(m.name()) {
		case "choices":
			if c.in('[') {
				for first := true; c.element(first); first = false {
					info.choice(&c)
				}
			}
		case "usage":
			info.readUsage(&c)
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
			list := c.peek() == '['
			if v, ok := c.value(); ok && list {
				info.PromptIDs = v.of(data)
			}
		case "kv_transfer_params":
			object := c.peek() == '{'
			if v, ok := c.value(); ok && object {
				info.KVParams = v.of(data)
			}
		default:
			c.value()
		}
	}
	if !c.finish() {
		return ChunkInfo{}
	}
	return info
}

// KVParams returns the object kv_transfer_params of a prefill worker's answer, as a part of data, and whether there
// is one that can be put into another body as it is.
func KVParams(data []byte) ([]byte, bool) {
	kv := Inspect(data).KVParams
	return kv, kv != nil && utf8.Valid(kv)
}

// RewriteTail appends to dst an engine's answer, or the data of a stream's event, as the client shall see it. Where
// it has a usage object and cachedTokens is not negative, usage.prompt_tokens_details.cached_tokens becomes
// cachedTokens. Where nvext is not nil, that raw JSON becomes the member nvext. What steers a hand-off is dropped:
// kv_transfer_params and, of TensorRT-LLM, the choices' disaggregated_params with the prompt's ids. All other bytes
// stay; data that is no JSON object stays whole.
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
	if cachedTokens >= 0 {
		for _, m := range e.members {
			if string(m.name) != "usage" {
				continue
			}
			if usage, ok := NewEdit(m.value.of(data)); ok {
				usage.setCached(cachedTokens)
				e.Set("usage", usage.Bytes())
			}
		}
	}
	return e.Append(dst)
}

// tensorRTKey is the member of a choice in which TensorRT-LLM hands over.
var tensorRTKey = []byte(`"disaggregated_params"`)

// dropTensorRT takes disaggregated_params out of the choices and, where one had it, the ids of the prompt that
// come with it.
func (e *Edit) dropTensorRT() {
	for _, m := range e.members {
		if string(m.name) != "choices" {
			continue
		}
		raw := m.value.of(e.raw)
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
}

// setCached sets prompt_tokens_details.cached_tokens in a usage object.
func (e *Edit) setCached(tokens int) {
	const details, cached = "prompt_tokens_details", "cached_tokens"
	for _, m := range e.members {
		if string(m.name) != details {
			continue
		}
		if d, ok := NewEdit(m.value.of(e.raw)); ok {
			d.SetInt(cached, int64(tokens))
			e.Set(details, d.Bytes())
			return
		}
	}
	object := strconv.AppendInt([]byte(`{"cached_tokens":`), int64(tokens), 10)
	e.Set(details, append(object, '}'))
}

// choice reads one choice.
func (info *ChunkInfo) choice(c *cursor) {
	content, ids := false, -1
	m := c.members()
	for m.next() {
		switch string(m.name()) {
		case "text":
			content = c.something() || content
		case "delta", "message":
			content = c.message() || content
		case "finish_reason":
			if c.peek() != '"' {
				c.value()
			} else if t, ok := c.str(); ok {
				info.Finished++
				reason := string(c.data[t.start:t.end])
				info.Aborted = info.Aborted || reason == "abort" || reason == "error"
			}
		case "token_ids":
			ids = c.count()
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
func (c *cursor) message() (content bool) {
	m := c.members()
	for m.next() {
		switch string(m.name()) {
		case "content", "reasoning_content", "reasoning", "refusal", "tool_calls", "function_call":
			content = c.something() || content
		default:
			c.value()
		}
	}
	return content
}

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

// readUsage reads the usage, which is null in most chunks.
func (info *ChunkInfo) readUsage(c *cursor) {
	info.Usage = info.Usage || c.peek() == '{'
	m := c.members()
	for m.next() {
		switch string(m.name()) {
		case "prompt_tokens":
			c.tokens(&info.PromptTokens)
		case "completion_tokens":
			c.tokens(&info.CompletionTokens)
		case "prompt_tokens_details":
			m := c.members()
			for m.next() {
				if string(m.name()) == "cached_tokens" {
					c.tokens(&info.CachedTokens)
				} else {
					c.value()
				}
			}
		default:
			c.value()
		}
	}
}

// tokens reads a value and, where it is a whole number of tokens that is not absurd, stores it.
func (c *cursor) tokens(dst *int) {
	v, ok := c.value()
	if !ok || v.end-v.start > 10 {
		return
	}
	n := 0
	for _, b := range v.of(c.data) {
		if b-'0' > 9 {
			return
		}
		n = n*10 + int(b-'0')
	}
	*dst = n
}
