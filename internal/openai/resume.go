package openai

import (
	"bytes"
	"slices"
	"strconv"
)

// Resume is the state so far of an answer that another worker continues.
type Resume struct {
	// Prompt is the prompt's tokens followed by the generated ones, and Generated the number of the latter.
	Prompt    []uint32
	Generated int
	// OwnStop: the gateway looks for the stop strings itself, since one may have begun before the cut.
	OwnStop bool
}

// completionTokens is the default max_tokens of a completion (vLLM's and SGLang's CompletionRequest).
const completionTokens = 16

// Left returns how many more tokens an answer with so many generated ones may have, below 0 for as many as fit in the
// context.
func (r *Request) Left(generated int) int {
	switch {
	case r.MaxTokens > 0:
		return max(0, r.MaxTokens-generated)
	case r.Endpoint == Completions && !r.Has("max_tokens"):
		return max(0, completionTokens-generated)
	}
	return -1
}

// Resume makes e, an edit of r's body, request the rest of an answer. A completion's prompt becomes the tokens; the
// caller passes a chat's in the engine's form.
func (r *Request) Resume(e *Edit, so Resume) {
	if r.Endpoint == Completions {
		e.SetIDs("prompt", so.Prompt)
	}
	if left := r.Left(so.Generated); left >= 0 {
		name := "max_tokens"
		if r.Endpoint == Chat && r.Has("max_completion_tokens") {
			e.SetInt("max_completion_tokens", int64(left))
		}
		if r.Endpoint == Completions || r.Has(name) {
			e.SetInt(name, int64(left))
		}
	}
	if r.MinTokens > 0 {
		e.SetInt("min_tokens", int64(max(0, r.MinTokens-so.Generated)))
	}
	e.Delete("truncate_prompt_tokens") // it was cut already
	e.Delete("suffix")                 // of the prompt's text, which SGLang puts into a template; the tokens have it
	if so.OwnStop {
		e.Delete("stop")
		e.Delete("include_stop_str_in_output")
	}
}

// Unresumable returns in one word why another engine of the kind cannot continue the request's answer from its
// generated tokens, or empty: see parameters, and clients.md §4.2. exact demands the same tokens as without a failure.
func (r *Request) Unresumable(engine string, exact bool) string {
	switch {
	case r.HasMedia():
		return "media"
	case r.PromptOnly:
		return "max_tokens"
	case r.ToolRequired:
		return "grammar"
	}
	greedy := false
	for i := range r.members {
		m := &r.members[i]
		v := m.value.of(r.Raw)
		p := parameterOf[string(m.name)]
		switch {
		case p == nil:
		case p.name == "temperature":
			t, ok := laxFloat(v)
			greedy = ok && t < 1e-5 // as vLLM has it
		case p.name == "top_k":
			k, _ := laxInt(v)
			greedy = greedy || k == 1
		case p.name == "tool_choice" && v[0] != '{':
		case p.name == "response_format" && isText(v):
		case p.binds(engine, v):
			return p.reason
		}
	}
	if exact && !greedy {
		return "sampling"
	}
	return ""
}

// isText reports whether a response_format demands no form.
func isText(v []byte) bool {
	e, ok := NewEdit(v)
	return ok && e.plain("type") == "text"
}

// plain returns a member's value, a string without its quotes; empty without the member.
func (e *Edit) plain(key string) string {
	v, _ := e.value(key)
	return string(bytes.Trim(v, `"`))
}

// Envelope is the part that all chunks of one stream share: their id, time, model and kind, as members of an object
// without its braces. [AppendEnvelope] makes it.
type Envelope []byte

// enveloped reports whether a chunk's member is one of the envelope's.
func enveloped(name []byte) bool {
	switch string(name) {
	case "id", "object", "created", "model":
		return true
	}
	return false
}

// AppendEnvelope appends to own, which is empty, the envelope of the stream whose chunk data is, that info was read
// from.
func AppendEnvelope(own Envelope, data []byte, info *ChunkInfo) Envelope {
	c := newCursor(data, deepest)
	own = slices.Grow(own, 160)
	m := c.members()
	for m.next() {
		start, in := m.key.start-1, enveloped(m.name())
		if ids := info.PromptIDs; len(ids) > 0 && &ids[0] == &data[c.pos] { // a long one is not read again
			c.pos += len(ids)
			continue
		}
		v, ok := c.value()
		if !in || !ok || v.end-start > 4<<10 { // no engine's name or time
			continue
		}
		if len(own) > 0 {
			own = append(own, ',')
		}
		own = append(own, data[start:v.end]...)
	}
	return own
}

// Rest is how a chunk of a resumed answer differs from its engine's, which has only the rest of the answer.
type Rest struct {
	// Generated is how many tokens the client had before: the engine counts them as the prompt's.
	Generated int
	// HideIDs: the client did not request token ids. The prompt's were sent before in any case.
	HideIDs bool
	// Reasoned is how many tokens of the whole answer so far are reasoning.
	Reasoned int
	// Text and Thought replace the choice's text and reasoning, and IDs its token ids, unless nil.
	Text, Thought, IDs []byte
	// Stop is the stop string that ends the answer here, or empty. SGLang: named as SGLang does. Dropped is how many of
	// the engine's tokens follow it.
	Stop    string
	SGLang  bool
	Dropped int
}

// AppendRest appends the data of a chunk of a resumed answer in the envelope of the answer's first engine: without a
// role, which was sent, and with the usage of the whole. It appends nothing if data is no object.
func (v Envelope) AppendRest(dst, data []byte, rest Rest) []byte {
	e, ok := NewEdit(data)
	if !ok {
		return dst
	}
	dst = append(append(dst, '{'), v...)
	for i := range e.members {
		m := &e.members[i]
		value := m.value.of(data)
		switch string(m.name) {
		case "choices":
			dst = append(dst, `,"choices":`...)
			dst = rest.appendChoices(dst, value)
		case "usage":
			dst = append(dst, `,"usage":`...)
			dst = rest.appendUsage(dst, value)
		case "prompt_token_ids", "kv_transfer_params", "nvext":
		default: // such as vLLM's system_fingerprint, which its last chunk alone has
			if !enveloped(m.name) {
				dst = append(append(dst, ','), data[m.start:m.value.end]...)
			}
		}
	}
	return append(dst, '}')
}

// AppendEnd appends the data of a chunk that ends the only choice of an answer, in place of its engine's.
func (v Envelope) AppendEnd(dst []byte, to Endpoint, reason string) []byte {
	empty := `"text":""`
	if to == Chat {
		empty = `"delta":{}`
	}
	dst = append(append(dst, '{'), v...)
	dst = append(dst, `,"choices":[{"index":0,`+empty+`,"logprobs":null,"finish_reason":`...)
	return append(appendQuoted(dst, reason), `}]}`...)
}

// AppendUsage appends the data of the chunk with the usage of a whole answer.
func (v Envelope) AppendUsage(dst []byte, prompt, generated int) []byte {
	dst = append(append(dst, '{'), v...)
	dst = append(dst, `,"choices":[],"usage":{"prompt_tokens":`...)
	dst = strconv.AppendInt(dst, int64(prompt), 10)
	dst = strconv.AppendInt(append(dst, `,"total_tokens":`...), int64(prompt+generated), 10)
	dst = strconv.AppendInt(append(dst, `,"completion_tokens":`...), int64(generated), 10)
	return append(dst, `}}`...)
}

func (rest *Rest) appendChoices(dst, raw []byte) []byte {
	c := newCursor(raw, deepest)
	if c.peek() != '[' || !c.in('[') || !c.element(true) {
		return append(dst, raw...)
	}
	v, _ := c.value()
	e, ok := NewEdit(v.of(raw))
	if !ok {
		return append(dst, raw...)
	}
	e.Delete("prompt_token_ids")
	switch {
	case rest.HideIDs:
		e.Delete("token_ids")
	case rest.IDs != nil:
		e.Set("token_ids", rest.IDs)
	}
	for i := range e.members {
		m := &e.members[i]
		switch string(m.name) {
		case "delta":
			delta, ok := NewEdit(m.value.of(e.raw))
			if !ok {
				continue
			}
			delta.Delete("role")
			for _, name := range [...]string{"reasoning", "reasoning_content"} {
				if rest.Thought != nil && delta.Has(name) {
					delta.SetString(name, string(rest.Thought))
				}
			}
			if rest.Text != nil {
				delta.SetString("content", string(rest.Text))
			}
			e.Set("delta", delta.Bytes())
		case "text":
			if rest.Text != nil {
				e.SetString("text", string(rest.Text))
			}
		}
	}
	if rest.Stop != "" {
		e.SetString("finish_reason", "stop")
		name := "stop_reason"
		if rest.SGLang {
			name = "matched_stop"
		}
		e.SetString(name, rest.Stop)
	}
	return append(e.Append(append(dst, '[')), ']')
}

// appendUsage counts the tokens that the engine takes for the prompt's as the answer's, in all that counts either.
func (rest *Rest) appendUsage(dst, raw []byte) []byte {
	e, ok := NewEdit(raw)
	if !ok {
		return append(dst, raw...)
	}
	prompt := 0
	for i := range e.members {
		m := &e.members[i]
		n, err := strconv.Atoi(string(m.value.of(raw)))
		switch name := string(m.name); {
		case err != nil:
		case name == "prompt_tokens":
			prompt = max(0, n-rest.Generated)
			e.SetInt(name, int64(prompt))
		case name == "completion_tokens":
			e.SetInt(name, int64(n+rest.Generated-rest.Dropped))
		case name == "total_tokens":
			e.SetInt(name, int64(n-rest.Dropped))
		case name == "reasoning_tokens": // SGLang's
			e.SetInt(name, int64(rest.Reasoned))
		}
	}
	e.bound("prompt_tokens_details", "cached_tokens", func(n int) int { return min(n, prompt) })
	e.bound("completion_tokens_details", "reasoning_tokens", func(int) int { return rest.Reasoned })
	return e.Append(dst)
}

// bound changes a number within one of the object's members, which is an object, where it is there.
func (e *Edit) bound(object, name string, change func(int) int) {
	for i := range e.members {
		m := &e.members[i]
		if string(m.name) != object {
			continue
		}
		within, ok := NewEdit(m.value.of(e.raw))
		if !ok {
			continue
		}
		if n, err := strconv.Atoi(within.plain(name)); err == nil {
			within.SetInt(name, int64(change(n)))
			e.Set(object, within.Bytes())
		}
	}
}
