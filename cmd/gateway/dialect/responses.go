package dialect

import (
	"cmp"
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"

	"github.com/tandem-pd/tandem/internal/openai"
)

// Responses converts the body of POST /v1/responses. Its error is an *openai.Error: a 400 with the field's path, 501
// for what the API has and is not here, or 413 where the chat is larger than o.MaxBytes.
//
// Nothing is stored: the answer has store false whatever the body requests, and a reference to a stored item is refused.
// The text that a reasoning item or a compaction item returns is in its encrypted_content. It is encoded, not encrypted:
// the client may read all of it.
func Responses(data []byte, o Options) (*Request, error) {
	return readResponses(data, o, &responsesForm{})
}

// Compact converts the body of POST /v1/responses/compact, whose answer is a whole one: the user's messages, and an item
// that holds a summary of the conversation. Its error is as that of Responses.
func Compact(data []byte, o Options) (*Request, error) {
	return readResponses(data, o, &responsesForm{compacts: true, alone: true})
}

// stored are the members that need a memory, or a later request.
var stored = [...]struct {
	name       string
	status     int
	code, what string
}{
	{"previous_response_id", http.StatusBadRequest, "previous_response_not_found",
		"nothing is stored here; send the whole conversation as input"},
	{"conversation", http.StatusBadRequest, "unsupported_parameter", "nothing is stored here; send the whole conversation as input"},
	{"background", http.StatusNotImplemented, "unsupported_parameter", "a response cannot be fetched later; wait for it"},
	{"prompt", http.StatusNotImplemented, "unsupported_parameter", "no prompts are stored here; send instructions and input"},
}

func readResponses(data []byte, o Options, f *responsesForm) (*Request, error) {
	r := &responses{body: body{o: o}, form: f, input: make([]item, 0, 16), names: make([]string, 0, 8)}
	if err := r.read(data, unread); err != nil {
		return nil, err
	}
	for _, m := range &stored {
		if k := r.Kind(r.Get(0, m.name)); k != 'n' && k != 'f' && r.err == nil {
			r.err = &openai.Error{Status: m.status, Param: m.name, Code: m.code, Message: m.name + ": " + m.what}
		}
	}
	r.items()
	r.put(`{"model":`, r.Raw(r.Get(0, "model")))
	r.tools()
	r.put(`,"messages":[`)
	r.list()
	r.put("]")
	if r.partly { // an answer that was cut short goes on, as with vLLM
		r.put(`,"add_generation_prompt":false,"continue_final_message":true`)
	}
	r.choice()
	r.settings()
	stream := r.flag(0, "stream") && !f.alone
	if stream {
		r.put(`,"stream":true,"stream_options":{"include_usage":true}`)
	}
	r.put("}")
	r.nested.Release()
	q, err := r.finish(f)
	if err == nil {
		q.Stream = stream
	}
	return q, err
}

// unread reports whether the values of a key pass as they are, or not at all.
func unread(key []byte) bool {
	switch string(key) {
	case "parameters", "schema", "output_schema", "metadata", "client_metadata", "nvext", "annotations", "logprobs",
		"chat_template_kwargs", "internal_chat_message_metadata_passthrough":
		return true
	}
	return false
}

// responses is a body of Responses.
type responses struct {
	body
	form    *responsesForm
	input   []item
	chosen  openai.Node // tool_choice
	names   []string    // of the tools in the chat
	step    struct{ thoughts, texts, calls []openai.Node }
	images  []openai.Node // which wait for a message of the user's
	partly  bool          // the last message is the beginning of the answer
	nested  openai.Tree   // of scratch
	scratch []byte
}

// item is one of the input's. One without a type is a message.
type item struct {
	openai.Node
	kind, role string // the role of a message
}

// system reports whether an item is a message for the system prompt.
func (i *item) system() bool { return i.role == "system" || i.role == "developer" }

// items reads the input.
func (r *responses) items() {
	input := r.Get(0, "input")
	if k := r.Kind(input); k == '"' {
		r.input = append(r.input, item{input, "string", "user"})
	} else if k != '[' || r.First(input) == none {
		r.refuse("input", "must be a string or an array of items")
	}
	for n := range r.All(input) {
		i := item{n, r.Quoted(r.optional(n, "type", '"')), ""}
		if i.kind == "" || i.kind == "message" {
			i.kind, i.role = "message", r.Quoted(r.required(n, "role", '"'))
		}
		r.input = append(r.input, i)
	}
}

// list writes the messages. Instructions and the system messages that follow them are one: not all templates take more.
func (r *responses) list() {
	before, leading := len(r.out), 0
	r.author("system")
	r.begin()
	r.add(paragraph, "", r.Quoted(r.optional(0, "instructions", '"')))
	for i := range r.input {
		if it := &r.input[i]; it.system() {
			r.words(r.Get(it.Node, "content"), paragraph)
		} else if it.kind != "additional_tools" && !r.alone {
			break
		}
		leading++
	}
	r.end(before, r.start, `"}`)
	for i := range r.input {
		if it := &r.input[i]; r.err == nil && !(it.system() && i < leading) {
			r.place(it)
		}
	}
	r.partly = r.partly && len(r.step.calls) == 0 && !r.form.compacts
	r.assistant()
	r.pictures()
	if r.form.compacts {
		r.author("user")
		r.put(`"`, summarise, `"}`)
	}
	if len(r.out) == before {
		r.refuse("input", "must hold at least one message")
	}
}

// summarise requests what a compaction item holds, and summary leads it in when it comes back.
const (
	summarise = `The conversation is about to continue without its history: only the user's messages and your reply to this one remain. ` +
		`Do not call tools and do not go on with the task. Write down all that is needed to go on: what the user wants and has ruled out, ` +
		`what was decided and why, what was done and found, with the names of files, commands, values and errors that matter, ` +
		`what state the work is in, and what comes next. Write nothing else.`
	summary = `Summary of the conversation until here, written by the assistant before its history was removed:\n\n`
)

// place writes an item of the input, or makes it a part of the assistant's message at hand.
func (r *responses) place(i *item) {
	n := i.Node
	r.partly = false
	switch i.kind {
	case "message":
		if i.role == "assistant" {
			status := r.Quoted(r.Get(n, "status"))
			r.partly = status == "incomplete" || status == "in_progress"
			r.pictures()
			r.step.texts = append(r.step.texts, r.content(n))
			return
		}
	case "reasoning":
		r.pictures()
		r.step.thoughts = append(r.step.thoughts, n)
		return
	case "function_call", "custom_tool_call", "local_shell_call", "shell_call", "apply_patch_call", "tool_search_call":
		if !r.Is(r.Get(n, "execution"), "server") {
			r.pictures()
			r.step.calls = append(r.step.calls, n)
		}
		return
	case "function_call_output", "custom_tool_call_output", "local_shell_call_output", "shell_call_output", "apply_patch_call_output",
		"tool_search_output":
		if !r.Is(r.Get(n, "execution"), "server") {
			r.assistant()
			r.result(i)
		}
		return
	case "additional_tools", "configuration_update", "ghost_snapshot", "other", "web_search_call", "file_search_call",
		"code_interpreter_call", "image_generation_call", "computer_call", "computer_call_output", "mcp_list_tools", "mcp_call",
		"mcp_approval_request", "mcp_approval_response", "program", "program_output":
		return // of tools that run elsewhere, or no part of the prompt
	}
	r.assistant()
	r.pictures()
	switch i.kind {
	case "string":
		r.author("user")
		r.put(r.Raw(n), "}")
		r.keep(r.Raw(n))
	case "message":
		r.message(i)
	case "agent_message": // between Codex's agents
		r.author("user")
		r.begin()
		r.add("", "From ", r.Quoted(r.Get(n, "author")))
		r.words(r.content(n), paragraph)
		r.put(`"}`)
	case "compaction", "compaction_summary", "context_compaction":
		text, ok := r.unseal(r.required(n, "encrypted_content", '"'))
		if !ok {
			r.fail(n, "was not made here: its encrypted_content cannot be read")
		}
		r.author("user")
		r.put(`"`, summary, text, `"}`)
	case "compaction_trigger":
		r.form.compacts = true
	case "item_reference":
		r.fail(n, "refers to an item that is not stored here; set store to false, so that the client sends the items themselves")
	default:
		r.unknown(r.Get(n, "type"))
	}
}

// content returns an item's content, a string or parts.
func (r *responses) content(n openai.Node) openai.Node {
	c := r.Get(n, "content")
	if k := r.Kind(c); k != '"' && k != '[' {
		r.refuse(r.Path(n)+".content", "must be a string or an array of parts")
	}
	return c
}

// words appends the texts of a content to the string at hand. Its images wait.
func (r *responses) words(content openai.Node, separator string) {
	if r.Kind(content) == '"' {
		r.add(separator, "", r.Quoted(content))
	}
	for p := range r.All(content) {
		switch kind := r.typed(p); kind {
		case "input_text", "output_text", "text", "reasoning_text", "summary_text":
			r.add(separator, "", r.Quoted(r.required(p, "text", '"')))
		case "refusal":
			r.add(separator, "", r.Quoted(r.required(p, kind, '"')))
		case "encrypted_content": // for whom it was made
		case "input_image":
			r.images = append(r.images, p)
		default:
			r.unknown(r.Get(p, "type"))
		}
	}
}

// message writes a message of the user's, or of the system's.
func (r *responses) message(i *item) {
	content := r.content(i.Node)
	switch {
	case i.system():
		r.author("system")
		r.begin()
		r.words(content, paragraph)
		r.put(`"}`)
	case i.role == "user":
		r.author("user")
		r.parts(content)
		r.put("}")
		r.keep(r.Raw(content))
	default:
		r.unknown(r.Get(i.Node, "role"))
	}
}

// parts writes the user's content, a string if it is one text only.
func (r *responses) parts(content openai.Node) {
	first := r.First(content)
	if first == none {
		r.put(r.Raw(content))
		return
	}
	if r.typed(first) == "input_text" && r.Next(first) == none {
		r.put(r.Raw(r.required(first, "text", '"')))
		return
	}
	r.put("[")
	for p := range r.All(content) {
		switch r.typed(p) {
		case "input_text", "output_text", "text":
			r.item()
			r.put(`{"type":"text","text":`, r.Raw(r.required(p, "text", '"')), "}")
		case "input_image":
			r.image(p)
		case "input_file":
			r.fail(p, "is a file, which engines cannot read; send its text, or its pages as images")
		default:
			r.unknown(r.Get(p, "type"))
		}
	}
	r.put("]")
}

// image writes an image as a part.
func (r *responses) image(p openai.Node) {
	before := len(r.out)
	r.item()
	if r.Get(p, "image_url") == none && r.Get(p, "file_id") != none {
		r.fail(p, "names a file, and none is stored here; send it as image_url")
	}
	r.put(`{"type":"image_url","image_url":{"url":`, r.Raw(r.required(p, "image_url", '"')))
	if detail := r.optional(p, "detail", '"'); r.Is(detail, "original") { // no engine has it
		r.put(`,"detail":"high"`)
	} else {
		r.pass("detail", detail)
	}
	r.put("}}")
	r.media += len(r.out) - before
}

// pictures writes the images that wait as a message of the user's.
func (r *responses) pictures() {
	if len(r.images) == 0 {
		return
	}
	r.author("user")
	r.put("[")
	for _, p := range r.images {
		r.image(p)
	}
	r.put("]}")
	r.images = r.images[:0]
}

// assistant writes the assistant's message at hand. Thoughts alone are none.
func (r *responses) assistant() {
	s := &r.step
	if len(s.texts)+len(s.calls) > 0 {
		r.author("assistant")
		r.begin()
		for _, n := range s.texts {
			r.words(n, paragraph)
		}
		said := len(r.out)
		r.put(`","reasoning_content":"`)
		r.start = len(r.out)
		for _, n := range s.thoughts {
			r.thought(n)
		}
		r.end(said, r.start, "")
		r.put(`"`)
		if len(s.calls) > 0 {
			r.put(`,"tool_calls":[`)
			for _, n := range s.calls {
				r.call(n)
			}
			r.put("]")
		}
		r.put("}")
	}
	s.thoughts, s.texts, s.calls = s.thoughts[:0], s.texts[:0], s.calls[:0]
}

// thought appends the text of a reasoning item: as it was, or what encrypted_content holds of it, or the summary.
func (r *responses) thought(n openai.Node) {
	before := len(r.out)
	if r.words(r.Get(n, "content"), line); len(r.out) > before {
		return
	}
	if text, ok := r.unseal(r.optional(n, "encrypted_content", '"')); ok {
		r.add(line, "", text)
	} else {
		r.words(r.Get(n, "summary"), paragraph)
	}
}

// seal begins an encrypted_content that was made here: the text as it stands between quotes, in base64.
const seal = "tandem1."

func sealed(quoted string) string { return seal + base64.RawURLEncoding.EncodeToString([]byte(quoted)) }

// unseal returns the text in an encrypted_content, as between quotes. It is the client's, who may have changed it.
func (r *responses) unseal(n openai.Node) (quoted string, ok bool) {
	encoded, ok := strings.CutPrefix(r.Quoted(n), seal)
	var err error
	r.scratch, err = base64.RawURLEncoding.AppendDecode(append(r.scratch[:0], '"'), []byte(encoded))
	r.scratch = append(r.scratch, '"')
	if !ok || err != nil || r.nested.Parse(r.scratch, nil) != nil {
		return "", false
	}
	return r.nested.Quoted(0), true
}

// keep adds a message of the user's to what the answer to Compact repeats.
func (r *responses) keep(content string) {
	if f := r.form; f.alone {
		f.index++
		if strings.HasPrefix(content, `"`) {
			content = `[{"type":"input_text","text":` + content + "}]"
		}
		f.done(`{"type":"message","id":"msg_` + r.o.ID + "_" + strconv.Itoa(f.index) +
			`","status":"completed","role":"user","content":` + content + "}")
	}
}

// members are those of the top level that a chat has too, or that a response repeats: with what stands for an absent one
// there. Strict readers accept no null where OpenAI has none.
var members = [...]struct {
	name     string
	kind     byte // by Tree.Kind, 0 for a number
	chats    bool
	standard string
}{
	{"temperature", 0, true, "1"}, {"top_p", 0, true, "1"}, {"presence_penalty", 0, true, "0"}, {"frequency_penalty", 0, true, "0"},
	{"prompt_cache_key", '"', true, "null"}, {"user", '"', true, "null"}, {"top_k", 0, true, ""}, {"min_p", 0, true, ""},
	{"repetition_penalty", 0, true, ""}, {"seed", 0, true, ""}, {"stop", '[', true, ""}, {"ignore_eos", 't', true, ""},
	{"min_tokens", 0, true, ""}, {"cache_salt", '"', true, ""}, {"chat_template_kwargs", '{', true, ""}, {"nvext", '{', true, ""},
	{"instructions", '"', false, "null"}, {"max_output_tokens", 0, false, "null"}, {"max_tool_calls", 0, false, "null"},
	{"metadata", '{', false, "{}"}, {"parallel_tool_calls", 't', false, "true"}, {"safety_identifier", '"', false, "null"},
	{"service_tier", '"', false, `"default"`}, {"top_logprobs", 0, false, "0"}, {"tools", '[', false, "[]"},
}

var memberIndex = func() map[string]int {
	index := make(map[string]int)
	for i, m := range members {
		index[m.name] = i
	}
	return index
}()

// settings writes all else that a chat has too, and notes what a response repeats.
func (r *responses) settings() {
	var values [len(members)]string
	for n := range r.All(0) {
		i, ok := memberIndex[r.Key(n)]
		if k := r.Kind(n); ok && k != 'n' {
			m := &members[i]
			if k != m.kind && (k != 'f' || m.kind != 't') && (k != '"' || m.kind != '[') { // one stop string is a list, too
				r.fail(n, "must be "+kinds[m.kind])
			}
			if values[i] = r.Raw(n); m.chats {
				r.pass(m.name, n)
			}
		}
	}
	e := make(out, 0, 1024+len(values[memberIndex["tools"]])+len(values[memberIndex["instructions"]]))
	for i := range members {
		if m := &members[i]; m.standard != "" {
			value := cmp.Or(values[i], m.standard)
			if value == `"auto"` { // a service tier
				value = m.standard
			}
			e.put(`,"`, m.name, `":`, value)
		}
	}
	text, reasoning := r.optional(0, "text", '{'), r.optional(0, "reasoning", '{')
	effort, summary := r.optional(reasoning, "effort", '"'), r.optional(reasoning, "summary", '"')
	format := r.optional(text, "format", '{')
	r.form.summary = summary != none
	e.put(`,"tool_choice":`, cmp.Or(r.Raw(r.chosen), `"auto"`), `,"reasoning":{"effort":`, cmp.Or(r.Raw(effort), "null"),
		`,"summary":`, cmp.Or(r.Raw(summary), "null"), `},"text":{"format":`, cmp.Or(r.Raw(format), `{"type":"text"}`),
		`,"verbosity":`, cmp.Or(r.Raw(r.optional(text, "verbosity", '"')), `"medium"`),
		`},"background":false,"previous_response_id":null,"store":false,"truncation":"disabled"`)
	r.form.echo = e
	r.pass("reasoning_effort", effort)
	if format != none && !r.form.compacts {
		r.format(format)
	}
	if most := r.optional(0, "max_output_tokens", 0); most != none {
		if count(&r.Tree, 0, "max_output_tokens") == 0 {
			r.fail(most, "must be an integer of 1 or more")
		}
		r.pass("max_completion_tokens", most)
	}
	top := count(&r.Tree, 0, "top_logprobs")
	r.form.probable = top > 0
	for n := range r.All(r.optional(0, "include", '[')) {
		r.form.probable = r.form.probable || r.Is(n, "message.output_text.logprobs")
		r.form.sealed = r.form.sealed || r.Is(n, "reasoning.encrypted_content")
	}
	if r.form.probable {
		r.put(`,"logprobs":true,"top_logprobs":`, strconv.Itoa(top))
	}
}

// format writes the form that the answer must have.
func (r *responses) format(n openai.Node) {
	switch r.one(n, "type", "text", "json_object", "json_schema") {
	case "json_object":
		r.put(`,"response_format":{"type":"json_object"}`)
	case "json_schema":
		r.put(`,"response_format":{"type":"json_schema","json_schema":{"name":`, r.Raw(r.required(n, "name", '"')))
		r.pass("description", r.optional(n, "description", '"'))
		r.pass("schema", r.required(n, "schema", '{'))
		r.pass("strict", r.optional(n, "strict", 't'))
		r.put("}}")
	}
}
