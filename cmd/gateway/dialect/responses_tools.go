package dialect

import (
	"hash/fnv"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-pd/tandem/internal/openai"
)

// tool is a tool of the client's that is another in the chat. Its strings are JSON as between quotes.
type tool struct {
	kind        string // the type
	name, space string // as the client knows it
	flat        string // as the chat does
	*action            // nil for a function and a custom tool
}

// action is a tool without a name whose calls are items of their own: a function in the chat, whose arguments are a
// member of the item.
type action struct {
	kind, item, prefix string   // the tool's type, its calls' type, and what their ids begin with
	member, fixed      string   // the item's member, and what it begins with
	fields             []string // of the member; the first must be there. None: all that is there
	needs              byte     // the type of the first, by Tree.Kind
	more               string   // other members of the item
	about, parameters  string
}

const object1 = `{"type":"object","properties":{`

var actions = [...]action{
	{
		kind: "local_shell", item: "local_shell_call", prefix: "lsh_", member: "action", fixed: `"type":"exec",`,
		fields: []string{"command", "timeout_ms", "working_directory", "env", "user"}, needs: '[',
		about: `Runs a command on the user's computer and returns its output. The command is a program and its arguments: [\"bash\",\"-lc\",\"ls\"].`,
		parameters: object1 + `"command":{"type":"array","items":{"type":"string"}},"timeout_ms":{"type":"integer"},` +
			`"working_directory":{"type":"string"},"env":{"type":"object","additionalProperties":{"type":"string"}},"user":{"type":"string"}},` +
			`"required":["command"]}`,
	},
	{
		kind: "shell", item: "shell_call", prefix: "sh_", member: "action",
		fields: []string{"commands", "timeout_ms", "max_output_length"}, needs: '[',
		about: `Runs shell commands on the user's computer and returns the output of each.`,
		parameters: object1 + `"commands":{"type":"array","items":{"type":"string"}},"timeout_ms":{"type":"integer"},` +
			`"max_output_length":{"type":"integer"}},"required":["commands"]}`,
	},
	{
		kind: "apply_patch", item: "apply_patch_call", prefix: "apc_", member: "operation", fields: []string{"path", "type", "diff"}, needs: '"',
		about: `Changes one file: creates it or updates it by a diff in the V4A format, or deletes it.`,
		parameters: object1 + `"type":{"type":"string","enum":["create_file","update_file","delete_file"]},"path":{"type":"string"},` +
			`"diff":{"type":"string"}},"required":["type","path"]}`,
	},
	{
		kind: "tool_search", item: "tool_search_call", prefix: "tsc_", member: "arguments", more: `,"execution":"client"`,
		about: `Finds tools.`, parameters: object1 + `"query":{"type":"string"}},"required":["query"]}`,
	},
}

// tools writes the tools that the client runs, also those that items of the input bring.
func (r *responses) tools() {
	r.chosen = r.Get(0, "tool_choice")
	before := len(r.out)
	r.put(`,"tools":[`)
	start := len(r.out)
	for t := range r.All(r.optional(0, "tools", '[')) {
		r.tool(t, "", "")
	}
	for i := range r.input {
		if it := &r.input[i]; it.kind == "additional_tools" || it.kind == "tool_search_output" {
			for t := range r.All(r.optional(it.Node, "tools", '[')) {
				r.tool(t, "", "")
			}
		}
	}
	r.end(before, start, "]")
}

// tool writes a tool of a namespace, empty for none, whose description leads in the tool's. Tools that run at OpenAI
// are left out, as are those that tool_choice does not allow.
func (r *responses) tool(t openai.Node, space, about string) {
	kind := r.typed(t)
	if kind == "namespace" && space == "" {
		space, about = r.Quoted(r.required(t, "name", '"')), r.Quoted(r.optional(t, "description", '"'))
		for in := range r.All(r.required(t, "tools", '[')) {
			r.tool(in, space, about)
			about = ""
		}
		return
	}
	described, parameters := r.Quoted(r.optional(t, "description", '"')), r.Raw(r.optional(t, "parameters", '{'))
	name, of := kind, (*action)(nil)
	if kind == "function" || kind == "custom" {
		name = r.Quoted(r.required(t, "name", '"'))
	} else if of = r.action(kind, t); of == nil {
		return
	} else if of.fields != nil || parameters == "" {
		described, parameters = of.about, of.parameters
	}
	flat := r.flat(space, name)
	if !r.allowed(kind, name) || slices.Contains(r.names, flat) {
		return
	}
	if flat != name || kind != "function" || space != "" {
		r.form.tools = append(r.form.tools, tool{strings.Clone(kind), strings.Clone(name), strings.Clone(space), strings.Clone(flat), of})
	}
	r.names = append(r.names, flat)
	r.item()
	r.put(`{"type":"function","function":{"name":"`, flat, `"`)
	before := len(r.out)
	r.put(`,"description":`)
	r.begin()
	r.add("", "", about)
	r.add(paragraph, "", described)
	if kind == "custom" {
		parameters = r.grammar(r.optional(t, "format", '{'))
	}
	r.end(before, r.start, `"`)
	if parameters == "" {
		parameters = object1 + "}}"
	}
	r.put(`,"parameters":`, parameters)
	if r.flag(t, "strict") {
		r.put(`,"strict":true`)
	}
	r.put("}}")
}

// action returns the action of a tool's type, nil for none: shells in OpenAI's containers and its search for tools too.
func (r *responses) action(kind string, t openai.Node) *action {
	i := slices.IndexFunc(actions[:], func(a action) bool { return a.kind == kind || a.item == kind })
	environment := r.Quoted(r.Get(r.Get(t, "environment"), "type"))
	if i < 0 || strings.HasPrefix(environment, "container") || kind == "tool_search" && !r.Is(r.Get(t, "execution"), "client") {
		return nil
	}
	return &actions[i]
}

// grammar appends to a custom tool's description what its input must be like, and returns its parameters: one string.
// Engines take a regular expression there. They take Lark's grammars for a whole answer only, so it is described.
func (r *responses) grammar(format openai.Node) (parameters string) {
	const input = object1 + `"input":{"type":"string"`
	const end = `}},"required":["input"],"additionalProperties":false}`
	if format == none || r.typed(format) == "text" {
		return input + end
	}
	syntax, definition := r.Quoted(r.required(format, "syntax", '"')), r.Quoted(r.required(format, "definition", '"'))
	r.add(paragraph, "The input must follow this "+syntax+` grammar:\n`, definition)
	if syntax == "regex" {
		return input + `,"pattern":"^(?:` + definition + `)$"` + end
	}
	return input + end
}

// longestName bounds a function's name in a chat, in bytes, as OpenAI does.
const longestName = 64

// flat returns the name in the chat for a tool of a namespace, as between quotes. Codex's namespace functions is the
// one that models know without its name. A tool that is not among the chat's has the name that it would have.
func (r *responses) flat(space, name string) string {
	for i := range r.form.tools {
		if t := &r.form.tools[i]; t.name == name && t.space == space {
			return t.flat
		}
	}
	if bare := space == "" || space == "functions" && !slices.Contains(r.names, name); bare && len(name) <= longestName {
		return name
	}
	flat := strings.TrimSuffix(space, "__") + "__" + name
	if len(flat) > longestName {
		h := fnv.New32a()
		h.Write([]byte(flat))
		cut := longestName - 9
		if odd := strings.IndexFunc(flat, func(c rune) bool { return c == '\\' || c >= 0x80 }); odd >= 0 {
			cut = min(cut, odd) // not within an escape or a character
		}
		flat = flat[:cut] + "_" + strconv.FormatUint(uint64(h.Sum32()), 36)
	}
	return flat
}

// allowed reports whether tool_choice allows a tool.
func (r *responses) allowed(kind, name string) bool {
	if !r.Is(r.Get(r.chosen, "type"), "allowed_tools") {
		return true
	}
	for t := range r.All(r.required(r.chosen, "tools", '[')) {
		if r.typed(t) == kind && (kind == name || r.Is(r.Get(t, "name"), name)) {
			return true
		}
	}
	return false
}

// modes are those of a tool_choice that names no tool.
var modes = [...]string{"auto", "none", "required"}

// choice writes which tools may be called.
func (r *responses) choice() {
	of, name := r.chosen, ""
	mode := r.Quoted(of)
	if r.Kind(of) == '{' {
		if mode = r.typed(of); mode == "allowed_tools" {
			mode = r.one(of, "mode", modes[:]...)
		} else {
			if name = mode; mode == "function" || mode == "custom" {
				name = r.flat(r.Quoted(r.optional(of, "namespace", '"')), r.Quoted(r.required(of, "name", '"')))
			}
			if mode = named; !slices.Contains(r.names, name) {
				r.fail(of, "demands a tool that the client does not run")
			}
		}
	} else if of != none && !slices.Contains(modes[:], mode) {
		r.unknown(of)
	}
	if r.form.compacts {
		mode = "none"
	}
	if r.choose(of, len(r.names), mode, name); len(r.names) > 0 {
		r.pass("parallel_tool_calls", r.optional(0, "parallel_tool_calls", 't'))
	}
}

// callID returns what names an item's call. A local shell's may have an id only.
func (r *responses) callID(n openai.Node) string {
	if id := r.optional(n, "id", '"'); r.Get(n, "call_id") == none && id != none {
		return r.Raw(id)
	}
	return r.Raw(r.required(n, "call_id", '"'))
}

// call writes a call of the history.
func (r *responses) call(n openai.Node) {
	kind, name := r.Quoted(r.Get(n, "type")), ""
	of := r.action(kind, none)
	if of != nil {
		name = r.flat("", of.kind)
	} else {
		name = r.flat(r.Quoted(r.optional(n, "namespace", '"')), r.Quoted(r.required(n, "name", '"')))
	}
	r.item()
	r.put(`{"id":`, r.callID(n), `,"type":"function","function":{"name":"`, name, `","arguments":`)
	switch {
	case of != nil:
		var arguments out
		arguments.members(&r.Tree, r.required(n, of.member, '{'), of)
		r.out = openai.AppendQuoted(r.out, []byte(arguments))
	case kind == "custom_tool_call":
		r.out = openai.AppendQuoted(r.out, `{"input":`+r.Raw(r.required(n, "input", '"'))+"}")
	default:
		arguments := r.required(n, "arguments", '"')
		r.scratch = r.AppendText(r.scratch[:0], arguments)
		if r.nested.Parse(r.scratch, nil) == nil && r.nested.Kind(0) == '{' {
			r.put(r.Raw(arguments))
		} else {
			r.put(`"{}"`) // templates parse it
		}
	}
	r.put("}}")
}

// members writes an action's fields of an object as an object.
func (o *out) members(t *openai.Tree, n openai.Node, of *action) {
	if of.fields == nil {
		o.put(t.Raw(n))
		return
	}
	o.put("{")
	for _, name := range of.fields {
		if v := t.Get(n, name); v != none {
			o.item()
			o.put(`"`, name, `":`, t.Raw(v))
		}
	}
	o.put("}")
}

// result writes the result of a call: its texts, or the JSON that it is. Its images follow the last result of a row.
func (r *responses) result(i *item) {
	n, output := i.Node, r.Get(i.Node, "output")
	r.author("tool")
	r.begin()
	switch i.kind {
	case "tool_search_output":
		for t := range r.All(r.Get(n, "tools")) {
			r.add(line, "", r.Quoted(r.Get(t, "name")))
		}
	case "shell_call_output":
		r.out = openai.AppendQuoted(r.out[:r.start-1], r.Raw(output))
		r.out = r.out[:len(r.out)-1]
	case "apply_patch_call_output":
		r.add("", "", r.Quoted(r.Get(n, "status")))
		fallthrough
	default:
		r.words(output, line)
	}
	r.put(`","tool_call_id":`, r.callID(n), "}")
}

// arguments returns an action's member of an item, if a call's arguments have what it needs.
func (of *action) arguments(arguments []byte) (member string, ok bool) {
	var t openai.Tree
	var o out
	if t.Parse(arguments, nil) != nil || t.Kind(0) != '{' || of.fields != nil && t.Kind(t.Get(0, of.fields[0])) != of.needs {
		return "", false
	}
	o.members(&t, 0, of)
	member = "{" + of.fixed + string(o[1:])
	if of.fixed != "" && t.Get(0, "env") == none { // strict readers need it
		member = strings.TrimSuffix(member, "}") + `,"env":{}}`
	}
	return member, true
}

// unquoted returns the text of JSON as it stands between quotes.
func unquoted(s string) []byte {
	var t openai.Tree
	if t.Parse([]byte(`"`+s+`"`), nil) != nil {
		return nil
	}
	return t.AppendText(nil, 0)
}

// customInput takes the input of a custom tool out of a call's arguments, {"input":"…"}, as they come. Other arguments
// are the input as they are.
type customInput struct {
	buf         []byte // what has come and is not yet read
	begun, over bool   // buf is a part of the string; the string has ended
}

var beforeInput = regexp.MustCompile(`^\s*\{\s*"input"\s*:\s*"`)

// read takes more of the arguments, and returns what of the input is there, as between quotes.
func (c *customInput) read(p []byte) string {
	c.buf = append(c.buf, p...)
	if !c.begun {
		before := beforeInput.Find(c.buf)
		c.begun, c.buf = before != nil, c.buf[len(before):]
	}
	if !c.begun || c.over {
		return ""
	}
	var o out
	n := 0
	for n < len(c.buf) && !c.over {
		length := escape(c.buf[n:])
		if n+length > len(c.buf) {
			break
		}
		p := string(c.buf[n : n+length])
		switch c.over = p == `"`; {
		case c.over:
		case p < " " || length > 1 && unquoted(p) == nil: // no JSON: as it is
			quoted := string(openai.AppendQuoted(nil, p[:1]))
			length, p = 1, quoted[1:len(quoted)-1]
			fallthrough
		default:
			o.put(p)
		}
		n += length
	}
	c.buf = c.buf[n:]
	return string(o)
}

// escape returns the length of a string's first character: that of its escape, of two for a pair of surrogates.
func escape(p []byte) int {
	switch {
	case p[0] != '\\':
		return 1
	case len(p) > 1 && p[1] != 'u':
		return len(`\n`)
	case len(p) > 3 && p[2]|' ' == 'd' && strings.IndexByte("89abAB", p[3]) >= 0:
		return len(`\ud83d\ude00`)
	}
	return len(`\u00e9`)
}

// end returns the input of arguments that were not as they should be.
func (c *customInput) end() string {
	if c.begun || len(c.buf) == 0 {
		return ""
	}
	var t openai.Tree
	if t.Parse(c.buf, nil) == nil && t.Quoted(t.Get(0, "input")) != "" {
		return t.Quoted(t.Get(0, "input"))
	}
	quoted := openai.AppendQuoted(nil, c.buf)
	return string(quoted[1 : len(quoted)-1])
}
