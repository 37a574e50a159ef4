package dialect

import (
	"bytes"
	"cmp"
	"iter"
	"slices"
	"strconv"
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
	m.system(m.Get(0, "system"), m.alone)
	m.list()
	m.put("]")
	m.choice(m.tools())
	if answered {
		m.required(0, "max_tokens", 0)
	}
	for _, name := range [...]string{"max_tokens", "temperature", "top_p", "top_k", "cache_salt", "nvext"} {
		m.pass(name, m.Get(0, name))
	}
	m.pass("user", m.optional(m.optional(0, "metadata", '{'), "user_id", '"'))
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
	results, thoughts, calls, others []openai.Node // the blocks of the message at hand

	prefill bool // the last message is the beginning of the answer
}

// billing begins a text in which Claude Code attributes the request's cost. It differs in each request, so no prompt with
// it would be found in a cache.
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

// text appends the text of a block: a text, a document of texts, or a result of a search.
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
		source := m.required(b, "source", '{')
		if m.one(source, "type", "text", "content") == "text" {
			m.add(line, "", m.Quoted(m.required(source, "data", '"')))
		}
		m.texts(m.Get(source, "content"), line)
	default:
		m.unknown(m.Get(b, "type"))
	}
}

// each yields the blocks of a kind.
func (m *messages) each(content openai.Node, kind string) iter.Seq[openai.Node] {
	return func(yield func(openai.Node) bool) {
		for b := range m.All(content) {
			if m.typed(b) == kind && !yield(b) {
				return
			}
		}
	}
}

// system writes a system message, with those of all messages if it shall hold all. An empty one is left out.
func (m *messages) system(content openai.Node, all bool) {
	before := len(m.out)
	m.author("system")
	m.begin()
	m.texts(content, paragraph)
	for n := range m.All(m.Get(0, "messages")) {
		if all && m.Is(m.Get(n, "role"), "system") {
			m.texts(m.Get(n, "content"), paragraph)
		}
	}
	m.end(before, m.start, `"}`)
}

// list writes the messages.
func (m *messages) list() {
	all := m.required(0, "messages", '[')
	if all != none && m.First(all) == none {
		m.fail(all, "must hold at least one message")
	}
	for n := range m.All(all) {
		role, content := m.one(n, "role", "user", "assistant", "system"), m.Get(n, "content")
		if k := m.Kind(content); k != '"' && k != '[' {
			m.refuse(m.Path(n)+".content", "must be a string or an array of blocks")
		}
		m.sort(content)
		m.prefill = false
		switch role {
		case "system":
			if !m.alone {
				m.system(content, false)
			}
		case "user":
			m.user(content)
		case "assistant":
			m.assistant(content)
		}
		if m.err != nil {
			return
		}
	}
}

// sort reads the kinds of a message's blocks. Those of servers' tools and the like have no place in a chat.
func (m *messages) sort(content openai.Node) {
	m.results, m.thoughts, m.calls, m.others = m.results[:0], m.thoughts[:0], m.calls[:0], m.others[:0]
	for b := range m.All(content) {
		switch kind := m.typed(b); kind {
		case "tool_result":
			m.results = append(m.results, b)
		case "thinking":
			m.thoughts = append(m.thoughts, b)
		case "tool_use":
			m.calls = append(m.calls, b)
		case "redacted_thinking", "tool_reference", "server_tool_use", "mcp_tool_use":
		default:
			if !strings.HasSuffix(kind, "tool_result") {
				m.others = append(m.others, b)
			}
		}
	}
}

// user writes the results of tools as messages of their own, then all else that the user sent.
func (m *messages) user(content openai.Node) {
	for _, b := range m.results {
		m.result(b)
	}
	before := len(m.out)
	m.author("user")
	if n := m.parts(content, `""`); n > 0 || len(m.results) == 0 {
		m.put("}")
	} else {
		m.out = m.out[:before]
	}
}

// result writes the messages of one tool_result: its texts, then the tools that it refers to, which templates with a
// search for tools expand.
func (m *messages) result(b openai.Node) {
	content, before := m.Get(b, "content"), len(m.out)
	end, references := `,"tool_call_id":`+m.Raw(m.required(b, "tool_use_id", '"'))+"}", slices.Collect(m.each(content, "tool_reference"))
	m.author("tool")
	m.begin()
	m.texts(content, line)
	if m.flag(b, "is_error") && !bytes.HasPrefix(m.out[m.start:], []byte("Error")) {
		m.out = slices.Insert(m.out, m.start, []byte("Error: ")...)
	}
	if len(references) == 0 {
		m.put(`"`, end)
		return
	}
	m.end(before, m.start, `"`+end)
	m.author("tool")
	m.put("[")
	for _, in := range references {
		m.item()
		m.put(`{"type":"tool_reference","name":`, m.Raw(m.required(in, "tool_name", '"')), "}")
	}
	m.put("]", end)
}

// parts writes a message's content and returns the number of its parts. It is a string if there is one text only, and
// silence if there is none. The images of results lead: a result itself is text.
func (m *messages) parts(content openai.Node, silence string) (n int) {
	if m.Kind(content) == '"' {
		m.put(m.Raw(content))
		return len(m.Quoted(content))
	}
	begin := len(m.out)
	m.put("[")
	for _, b := range m.results {
		for in := range m.each(m.Get(b, "content"), "image") {
			m.image(in)
			n++
		}
	}
	const part = `{"type":"text","text":"`
	single := n == 0
	for _, b := range m.others {
		if m.Is(m.Get(b, "type"), "image") {
			m.image(b)
			single = false
			n++
			continue
		}
		before := len(m.out)
		m.item()
		m.put(part)
		m.start = len(m.out)
		if m.text(b, line); len(m.out) == m.start {
			m.out = m.out[:before]
			continue
		}
		m.put(`"}`)
		n++
	}
	switch {
	case n == 0:
		m.out = append(m.out[:begin], silence...)
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
	if source := m.required(b, "source", '{'); m.one(source, "type", "base64", "url") == "url" {
		m.put(m.Quoted(m.required(source, "url", '"')))
	} else {
		m.put("data:", m.Quoted(m.required(source, "media_type", '"')), ";base64,", m.Quoted(m.required(source, "data", '"')))
	}
	m.put(`"}}`)
	m.media += len(m.out) - before
}

// assistant writes an assistant's message: its texts, its thoughts, its calls.
func (m *messages) assistant(content openai.Node) {
	silence := `""`
	if len(m.calls) > 0 {
		silence = "null"
	}
	m.author("assistant")
	m.prefill = m.parts(content, silence) > 0 && len(m.calls) == 0
	before := len(m.out)
	m.put(`,"reasoning_content":`)
	m.begin()
	for _, b := range m.thoughts {
		m.add(line, "", m.Quoted(m.Get(b, "thinking")))
	}
	m.end(before, m.start, `"`)
	before = len(m.out)
	m.put(`,"tool_calls":[`)
	begin := len(m.out)
	for _, b := range m.calls {
		m.item()
		m.put(`{"id":`, m.Raw(m.required(b, "id", '"')), `,"type":"function","function":{"name":`, m.Raw(m.required(b, "name", '"')),
			`,"arguments":`)
		m.out = append(openai.AppendQuoted(m.out, cmp.Or(m.Raw(m.optional(b, "input", '{')), "{}")), "}}"...)
	}
	m.end(before, begin, "]")
	m.put("}")
}

// tools writes the tools that the client runs, and returns their number.
func (m *messages) tools() (n int) {
	before := len(m.out)
	m.put(`,"tools":[`)
	begin := len(m.out)
	for t := range m.All(m.optional(0, "tools", '[')) {
		if kind := m.Get(t, "type"); kind != none && !m.Is(kind, "custom") {
			continue
		}
		n++
		m.item()
		m.put(`{"type":"function","function":{"name":`, m.Raw(m.required(t, "name", '"')))
		m.pass("description", m.optional(t, "description", '"'))
		m.put(`,"parameters":`, cmp.Or(m.Raw(m.optional(t, "input_schema", '{')), `{"type":"object","properties":{}}`))
		m.pass("strict", m.optional(t, "strict", 't'))
		later := m.optional(t, "defer_loading", 't') // vLLM reads it in the function, SGLang next to it
		m.pass("defer_loading", later)
		m.put("}")
		m.pass("defer_loading", later)
		m.put("}")
	}
	m.end(before, begin, "]")
	return n
}

// choice writes which of n tools may be called.
func (m *messages) choice(n int) {
	of := m.optional(0, "tool_choice", '{')
	if of == none {
		return
	}
	mode, name := m.one(of, "type", "auto", "any", "tool", "none"), ""
	switch mode {
	case "any":
		mode = "required"
	case "tool":
		mode, name = named, m.Quoted(m.required(of, "name", '"'))
	}
	m.choose(of, n, mode, name)
	if n > 0 && m.flag(of, "disable_parallel_tool_use") {
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
	kind := ""
	if of := m.optional(0, "thinking", '{'); of != none {
		kind = m.one(of, "type", "enabled", "adaptive", "disabled")
		on := strconv.FormatBool(kind != "disabled")
		m.put(`,"chat_template_kwargs":{"enable_thinking":`, on, `,"thinking":`, on, "}")
	}
	if kind != "disabled" {
		m.pass("reasoning_effort", m.optional(m.optional(0, "output_config", '{'), "effort", '"'))
	}
}

// format writes the schema that the answer follows.
func (m *messages) format() {
	of := m.optional(m.Get(0, "output_config"), "format", '{')
	if of == none { // its older name
		of = m.optional(0, "output_format", '{')
	}
	if of != none {
		m.one(of, "type", "json_schema")
		m.put(`,"response_format":{"type":"json_schema","json_schema":{"name":"answer","strict":true`)
		m.pass("schema", m.required(of, "schema", '{'))
		m.put("}}")
	}
}
