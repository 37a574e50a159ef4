package dialect

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/tandem-pd/tandem/internal/openai"
)

// messagesForm writes an answer as Anthropic's Messages.
type messagesForm struct {
	stops    []string // the client's
	index    int      // of the block at hand
	called   bool     // a call was written
	complete bool     // the last one has all its arguments
}

// event begins an event; endEvent ends it, and its data.
func (m *messagesForm) event(a *answer, name string) {
	a.put("event: ", name, "\ndata: {\"type\":\"", name, `"`)
}

const endEvent = "}\n\n"

func (m *messagesForm) begin(a *answer) {
	m.event(a, "message_start")
	a.put(`,"message":`)
	m.envelope(a)
	a.put(`[],"stop_reason":null,"stop_sequence":null,"usage":`)
	m.usage(a, usage{prompt: a.prompt})
	a.put("}", endEvent)
}

// envelope writes a message up to its content.
func (m *messagesForm) envelope(a *answer) {
	a.put(`{"id":"msg_`, a.o.ID, `","type":"message","role":"assistant","model":`, a.model, `,"content":`)
}

// usage writes the tokens: cached ones are no part of the input.
func (m *messagesForm) usage(a *answer, u usage) {
	cached := min(u.cached, u.prompt)
	a.put(`{"input_tokens":`, strconv.Itoa(u.prompt-cached), `,"cache_creation_input_tokens":0,"cache_read_input_tokens":`,
		strconv.Itoa(cached), `,"output_tokens":`, strconv.Itoa(u.completion), "}")
}

// at begins an event of the block at hand.
func (m *messagesForm) at(a *answer, name string) {
	m.event(a, name)
	a.put(`,"index":`, strconv.Itoa(m.index))
}

// block writes a block with its content, a call's as JSON and any other as between quotes.
func (m *messagesForm) block(a *answer, b *block, content, signature string) {
	switch b.kind {
	case thought:
		a.put(`{"type":"thinking","thinking":"`, content, `","signature":"`, signature, `"}`)
	case call:
		a.put(`{"type":"tool_use","id":"`, cmp.Or(b.id, "toolu_"+a.o.ID+"_"+strconv.Itoa(m.index)),
			`","name":"`, b.name, `","input":`, cmp.Or(content, "{}"), "}")
	default:
		a.put(`{"type":"text","text":"`, content, `"}`)
	}
}

func (m *messagesForm) open(a *answer, b *block) {
	m.at(a, "content_block_start")
	a.put(`,"content_block":`)
	m.block(a, b, "", "")
	a.put(endEvent)
}

// deltas are the members of a delta up to its content, by kind.
var deltas = [...]string{
	thought: `,"delta":{"type":"thinking_delta","thinking":"`,
	text:    `,"delta":{"type":"text_delta","text":"`,
	refusal: `,"delta":{"type":"text_delta","text":"`,
	call:    `,"delta":{"type":"input_json_delta","partial_json":"`,
}

func (m *messagesForm) add(a *answer, b *block, content string) {
	m.at(a, "content_block_delta")
	a.put(deltas[b.kind], content, `"}`, endEvent)
}

func (m *messagesForm) shut(a *answer, b *block) {
	if b.kind == thought { // libraries drop a thought without a signature from the history
		m.at(a, "content_block_delta")
		a.put(`,"delta":{"type":"signature_delta","signature":"`, a.o.ID, `"}`, endEvent)
	}
	m.at(a, "content_block_stop")
	a.put(endEvent)
	m.past(b)
}

// past counts a block that is written.
func (m *messagesForm) past(b *block) {
	if m.index++; b.kind == call {
		m.called, m.complete = true, b.args.complete || b.args == object{}
	}
}

func (m *messagesForm) end(a *answer) {
	m.event(a, "message_delta")
	a.put(`,"delta":{`)
	m.stop(a)
	a.put(`},"usage":`)
	m.usage(a, a.usage)
	a.put(endEvent)
	m.event(a, "message_stop")
	a.put(endEvent)
}

// stop writes why the answer ends. A call that a stop string cut short must not run.
func (m *messagesForm) stop(a *answer) {
	reason, sequence := "end_turn", []byte("null")
	switch {
	case a.reason == "length":
		reason = "max_tokens"
	case a.reason == "content_filter":
		reason = "refusal"
	case m.called && m.complete:
		reason = "tool_use"
	case slices.Contains(m.stops, a.stop):
		reason, sequence = "stop_sequence", openai.AppendQuoted(nil, a.stop)
	case m.called:
		reason = "tool_use"
	}
	a.put(`"stop_reason":"`, reason, `","stop_sequence":`, string(sequence))
}

func (m *messagesForm) fail(a *answer, e *openai.Error) {
	a.put("event: error\ndata: ")
	a.out = append(AppendMessagesError(a.out, e, a.o.ID), "\n\n"...)
}

func (m *messagesForm) ping(a *answer) {
	m.event(a, "ping")
	a.put(endEvent)
}

func (m *messagesForm) whole(a *answer, blocks []block) *openai.Error {
	m.envelope(a)
	a.put("[")
	for i := range blocks {
		b := &blocks[i]
		a.item()
		content := string(b.held)
		if b.kind == call {
			content = input(content)
		}
		m.block(a, b, content, a.o.ID)
		m.past(b)
	}
	if len(blocks) == 0 { // libraries expect one
		m.block(a, &block{kind: text}, "", "")
	}
	a.put("],")
	m.stop(a)
	a.put(`,"usage":`)
	m.usage(a, a.usage)
	a.put("}")
	return nil
}

// input returns a call's arguments as the object that they should be, empty if they are none.
func input(quoted string) string {
	var t openai.Tree
	if t.Parse([]byte(`"`+quoted+`"`), nil) != nil || t.Parse(t.AppendText(nil, 0), nil) != nil || t.Kind(0) != '{' {
		return ""
	}
	return t.Raw(0)
}
