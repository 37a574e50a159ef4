package dialect

import (
	"cmp"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-pd/tandem/internal/openai"
)

const none = openai.NoNode

// out is JSON in the making.
type out []byte

func (o *out) put(parts ...string) {
	for _, p := range parts {
		*o = append(*o, p...)
	}
}

// int appends a number.
func (o *out) int(n int) { *o = strconv.AppendInt(*o, int64(n), 10) }

// item appends a comma, unless a list or an object has just begun.
func (o *out) item() {
	if last := (*o)[len(*o)-1]; last != '[' && last != '{' && last != ':' {
		*o = append(*o, ',')
	}
}

// body is a client's body as it becomes a chat's. Its readers accept absent values. The first error counts; a
// conversion may go on after it.
type body struct {
	openai.Tree
	out
	o     Options
	model string // the name asked for
	alone bool   // its template takes one system message
	start int    // where the string at hand begins in out
	media int    // bytes of images and the like in out
	err   *openai.Error
}

// read parses data. Values whose key is opaque are not taken apart.
func (b *body) read(data []byte, opaque func(key []byte) bool) error {
	if err := b.Parse(data, opaque); err != nil {
		return err
	}
	if b.Kind(0) != '{' {
		return openai.BadRequest("", "the body must be a JSON object")
	}
	b.out = make(out, 0, len(data)+len(data)/8+512)
	b.model = b.Text(b.required(0, "model", '"'))
	b.alone = b.o.OneSystem != nil && b.o.OneSystem(b.model)
	return nil
}

// fail refuses a value for what is wrong with it: "must be a string".
func (b *body) fail(n openai.Node, what string) { b.refuse(b.Path(n), what) }

func (b *body) refuse(path, what string) {
	if b.err == nil {
		b.err = openai.BadRequest(path, "%s %s", path, what)
	}
}

// unknown refuses a value that must be one of a few strings, and is another.
func (b *body) unknown(n openai.Node) { b.fail(n, "has a value that is not known here") }

// one returns a member that must be one of a few strings.
func (b *body) one(of openai.Node, key string, known ...string) string {
	s := b.Quoted(b.required(of, key, '"'))
	if !slices.Contains(known, s) {
		b.fail(b.Get(of, key), "must be one of "+strings.Join(known, ", "))
	}
	return s
}

// pass appends the member name with the value n, unless that is absent.
func (b *body) pass(name string, n openai.Node) {
	if n != none {
		b.put(`,"`, name, `":`, b.Raw(n))
	}
}

// kinds are the types by Tree.Kind.
var kinds = map[byte]string{'"': "a string", '{': "an object", '[': "an array", 0: "a number", 't': "true or false"}

// optional returns the member key of an object, none where it is absent. A value whose type is not kind is refused.
func (b *body) optional(of openai.Node, key string, kind byte) openai.Node {
	n := b.Get(of, key)
	if k := b.Kind(n); n == none || k == kind || k == 'f' && kind == 't' {
		return n
	}
	b.fail(n, "must be "+kinds[kind])
	return none
}

// required is optional for a member that must be there.
func (b *body) required(of openai.Node, key string, kind byte) openai.Node {
	n := b.optional(of, key, kind)
	if n == none && b.err == nil {
		b.refuse(strings.TrimPrefix(b.Path(of)+"."+key, "."), "is required")
	}
	return n
}

// flag reports whether the member key of an object is true.
func (b *body) flag(of openai.Node, key string) bool { return b.Kind(b.optional(of, key, 't')) == 't' }

// typed returns the type of a block and the like.
func (b *body) typed(n openai.Node) string { return b.Quoted(b.required(n, "type", '"')) }

// A paragraph separates the texts of a system message, a line all others.
const (
	paragraph = `\n\n`
	line      = `\n`
)

// author begins a message of a role, up to its content.
func (b *body) author(role string) {
	b.item()
	b.put(`{"role":"`, role, `","content":`)
}

// begin begins a string, to which add appends a text, after a separator.
func (b *body) begin() {
	b.put(`"`)
	b.start = len(b.out)
}

func (b *body) add(separator, label, s string) {
	switch {
	case s == "":
		return
	case len(b.out) > b.start:
		b.put(separator)
	}
	b.put(label, s)
}

// end ends a string or a list that begins at begin, or leaves it out from before on if it is empty.
func (b *body) end(before, begin int, ends string) {
	if len(b.out) == begin {
		b.out = b.out[:before]
	} else {
		b.put(ends)
	}
}

// named is the mode of a tool_choice that names a tool.
const named = "named"

// choose writes which of the chat's tools may be called: a mode of its tool_choice, empty for none, or the tool with a
// name, as between quotes.
func (b *body) choose(of openai.Node, tools int, mode, name string) {
	switch {
	case tools == 0 && (mode == "required" || mode == named):
		b.fail(of, "demands a call, and no tool is left that the client runs")
	case tools == 0 || mode == "":
	case mode == named:
		b.put(`,"tool_choice":{"type":"function","function":{"name":"`, name, `"}}`)
	default:
		b.put(`,"tool_choice":"`, mode, `"`)
	}
}

// finish returns the converted request, or what is wrong with the body.
func (b *body) finish(f form) (*Request, error) {
	defer b.Release()
	if b.Twice != none {
		b.fail(b.Twice, "appears more than once")
	}
	r := &Request{Chat: b.out, Stream: b.flag(0, "stream"), Model: b.model}
	if b.err == nil && b.o.MaxBytes > 0 && len(b.out) > b.o.MaxBytes {
		b.err = openai.TooLarge(b.o.MaxBytes)
	}
	if b.err != nil {
		return nil, b.err
	}
	const bytesPerToken = 4 // an estimate
	r.Answer = &answer{form: f, o: b.o, model: string(openai.AppendQuoted(nil, r.Model)), prompt: (len(b.out) - b.media) / bytesPerToken,
		split: openai.NewSplitter(math.MaxInt32)} // who relays events has a smaller limit
	return r, nil
}

// bulky reports whether no dialect shows a member of an answer.
func bulky(key []byte) bool {
	switch string(key) {
	case "token_ids", "prompt_token_ids", "logprobs", "prompt_logprobs", "kv_transfer_params", "nvext":
		return true
	}
	return false
}

// unreadable is the error for what is no chat's answer.
func unreadable() *openai.Error {
	return openai.BadGateway("invalid_answer", "the worker's answer cannot be read as a chat's")
}

// read reads an event's data or a whole answer, notes how it ends and its usage, and returns its first choice.
func (a *answer) read(data []byte) (choice openai.Node, err *openai.Error) {
	t := &a.tree
	if t.Parse(data, bulky) != nil || t.Kind(0) != '{' {
		return none, unreadable()
	}
	if t.Get(0, "error") != none || t.Is(t.Get(0, "object"), "error") {
		return none, reported(t, data)
	}
	if u := t.Get(0, "usage"); u != none {
		a.usage = usage{
			prompt: count(t, u, "prompt_tokens"), completion: count(t, u, "completion_tokens"),
			cached:    count(t, t.Get(u, "prompt_tokens_details"), "cached_tokens"),
			reasoning: max(count(t, u, "reasoning_tokens"), count(t, t.Get(u, "completion_tokens_details"), "reasoning_tokens")),
		}
	}
	choice = t.First(t.Get(0, "choices"))
	if reason := t.Get(choice, "finish_reason"); t.Quoted(reason) != "" {
		if a.reason = t.Text(reason); a.reason == "abort" || a.reason == "error" {
			return none, openai.BadGateway("aborted", "the worker gave the answer up")
		}
	}
	for _, name := range [...]string{"stop_reason", "matched_stop"} { // vLLM's and SGLang's; a number is a token's
		if s := t.Get(choice, name); t.Quoted(s) != "" {
			a.stop = t.Text(s)
		}
	}
	return choice, nil
}

// count reads a number of tokens, 0 where there is none.
func count(t *openai.Tree, of openai.Node, key string) (n int) {
	for _, d := range []byte(t.Raw(t.Get(of, key))) {
		if d-'0' > 9 || n > math.MaxInt32 {
			return 0
		}
		n = n*10 + int(d-'0')
	}
	return n
}

// reported is the error that a worker or the gateway sends in place of an answer.
func reported(t *openai.Tree, data []byte) *openai.Error {
	engine, in := openai.ReadEngineError(data), t.Get(0, "error")
	e := &openai.Error{Status: cmp.Or(engine.Status, http.StatusBadGateway), Message: engine.Message, Param: engine.Param,
		Type: t.Text(t.Get(in, "type")), Code: t.Text(t.Get(in, "code"))}
	e.NameOverflow()
	return e
}
