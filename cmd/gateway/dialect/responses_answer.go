package dialect

import (
	"cmp"
	"strconv"
	"strings"

	"github.com/tandem-pd/tandem/internal/openai"
)

// responsesForm writes an answer as OpenAI's Responses.
//
// Clients run a call as soon as its item is done. One that the end of the answer cuts short is therefore never done, and
// is the last item: the response, incomplete or failed, does not have it.
type responsesForm struct {
	echo            out    // the members of a response that repeat the request's
	tools           []tool // those that the chat knows by another name
	summary, sealed bool   // thoughts are shown as summaries; they come with encrypted_content
	probable        bool   // texts come with their probabilities
	compacts, alone bool   // the answer is a summary, for a compaction item; it is one of Compact

	sequence int  // of the next event
	index    int  // of the item at hand, or the next
	items    out  // those that are done
	cut      bool // a call was cut short: no item follows

	// The item at hand.
	shape  shape
	tool   tool
	id     string
	callID string // of a call, even if the chat's comes later
	text   out    // its content so far, as between quotes
	probs  out    // a text's probabilities so far
	quiet  bool   // it is written when it is done
	input  customInput
}

// shape is how an item is written, and the events of its content.
type shape struct {
	item, prefix       string // its type, and what its id begins with
	head, part         string // what comes before its part, and before the content in it
	event, where, name string // an event of the content without delta or done, where the content is, and the member that repeats it
	parts              string // an event of the part without added or done
}

// summarized and custom are shapes that are no kinds of block.
const (
	summarized = call + 1 + iota
	custom
)

const (
	first    = `,"content_index":0`
	partOf   = "response.content_part"
	speaking = `,"role":"assistant","content":[`
)

var shapes = [...]shape{
	thought: {"reasoning", "rs_", `,"summary":[],"content":[`, `{"type":"reasoning_text","text":"`,
		"response.reasoning_text", first, "text", partOf},
	summarized: {"reasoning", "rs_", `,"summary":[`, `{"type":"summary_text","text":"`,
		"response.reasoning_summary_text", `,"summary_index":0`,
		"text", "response.reasoning_summary_part"},
	text:    {"message", "msg_", speaking, `{"type":"output_text","text":"`, "response.output_text", first, "text", partOf},
	refusal: {"message", "msg_", speaking, `{"type":"refusal","refusal":"`, "response.refusal", first, "refusal", partOf},
	call:    {item: "function_call", prefix: "fc_", event: "response.function_call_arguments", name: "arguments"},
	custom:  {item: "custom_tool_call", prefix: "ctc_", event: "response.custom_tool_call_input", name: "input"},
}

// take makes a block the item at hand.
func (f *responsesForm) take(a *answer, b *block) {
	f.text, f.probs, f.tool, f.input = f.text[:0], f.probs[:0], tool{}, customInput{buf: f.input.buf[:0]}
	f.shape, f.quiet = shapes[b.kind], f.compacts
	if b.kind == thought && f.summary {
		f.shape = shapes[summarized]
	}
	if b.kind == call {
		for i := range f.tools {
			if f.tools[i].flat == b.name {
				f.tool = f.tools[i]
			}
		}
		switch of := f.tool.action; {
		case of != nil:
			f.shape, f.quiet = shape{item: of.item, prefix: of.prefix}, true
		case f.tool.kind == "custom":
			f.shape = shapes[custom]
		}
	}
	number := a.o.ID + "_" + strconv.Itoa(f.index)
	f.id, f.callID = f.shape.prefix+number, cmp.Or(b.id, "call_"+number)
}

// event begins an event; endEvent ends it, and its data.
func (f *responsesForm) event(a *answer, name string) {
	a.put("event: ", name, "\ndata: {\"type\":\"", name, `","sequence_number":`)
	a.int(f.sequence)
	f.sequence++
}

// at begins an event of the item at hand.
func (f *responsesForm) at(a *answer, name, what string) {
	f.event(a, name+what)
	a.put(`,"item_id":"`, f.id, `","output_index":`)
	a.int(f.index)
	a.put(f.shape.where)
}

// write writes an event of the item's content, which ends in more.
func (f *responsesForm) write(a *answer, what, name, content, more string) {
	f.at(a, f.shape.event, what)
	a.put(`,"`, name, `":"`, content, `"`, more, endEvent)
}

// partly writes an event of the item's part, if those of its shape have any.
func (f *responsesForm) partly(a *answer, what, content string) {
	if f.shape.parts != "" {
		f.at(a, f.shape.parts, what)
		a.put(`,"part":`)
		f.part(a, content)
		a.put(endEvent)
	}
}

// part writes the item's part.
func (f *responsesForm) part(a *answer, content string) {
	if a.put(f.shape.part, content, `"`); f.shape.event == "response.output_text" {
		a.put(`,"annotations":[]`, likely(f.probs))
	}
	a.put("}")
}

// likely returns the member with probabilities, each after a comma.
func likely(probs out) string { return `,"logprobs":[` + strings.TrimPrefix(string(probs), ",") + "]" }

// shown writes an event of the item.
func (f *responsesForm) shown(a *answer, what, item string) {
	f.event(a, "response.output_item."+what)
	a.put(`,"output_index":`, strconv.Itoa(f.index), `,"item":`, item, endEvent)
}

// item returns the item at hand, without what it has so far if it has just begun, unless it is an action.
func (f *responsesForm) item(a *answer, b *block, status string, begun bool) string {
	content, o := string(f.text), make(out, 0, len(f.text)+256)
	o, a.out = a.out, o
	a.put(`{"type":"`, f.shape.item, `","id":"`, f.id, `","status":"`, status, `"`, f.shape.head)
	switch of := f.tool.action; {
	case b.kind == call:
		a.put(`,"call_id":"`, f.callID, `"`)
		if of != nil {
			a.put(of.more, `,"`, of.member, `":`, content)
			break
		}
		if a.put(`,"name":"`, cmp.Or(f.tool.name, b.name)); f.tool.space != "" {
			a.put(`","namespace":"`, f.tool.space)
		}
		if begun {
			content = ""
		}
		a.put(`","`, f.shape.name, `":"`, content, `"`)
	case !begun:
		f.part(a, content)
		fallthrough
	default:
		a.put("]")
	}
	if b.kind == thought && f.sealed && !begun {
		a.put(`,"encrypted_content":"`)
		a.put(sealed(content), `"`)
	}
	a.put("}")
	o, a.out = a.out, o
	return string(o)
}

// done adds an item to those of the response, and returns it.
func (f *responsesForm) done(item string) string {
	if len(f.items) > 0 {
		f.items.put(",")
	}
	f.items.put(item)
	return item
}

// response writes a response, with the error of a failed one.
func (f *responsesForm) response(a *answer, status, failure string) {
	details := "null"
	if status == "incomplete" {
		details = `{"reason":"max_output_tokens"}`
		if a.reason == "content_filter" {
			details = `{"reason":"content_filter"}`
		}
	}
	a.put(`{"id":"resp_`, a.o.ID, `","object":"response","created_at":`, strconv.FormatInt(a.o.Now, 10), `,"completed_at":null,"status":"`,
		status, `","error":`, cmp.Or(failure, "null"), `,"incomplete_details":`, details)
	a.out = append(a.out, f.echo...)
	a.put(`,"model":`, a.model, `,"output":[`)
	a.out = append(a.out, f.items...)
	a.put(`],"usage":`)
	if status == "in_progress" || status == "failed" {
		a.put("null}")
		return
	}
	f.usage(a)
	a.put("}")
}

// usage writes the tokens of an answer that has ended.
func (f *responsesForm) usage(a *answer) {
	u := &a.usage
	a.put(`{"input_tokens":`, strconv.Itoa(u.prompt), `,"input_tokens_details":{"cached_tokens":`, strconv.Itoa(u.cached),
		`,"cache_write_tokens":0},"output_tokens":`, strconv.Itoa(u.completion), `,"output_tokens_details":{"reasoning_tokens":`,
		strconv.Itoa(u.reasoning), `},"total_tokens":`, strconv.Itoa(u.prompt+u.completion), "}")
}

// lifecycle writes an event of the whole response.
func (f *responsesForm) lifecycle(a *answer, what, status, failure string) {
	f.event(a, "response."+what)
	a.put(`,"response":`)
	f.response(a, status, failure)
	a.put(endEvent)
}

func (f *responsesForm) begin(a *answer) {
	f.lifecycle(a, "created", "in_progress", "")
	f.lifecycle(a, "in_progress", "in_progress", "")
}

// mute reports whether nothing of a block is written: a call without a name is none.
func (f *responsesForm) mute(b *block) bool {
	return f.cut || f.compacts || b.kind == call && b.name == ""
}

func (f *responsesForm) open(a *answer, b *block) {
	if f.mute(b) {
		return
	}
	if f.take(a, b); !f.quiet {
		f.shown(a, "added", f.item(a, b, "in_progress", true))
		f.partly(a, ".added", "")
	}
}

func (f *responsesForm) add(a *answer, b *block, content string) {
	switch {
	case f.compacts && b.kind == text:
		f.text = append(f.text, content...)
		return
	case f.mute(b):
		return
	case f.tool.kind == "custom":
		if content = f.input.read(unquoted(content)); content == "" {
			return
		}
	}
	more := ""
	if b.kind == text {
		more = f.logprobs(a)
	}
	if f.text = append(f.text, content...); !f.quiet {
		f.write(a, ".delta", "delta", content, more)
	}
}

// logprobs returns the member with the probabilities of the chunk at hand, and keeps them.
func (f *responsesForm) logprobs(a *answer) string {
	if !f.probable {
		return `,"logprobs":[]`
	}
	var t openai.Tree
	var now out
	if t.Parse([]byte(a.logprobs), nil) == nil {
		for n := range t.All(t.Get(0, "content")) {
			now.put(",", t.Raw(n))
		}
	}
	f.probs.put(string(now))
	return likely(now)
}

// early reports whether the answer ends before its time.
func early(a *answer) bool { return a.reason == "length" || a.reason == "content_filter" }

// complete ends the arguments of the call at hand, and reports whether they are all there. The last block may be cut
// short, as may calls that came among one another.
func (f *responsesForm) complete(a *answer, b *block, early, last bool) bool {
	if early && !b.args.complete && (last || b.args != object{}) {
		return false
	}
	if f.tool.action != nil {
		if member, ok := f.tool.arguments(unquoted(string(f.text))); ok {
			f.text = append(f.text[:0], member...)
		} else { // the client may tell the model
			f.tool, f.shape = tool{}, shapes[call]
		}
	}
	rest := ""
	switch {
	case f.tool.kind == "custom":
		rest = f.input.end()
	case len(f.text) == 0:
		rest = "{}"
	}
	if f.text = append(f.text, rest...); rest != "" && !f.quiet {
		f.write(a, ".delta", "delta", rest, "")
	}
	return true
}

func (f *responsesForm) shut(a *answer, b *block) {
	if f.mute(b) {
		return
	}
	status, more, last, early := "completed", "", len(a.blocks) == 1, a.over || early(a)
	switch {
	case b.kind == call:
		if f.cut = !f.complete(a, b, early, last); f.cut {
			return
		}
		if f.shape.item == "function_call" {
			more = `,"name":"` + cmp.Or(f.tool.name, b.name) + `"`
		}
	case b.kind == text:
		more = likely(f.probs)
		fallthrough
	default:
		if last && early {
			status = "incomplete"
		}
	}
	content := string(f.text)
	if f.quiet {
		f.shown(a, "added", f.item(a, b, "in_progress", true))
		if f.shape.event != "" {
			f.write(a, ".delta", "delta", content, "")
		}
	}
	if f.shape.event != "" {
		f.write(a, ".done", f.shape.name, content, more)
	}
	f.partly(a, ".done", content)
	f.shown(a, "done", f.done(f.item(a, b, status, false)))
	f.index++
}

func (f *responsesForm) end(a *answer) {
	if f.compacts {
		item, err := f.compaction(a)
		if err != nil {
			f.fail(a, err)
			return
		}
		f.shown(a, "added", item)
		f.shown(a, "done", item)
	}
	f.lifecycle(a, ended(a), ended(a), "")
}

// ended returns the status of an answer that has ended.
func ended(a *answer) string {
	if early(a) {
		return "incomplete"
	}
	return "completed"
}

// compaction adds the item that holds the summary.
func (f *responsesForm) compaction(a *answer) (item string, err *openai.Error) {
	if len(f.text) == 0 {
		return "", openai.BadGateway("no_summary", "the model wrote no summary of the conversation")
	}
	return f.done(`{"type":"compaction","id":"cmp_` + a.o.ID + `","encrypted_content":"` + sealed(string(f.text)) + `"}`), nil
}

// fail writes an error event, which most libraries raise, and then the failed response, which Codex reads. The former
// has its fields twice: as the specification has them, and as OpenAI sends them.
func (f *responsesForm) fail(a *answer, e *openai.Error) {
	if !a.begun {
		f.begin(a)
	}
	failed := *e
	failed.Code = cmp.Or(e.Code, "server_error")
	param := "null"
	if e.Param != "" {
		param = string(openai.AppendQuoted(nil, e.Param))
	}
	failure := `"code":` + string(openai.AppendQuoted(nil, failed.Code)) + `,"message":` + string(openai.AppendQuoted(nil, e.Message))
	f.event(a, "error")
	a.put(",", failure, `,"param":`, param, ",", string(failed.Append(nil, a.o.ID)[1:]), "\n\n")
	f.lifecycle(a, "failed", "failed", "{"+failure+"}")
}

// ping repeats an event that all readers know. Codex ends a stream without events, whatever its comments, and OpenAI's
// keepalive events end those of some libraries. Others take its response for all that has come, the open item too.
func (f *responsesForm) ping(a *answer) {
	if a.begun {
		done := len(f.items)
		if a.open && !f.quiet && !f.mute(&a.blocks[0]) {
			f.done(f.item(a, &a.blocks[0], "in_progress", false))
		}
		f.lifecycle(a, "in_progress", "in_progress", "")
		f.items = f.items[:done]
	}
	a.start()
}

// whole writes the events of a stream to nowhere, for the items that they leave.
func (f *responsesForm) whole(a *answer, _ []block) *openai.Error {
	said := a.out
	a.out, a.over = nil, false
	for ; len(a.blocks) > 0; a.blocks = a.blocks[1:] {
		b := &a.blocks[0]
		f.open(a, b)
		f.add(a, b, string(b.held))
		f.shut(a, b)
	}
	a.out, a.over = said, true
	if f.compacts {
		if _, err := f.compaction(a); err != nil {
			return err
		}
	}
	if !f.alone {
		f.response(a, ended(a), "")
		return nil
	}
	a.put(`{"id":"resp_`, a.o.ID, `","object":"response.compaction","created_at":`, strconv.FormatInt(a.o.Now, 10), `,"output":[`,
		string(f.items), `],"usage":`)
	f.usage(a)
	a.put("}")
	return nil
}
