package dialect

import (
	"bytes"
	"slices"
	"strings"

	"github.com/tandem-pd/tandem/internal/openai"
)

// Messages converts the body of POST /v1/messages. Its error is an *openai.Error: a 400 with the field's path, or 413
// where the chat is larger than o.MaxBytes.
//
// Of metadata, user_id becomes the chat's user. A chat has no budget of thinking tokens, no place for cache_control and
// no server that runs Anthropic's own tools: they are dropped, unless a call is demanded and no other tool is left.
func Messages(data []byte, o Options) (*Request, error) { return readMessages(data, o, true) }

// MessagesPrompt is Messages for POST /v1/messages/count_tokens: max_tokens may be absent.
func MessagesPrompt(data []byte, o Options) (*Request, error) { return readMessages(data, o, false) }

func readMessages(data []byte, o Options, answered bool) (*Request, error) {
	m := &messages{body: body{o: o}}
	if err := m.read(data, asItIs); err != nil {
		return nil, err
	}
	m.put(`{"model":`, m.Raw(m.Get(0, "model")), `,"messages":[`)
	m.system(m.Get(0, "system"), o.OneSystem)
	m.list()
	m.put("]")
	m.choice(m.tools())
	if answered {
		m.required(0, "max_tokens", 0)
	}
	for _, name := range [...]string{"max_tokens", "temperature", "top_p", "top_k", "cache_salt", "nvext"} {
		m.pass(name, m.Get(0, name))
	}
	m.pass("user", m.Get(m.optional(0, "metadata", '{'), "user_id"))
	f := &messagesForm{stops: m.stops()}
	m.thinking()
	m.format()
	if m.flag(0, "stream") {
		m.put(`,"stream":true,"stream_options":{"include_usage":true}`)
	}
	if m.prefill {
		m.put(`,"add_generation_prompt":false,"continue_final_message":true`)
	}
	m.put("}")
	return m.finish(f)
}

// asItIs reports whether the values of a key pass unread.
func asItIs(key []byte) bool {
	switch string(key) {
	case "input_schema", "schema", "input", "nvext":
		return true
	}
	return false
}

// messages is a body of Messages.
type messages struct {
	body
	prefill bool // the last message is the beginning of the answer
}

// billing begins a text in which Claude Code says who pays. It differs from request to request, so that no prompt would
// be found in a cache.
const billing = "x-anthropic-billing-header"

// texts appends the texts of a content, a string or blocks.
func (m *messages) texts(content openai.Node, separator string) {
	if m.Kind(content) != '"' {
		for b := range m.All(content) {
			m.text(b, separator)
		}
	} else if s := m.Quoted(content); separator != paragraph || !strings.HasPrefix(s, billing) {
		m.add(separator, "", s)
	}
}

// text appends what a block says: a text, a document of texts, or a result of a search.
func (m *messages) text(b openai.Node, separator string) {
	switch m.typed(b) {
	case "text":
		m.texts(m.required(b, "text", '"'), separator)
	case "image", "tool_reference":
	case "search_result":
		m.add(separator, "Title: ", m.Quoted(m.Get(b, "title")))
		m.add(line, "Source: ", m.Quoted(m.Get(b, "source")))
		m.texts(m.Get(b, "content"), line)
	case "document":
		m.add(separator, "Title: ", m.Quoted(m.Get(b, "title")))
		m.add(line, "", m.Quoted(m.Get(b, "context")))
		switch source := m.required(b, "source", '{'); m.typed(source) {
		case "text":
			m.add(line, "", m.Quoted(m.required(source, "data", '"')))
		case "content":
			m.texts(m.Get(source, "content"), line)
		default:
			m.fail(source, "must be text: no other document can be read here")
		}
	default:
		m.unknown(m.Get(b, "type"))
	}
}

// system writes a system message, with those of all messages if it shall hold all. An empty one is left out.
func (m *messages) system(content openai.Node, all bool) {
	before := len(m.out)
	m.say("system")
	m.begin()
	m.texts(content, paragraph)
	if all {
		for n := range m.All(m.Get(0, "messages")) {
			if m.Is(m.Get(n, "role"), "system") {
				m.texts(m.Get(n, "content"), paragraph)
			}
		}
	}
	if len(m.out) == m.start {
		m.out = m.out[:before]
		return
	}
	m.put(`"}`)
}

// list writes the messages.
func (m *messages) list() {
	all := m.required(0, "messages", '[')
	if all != none && m.First(all) == none {
		m.fail(all, "must hold at least one message")
	}
	for n := range m.All(all) {
		role, content := m.Quoted(m.required(n, "role", '"')), m.Get(n, "content")
		if k := m.Kind(content); k != '"' && k != '[' {
			m.refuse(m.Path(n)+".content", "must be a string or an array of blocks")
		}
		m.prefill = false
		switch role {
		case "system":
			if !m.o.OneSystem {
				m.system(content, false)
			}
		case "user":
			m.user(content)
		case "assistant":
			m.assistant(content)
		default:
			m.unknown(m.Get(n, "role"))
		}
		if m.err != nil {
			return
		}
	}
}

// user writes the results of tools as messages of their own, then all else that the user sent.
func (m *messages) user(content openai.Node) {
	results := false
	for b := range m.All(content) {
		if m.typed(b) == "tool_result" {
			m.result(b)
			results = true
		}
	}
	before := len(m.out)
	m.say("user")
	if m.parts(content) == 0 && results {
		m.out = m.out[:before]
		return
	}
	m.put("}")
}

// result writes the messages of one tool_result: its texts, then the tools that it refers to, which templates with a
// search for tools expand.
func (m *messages) result(b openai.Node) {
	end, content := `,"tool_call_id":`+m.Raw(m.required(b, "tool_use_id", '"'))+"}", m.Get(b, "content")
	before, references := len(m.out), 0
	m.say("tool")
	m.put(`"`)
	m.start = len(m.out)
	m.texts(content, line)
	silent := len(m.out) == m.start
	if m.flag(b, "is_error") && !bytes.HasPrefix(m.out[m.start:], []byte("Error")) {
		m.out = slices.Insert(m.out, m.start, []byte("Error: ")...)
	}
	m.put(`"`, end)
	for in := range m.All(content) {
		if m.typed(in) != "tool_reference" {
			continue
		}
		if references++; references == 1 {
			if silent {
				m.out = m.out[:before]
			}
			m.say("tool")
			m.put("[")
		}
		m.item()
		m.put(`{"type":"tool_reference","name":`, m.Raw(m.required(in, "tool_name", '"')), "}")
	}
	if references > 0 {
		m.put("]", end)
	}
}

// parts writes a message's content, a string if there is one text only, and returns the number of its parts. The images
// of results lead: a result itself is text.
func (m *messages) parts(content openai.Node) (n int) {
	if m.Kind(content) == '"' {
		m.put(m.Raw(content))
		return len(m.Quoted(content))
	}
	begin := len(m.out)
	m.put("[")
	for b := range m.All(content) {
		if m.typed(b) != "tool_result" {
			continue
		}
		for in := range m.All(m.Get(b, "content")) {
			if m.typed(in) == "image" {
				m.image(in)
				n++
			}
		}
	}
	const part = `{"type":"text","text":"`
	single := n == 0
	for b := range m.All(content) {
		kind := m.typed(b)
		switch {
		case kind == "image":
			m.image(b)
			single = false
		case kind == "tool_use", kind == "thinking", kind == "redacted_thinking", kind == "tool_reference",
			kind == "server_tool_use", kind == "mcp_tool_use", strings.HasSuffix(kind, "tool_result"):
			continue // it has a place of its own, or none
		default:
			before := len(m.out)
			m.item()
			m.put(part)
			m.start = len(m.out)
			if m.text(b, line); len(m.out) == m.start {
				m.out = m.out[:before]
				continue
			}
			m.put(`"}`)
		}
		n++
	}
	switch {
	case n == 0:
		m.out = append(m.out[:begin], `""`...)
	case n == 1 && single:
		s := m.out[begin+len("[")+len(part)-1 : len(m.out)-1]
		m.out = append(m.out[:begin], s...)
	default:
		m.put("]")
	}
	return n
}

// image writes an image as a part.
func (m *messages) image(b openai.Node) {
	m.item()
	before := len(m.out)
	m.put(`{"type":"image_url","image_url":{"url":"`)
	switch source := m.required(b, "source", '{'); m.typed(source) {
	case "base64":
		m.put("data:", m.Quoted(m.required(source, "media_type", '"')), ";base64,", m.Quoted(m.required(source, "data", '"')))
	case "url":
		m.put(m.Quoted(m.required(source, "url", '"')))
	default:
		m.fail(source, "must have the type base64 or url")
	}
	m.put(`"}}`)
	m.media += len(m.out) - before
}

// assistant writes an assistant's message: its texts, its thoughts, its calls.
func (m *messages) assistant(content openai.Node) {
	m.say("assistant")
	begin := len(m.out)
	n, calls, thinks := m.parts(content), 0, 0
	if n == 0 {
		m.out = append(m.out[:begin], "null"...)
	}
	for b := range m.All(content) {
		if t := m.Quoted(m.Get(b, "thinking")); t != "" && m.typed(b) == "thinking" {
			if thinks++; thinks == 1 {
				m.put(`,"reasoning_content":"`, t)
			} else {
				m.put(line, t)
			}
		}
	}
	if thinks > 0 {
		m.put(`"`)
	}
	for b := range m.All(content) {
		if m.typed(b) != "tool_use" {
			continue
		}
		if calls++; calls == 1 {
			m.put(`,"tool_calls":[`)
		}
		m.item()
		m.put(`{"id":`, m.Raw(m.required(b, "id", '"')), `,"type":"function","function":{"name":`, m.Raw(m.required(b, "name", '"')),
			`,"arguments":`)
		input := m.Raw(m.optional(b, "input", '{'))
		if input == "" {
			input = "{}"
		}
		m.out = openai.AppendQuoted(m.out, input)
		m.put("}}")
	}
	if calls > 0 {
		m.put("]")
	}
	m.put("}")
	m.prefill = n > 0 && calls == 0
}

// tools writes the tools that the client runs, and returns their number.
func (m *messages) tools() (n int) {
	before := len(m.out)
	m.put(`,"tools":[`)
	for t := range m.All(m.optional(0, "tools", '[')) {
		if kind := m.Get(t, "type"); kind != none && !m.Is(kind, "custom") {
			continue
		}
		m.item()
		m.put(`{"type":"function","function":{"name":`, m.Raw(m.required(t, "name", '"')))
		m.pass("description", m.optional(t, "description", '"'))
		if schema := m.optional(t, "input_schema", '{'); schema != none {
			m.pass("parameters", schema)
		} else {
			m.put(`,"parameters":{"type":"object","properties":{}}`)
		}
		m.pass("strict", m.optional(t, "strict", 't'))
		later := m.optional(t, "defer_loading", 't') // vLLM reads it in the function, SGLang beside it
		m.pass("defer_loading", later)
		m.put("}")
		m.pass("defer_loading", later)
		m.put("}")
		n++
	}
	if m.put("]"); n == 0 {
		m.out = m.out[:before]
	}
	return n
}

// choice writes which of n tools may be called.
func (m *messages) choice(n int) {
	of := m.optional(0, "tool_choice", '{')
	if of == none {
		return
	}
	switch kind := m.typed(of); {
	case kind != "auto" && kind != "none" && kind != "any" && kind != "tool":
		m.unknown(m.Get(of, "type"))
	case n > 0 && kind == "tool":
		m.put(`,"tool_choice":{"type":"function","function":{"name":`, m.Raw(m.required(of, "name", '"')), "}}")
	case n > 0 && kind == "any":
		m.put(`,"tool_choice":"required"`)
	case n > 0:
		m.put(`,"tool_choice":"`, kind, `"`)
	case kind == "any" || kind == "tool":
		m.fail(of, "demands a call, and no tool is left that the client runs")
	}
	if m.flag(of, "disable_parallel_tool_use") && n > 0 {
		m.put(`,"parallel_tool_calls":false`)
	}
}

// stops writes the strings that end the answer, and returns them.
func (m *messages) stops() (all []string) {
	list := m.optional(0, "stop_sequences", '[')
	for s := range m.All(list) {
		if all = append(all, m.Text(s)); m.Quoted(s) == "" {
			m.fail(s, "must be a string that is not empty")
		}
	}
	if len(all) > 0 {
		m.pass("stop", list)
	}
	return all
}

// thinking writes whether the template shall let the model think, and how hard.
func (m *messages) thinking() {
	of, kind := m.optional(0, "thinking", '{'), ""
	if of != none {
		kind = m.typed(of)
	}
	switch kind {
	case "enabled", "adaptive":
		m.put(`,"chat_template_kwargs":{"enable_thinking":true,"thinking":true}`)
	case "disabled":
		m.put(`,"chat_template_kwargs":{"enable_thinking":false,"thinking":false}`)
		return
	default:
		if of != none {
			m.unknown(m.Get(of, "type"))
		}
	}
	m.pass("reasoning_effort", m.optional(m.optional(0, "output_config", '{'), "effort", '"'))
}

// format writes the schema that the answer follows.
func (m *messages) format() {
	of := m.optional(m.Get(0, "output_config"), "format", '{')
	if of == none {
		of = m.optional(0, "output_format", '{')
	}
	if of == none {
		return
	}
	if m.typed(of) != "json_schema" {
		m.unknown(m.Get(of, "type"))
	}
	m.put(`,"response_format":{"type":"json_schema","json_schema":{"name":"answer","strict":true`)
	m.pass("schema", m.required(of, "schema", '{'))
	m.put("}}")
}
